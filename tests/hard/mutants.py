"""Faults of one line in the method, the model, the sandbox and training, each of which the tests must catch.

    python -m tests.hard.mutants [--only TEXT]     faults whose text or tests hold this

A fault is found by its text, in whatever file of src/ebft it stands by now, and made in a copy; the tests that catch it
run on the copy, and once without any fault. Printed are faults that no test catches, and those whose text is gone or is
there more than once: then the line has moved on, and its entry in `mutants.txt` needs the new text or goes.
"""

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
    only, caught = options(only="").only, 0
    chosen = [mutant for mutant in mutants() if only in " ".join(mutant)]
    for old, new, tests in chosen:
        files = [f for f in SOURCE.rglob("*.py") for _ in range(f.read_text(encoding="utf-8").count(old))]
        why = f"the text is there {len(files)} times" if len(files) != 1 else ""
        if not why and (without := exit_code(tests)) != 0:
            why = f"the tests are gone or fail without it (pytest ends with {without})"
        if not why and exit_code(tests, files[0], old, new) != 1:
            why = "SURVIVED"
        caught += not why
        if why:
            print(f"{why}: {old!r} -> {new!r} ({tests})", flush=True)
    print(f"{caught} of {len(chosen)} faults are caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
