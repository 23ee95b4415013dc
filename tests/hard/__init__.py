"""`make test-hard`: programs that try to break runs, files and the sandbox, for longer than a test suite may take.

Each is run as `python -m tests.hard.<name>`, prints one line of what it did, and ends with code 1 at the first failure.
"""

import argparse
from typing import Any


def options(**defaults: Any) -> argparse.Namespace:
    """What the command line says, or these: `at_once=2` is `--at-once 2`, and a default of False makes a flag."""
    parser = argparse.ArgumentParser()
    for name, value in defaults.items():
        kind: Any = {"action": "store_true"} if value is False else {"type": type(value), "default": value}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind)
    return parser.parse_args()
