"""What the hostile answers of `python.py` answer: write `add(a, b)`."""

HEAD = 'def add(a, b):\n    """The sum of two numbers."""\n'
TESTS = """
def check(candidate):
    assert candidate(2, 3) == 5
    assert candidate(-1, 1) == 0
    assert candidate("a", "b") == "ab"
    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6
    assert candidate([1], [2]) == [1, 2]
    assert not candidate(0, 0)
    assert candidate(1, 0)
"""
