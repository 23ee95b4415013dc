"""Faults of one line in the method, the model, the sandbox and training, each of which the tests must catch.

    python -m tests.hard.mutants [--only TEXT] [--list]

`--only`: faults whose text or tests hold this; `--list` says where each stands and runs nothing.
A fault is found by its text, in whatever file of src/ebft it stands by now, and made in a copy; the tests that catch it
run on the copy, and once without any fault. Printed are faults that no test catches, and those whose text is gone or is
there more than once: then the line has moved on, and its entry in `mutants.txt` needs the new text or goes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.hard import options

SOURCE = Path(__file__).parents[2] / "src"
TABLE = Path(__file__).with_suffix(".txt")
# What is imported once; each fault has a process of its own that begins with these.
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "pytest", "hypothesis", "numpy", "yaml", "matplotlib")
GONE = "the text is gone"


def mutants() -> list[tuple[str, str, str]]:
    """Of each fault the old text, the new one, and the tests that catch it."""
    sections = [section.partition("]") for section in TABLE.read_text(encoding="utf-8").split("\n[")[1:]]
    pairs = re.compile(r"^- (.*)\n\+ (.*)$", re.MULTILINE)
    return [(old, new, tests) for tests, _, entries in sections for old, new in pairs.findall(entries)]


def place_of(old: str) -> list[Path]:
    return [file for file in sorted(SOURCE.rglob("*.py")) for _ in range(file.read_text(encoding="utf-8").count(old))]


def outcome(old: str, new: str, tests: str) -> str | None:
    """None if the tests catch the fault."""
    found = place_of(old)
    if len(found) != 1:
        return f"the text is there {len(found)} times" if found else GONE
    folder = "/".join(tests.split()[0].split("/")[:2])
    for chosen in dict.fromkeys((tests, folder)):  # tests move, mostly inside their folder
        without = code_of(chosen)
        if without == 0 and code_of(chosen, found[0], old, new) == 1:
            return None
    return "SURVIVED" if without == 0 else f"the tests are gone or fail without it (pytest ends with {without})"


@cache
def code_of(tests: str, file: Path | None = None, old: str = "", new: str = "") -> int:
    """pytest's exit code, in a process that imports ebft from a copy of src, with a fault in a file."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if file is not None:
            changed = copy / file.relative_to(SOURCE)
            changed.write_text(changed.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        if (child := os.fork()) == 0:
            code = 3
            with contextlib.suppress(BaseException), open(copy.parent / "log", "w") as log:
                for stream in (1, 2):
                    os.dup2(log.fileno(), stream)
                os.environ["PYTHONPATH"] = str(copy)
                sys.path.insert(0, str(copy))
                pytest = importlib.import_module("pytest")
                code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]))
                import ebft

                code = code if str(copy) in ebft.__file__ else 3
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    given = options(only="", list=False)
    chosen = [mutant for mutant in mutants() if given.only in " ".join(mutant)]
    if given.list:
        for old, _, _ in chosen:
            print(f"{', '.join(str(file.relative_to(SOURCE)) for file in place_of(old)) or GONE}: {old}")
        return 0
    for library in LIBRARIES:
        importlib.import_module(library)
    importlib.import_module("torch").set_num_threads(1)
    left = []
    for number, mutant in enumerate(chosen, 1):
        if (why := outcome(*mutant)) is not None:
            left.append(why)
            print(f"{why}: {mutant[0]!r} -> {mutant[1]!r} ({mutant[2]})", flush=True)
        print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(f"\n{len(chosen) - len(left)} of {len(chosen)} faults are caught")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
