from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def sacrebleu(folder: Path, texts: list[str], references: list[list[str]], *options: str) -> dict[str, Any]:
    """What the command prints for files of lines."""
    (folder / "hyp.txt").write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    files = []
    for number, lines in enumerate(references):
        files.append(folder / f"ref{number}.txt")
        files[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, files), "-i", str(folder / "hyp.txt"), "-w", "12", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)
