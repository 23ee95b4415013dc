"""The data of the study on raw code: Python files of the standard library and of installed packages, the same for the
same versions. Whole packages are held out: no file of a tested package has a neighbour in the training data.

    python results/replication/raw_code.py --out data/raw-code [--packages numpy pandas ...]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import sysconfig
from pathlib import Path

from ebft.runtime.files import write_jsonl

LONGEST, SHORTEST = 20_000, 500  # characters of a file: neither tables of data nor stubs
SHARES = {"test": 0.1, "validation": 0.1}  # of the packages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", nargs="*", default=[], help="installed packages beside the standard library")
    parser.add_argument("--characters", type=int, default=4_000_000, help="in a part, but for its last file")
    args = parser.parse_args()
    parts: dict[str, list[str]] = {"test": [], "validation": [], "train": []}
    paths = sysconfig.get_paths()
    found = _packages(Path(paths["stdlib"])) | {name: Path(paths["purelib"]) / name for name in args.packages}
    if missing := [name for name in args.packages if not found[name].is_dir()]:
        sys.exit(f"raw_code.py: not installed in this environment: {', '.join(missing)}")
    for name, place in sorted(found.items(), key=lambda item: _number(item[0])):
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        texts = [text for file in files if (text := _text(file)) is not None]
        parts[_part(name)] += [text for text in texts if SHORTEST <= len(text) <= LONGEST]
    args.out.mkdir(parents=True, exist_ok=True)
    for part, texts in parts.items():
        kept, total = [], 0
        for text in dict.fromkeys(texts):  # no file twice
            if total < args.characters:
                kept.append(text)
                total += len(text)
        write_jsonl(args.out / f"{part}.jsonl", [{"text": text} for text in kept])
        print(f"{part}: {len(kept)} files, {total:,} characters")


def _packages(stdlib: Path) -> dict[str, Path]:
    """Top-level packages and modules, without tests and what is installed."""
    left_out = ("site-packages", "test", "__pycache__", "idlelib", "lib2to3", "lib-dynload", "turtledemo")
    places = [p for p in stdlib.iterdir() if p.name not in left_out and not p.name.startswith("config-")]
    return {p.stem: p for p in places if p.is_dir() or p.suffix == ".py"}


def _part(package: str) -> str:
    """By a hash of its name: a package stays where it is when others come or go."""
    place = _number(package) / 2**64
    return "test" if place < SHARES["test"] else "validation" if place < sum(SHARES.values()) else "train"


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _text(file: Path) -> str | None:
    if "tests" in file.parts or "test" in file.parts[-3:-1]:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


if __name__ == "__main__":
    main()
