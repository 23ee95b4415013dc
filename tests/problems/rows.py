"""Rows in the fields of the datasets; four sentences with references and guesses."""

import json
from pathlib import Path
from typing import Any

from ebft.problems.translation import Pair
from tests.sandbox.attacks.python import HEAD

HUMANEVAL = {"task_id": "Own/0", "prompt": HEAD, "entry_point": "add"}
HUMANEVAL |= {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}
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
SOURCES = ["Das Haus ist alt.", "Der Hund schläft.", "Ich trinke gern Kaffee am Morgen.", "Wo ist der Bahnhof?"]
REFERENCES = [
    "The house is old.",
    "The dog is asleep.",
    "I like to drink coffee in the morning.",
    "Where is the station?",
]
GUESSES = ["The house is old.", "The dog sleeps now.", "I like coffee in the morning.", "Where is the train station?"]
PAIRS = [Pair(str(n), s, [r]) for n, (s, r) in enumerate(zip(SOURCES, REFERENCES, strict=True), 1)]


def write(file: Path, rows: list[Any]) -> str:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(file)
