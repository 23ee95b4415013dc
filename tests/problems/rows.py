"""Rows in the fields of the datasets."""

from __future__ import annotations

from typing import Any

from tests.sandbox.attacks.python import HEAD

HUMANEVAL = {
    "task_id": "Own/0",
    "prompt": HEAD,
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
MBPP: dict[str, Any] = {
    "task_id": 7,
    "text": "Write a function to find the depth of a tree.",
    "code": "class Node:\n    def __init__(self, data):\n        self.data = data\n"
    "        self.left = self.right = None\n"
    "def depth(node):\n    return 0 if node is None else 1 + max(depth(node.left), depth(node.right))\n",
    "test_setup_code": "root = Node(1) \r\nroot.left = Node(2) \r\nroot.left.right = Node(3)",
    "test_list": ["assert depth(root) == 3", "assert depth(root.left) == 2", "assert depth(None) == math.floor(0.5)"],
    "challenge_test_list": [],
}
