"""German and English sentences for `translation.yaml`, a pair in a row.

    git clone https://github.com/fe1ixxu/ALMA && git clone https://github.com/multi30k/dataset multi30k
    python results/replication/translation.py --alma ALMA --multi30k multi30k --out data/alma

ALMA's human-written pairs (training and validation from the tests of earlier years of WMT, the test from WMT22) and
Multi30k (captions of pictures: other text than that of training) are not part of this project: see their licences.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

from ebft.data.rows import read_rows

Pairs = list[dict[str, str]]
LANGUAGES = ("de", "en")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alma", type=Path, required=True, help="a clone of its repository")
    parser.add_argument("--multi30k", type=Path, required=True, help="a clone of its repository")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    alma, captions = args.alma / "human_written_data/deen", args.multi30k / "data/task1/raw/test_2016_flickr"
    parts = {
        "train.de-en": _aligned([(alma / f"train.de-en.{language}").read_text() for language in LANGUAGES]),
        "valid.de-en": _translations(alma / "valid.de-en.json"),
        "test.de-en": _translations(alma / "test.de-en.json"),
        "multi30k": _aligned([gzip.decompress(Path(f"{captions}.{x}.gz").read_bytes()).decode() for x in LANGUAGES]),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in parts.items():
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
        print(f"{name}: {len(pairs)} pairs")


def _translations(file: Path) -> Pairs:
    return [{name: row["translation"][name].strip() for name in LANGUAGES} for row in read_rows(str(file))]


def _aligned(texts: list[str]) -> Pairs:
    """Line by line. Not by `splitlines`: some sentences hold separators that it takes for an end of a line."""
    lines = [text.removesuffix("\n").split("\n") for text in texts]
    return [
        dict(zip(LANGUAGES, (line.strip() for line in pair), strict=True))
        for pair in zip(*lines, strict=True)
        if all(line.strip() for line in pair)
    ]


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"translation.py: {error}")
