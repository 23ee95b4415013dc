"""Four sentences with references and guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebft.problems.translation import Pair

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
