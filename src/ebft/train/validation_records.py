"""What validation found for each sequence, kept in a run's folder: differences are taken sequence by sequence.

`validation-before.jsonl` and `validation-after.jsonl` have a line for each sequence, in the format of `ebft eval`'s
`calibration.jsonl`. Each is written before the results that it belongs to: those in results.json have their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ebft.method.measures import Record
from ebft.runtime.files import read_jsonl, write_jsonl

When = Literal["before", "after"]


def write(run: Path, when: When, records: Sequence[Record]) -> None:
    write_jsonl(_file(run, when), records)


def read(run: Path, when: When) -> list[Record]:
    """Nothing for runs of versions that did not keep them."""
    return read_jsonl(_file(run, when))


def _file(run: Path, when: When) -> Path:
    return run / f"validation-{when}.jsonl"
