"""`make test-hard`: programs that try to break runs, files and the sandbox, for longer than a test suite may take.

Each is run as `python -m tests.hard.<name>`, prints one line of what it did, and ends with code 1 at the first failure.
"""
