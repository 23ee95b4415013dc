"""`python -m tools.screens FOLDER`: pictures of what people see in a terminal, from commands that run for real.

Runs the commands below in FOLDER (it takes some minutes on a CPU) and writes their output to docs/screens/ as SVG.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
# Of progress bars only how they end is shown, and nothing of those that libraries draw.
BARS = re.compile(r"^\s*\d?\d%\||Loading weights|Writing model shards|Generating")
# Name of the picture, the command, and how many lines of its output to show from the end; None: all of them.
SCREENS: list[tuple[str, str, int | None]] = [
    ("quickstart", "ebft train --config quickstart", 24),
    ("dry-run", "ebft train --config recipe.yaml --output_dir runs/mine --dry-run", None),
    ("train", "ebft train --config recipe.yaml --output_dir runs/mine", None),
    ("sft", "ebft sft --config recipe.yaml --output_dir runs/sft", None),
    ("compare", "ebft compare runs/mine runs/sft --output results/compared", None),
    ("plan", "ebft plan --config paper/qa_code --gpus 1 --gpu-memory 24", None),
    ("mistake", "ebft train --config quickstart --learning_rat 1e-5", None),
]


def screen(command: str, folder: Path, lines: int | None) -> str:
    """The SVG of a command and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "110"}
    words = [sys.executable, "-m", "ebft.cli", *shlex.split(command)[1:]]
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in done.stdout.split("\n")]
    shown = [line for line in shown if not BARS.search(line)]
    shown = re.sub(r"\n{3,}", "\n\n", "\n".join(shown)).strip("\n").split("\n")
    shown = shown if lines is None or len(shown) <= lines else ["[...]", *shown[-lines:]]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=118, file=nowhere, legacy_windows=False)
        console.print(Text(f"$ {command}", style="bold"))
        for line in shown:
            console.print(Text(line), no_wrap=True, crop=True)
        svg = console.export_svg(title="ebft", unique_id="ebft")
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # fonts that would be loaded from elsewhere


if __name__ == "__main__":
    (ROOT / "docs" / "screens").mkdir(exist_ok=True)
    for name, command, lines in SCREENS:
        picture = screen(command, Path(sys.argv[1]), lines)
        (ROOT / "docs" / "screens" / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(name)
