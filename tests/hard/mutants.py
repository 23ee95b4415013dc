"""Faults of one line in the method, the model, the sandbox and training, each of which the tests must catch.

    python -m tests.hard.mutants [--only TEXT]     faults whose text or tests hold this

A fault is found by its text, in whatever file of src/ebft it stands by now, and made in a copy; the tests that catch it
run on the copy, and once without any fault. Printed are faults that no test catches, and those whose text is gone or is
there more than once: then the line has moved on, and its entry in `mutants.txt` needs the new text or goes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.hard import options

SOURCE = Path(__file__).parents[2] / "src"
TABLE = Path(__file__).with_suffix(".txt")


def mutants() -> list[tuple[str, str, str]]:
    """Of each fault the old text, the new one, and the tests that catch it."""
    sections = [section.partition("]") for section in TABLE.read_text(encoding="utf-8").split("\n[")[1:]]
    pairs = re.compile(r"^- (.*)\n\+ (.*)$", re.MULTILINE)
    return [(old, new, tests) for tests, _, entries in sections for old, new in pairs.findall(entries)]


def outcome(old: str, new: str, tests: str) -> str | None:
    """None if the tests catch the fault."""
    found = [file for file in sorted(SOURCE.rglob("*.py")) for _ in range(file.read_text(encoding="utf-8").count(old))]
    if len(found) != 1:
        return f"the text is there {len(found)} times"
    if (without := exit_code(tests)) != 0:
        return f"the tests are gone or fail without it (pytest ends with {without})"
    return None if exit_code(tests, found[0], old, new) == 1 else "SURVIVED"


@cache
def exit_code(tests: str, file: Path | None = None, old: str = "", new: str = "") -> int:
    """pytest's, over a copy of src, with a fault in a file."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if file is not None:
            changed = copy / file.relative_to(SOURCE)
            changed.write_text(changed.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def main() -> int:
    only, left = options(only="").only, 0
    chosen = [mutant for mutant in mutants() if only in " ".join(mutant)]
    for number, mutant in enumerate(chosen, 1):
        if (why := outcome(*mutant)) is not None:
            left += 1
            print(f"{why}: {mutant[0]!r} -> {mutant[1]!r} ({mutant[2]})", flush=True)
        print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(f"\n{len(chosen) - left} of {len(chosen)} faults are caught")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
