"""`python -m tools.screens FOLDER [NAME ...]`: pictures of what people see in a terminal, from real commands.

Runs the commands below, or those named, in FOLDER and writes their output to docs/screens/ as SVG. FOLDER must be new,
but for `my.jsonl` and `recipe.yaml` of the tutorial on your own data. All of it takes about a quarter of an hour.
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
    ("quickstart", "ebft train --config quickstart", 29),
    ("dry-run", "ebft train --config recipe.yaml --output_dir runs/mine --dry-run", None),
    ("train", "ebft train --config recipe.yaml --output_dir runs/mine", None),
    ("sft", "ebft sft --config recipe.yaml --output_dir runs/sft", None),
    ("compare", "ebft compare runs/mine runs/sft --output results/compared", None),
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
        console = Console(record=True, width=max(90, *map(len, shown)), file=nowhere, legacy_windows=False)
        console.print(Text(f"$ {command}", style="bold"))
        for line in shown:
            console.print(Text(line), no_wrap=True, crop=True)
        svg = console.export_svg(title="ebft", unique_id="ebft")
    svg = re.sub(r' clip-path="url\(#ebft-line-\d+\)"', "", svg)  # which hides underscores in other fonts
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # fonts that would be loaded from elsewhere


if __name__ == "__main__":
    (ROOT / "docs" / "screens").mkdir(exist_ok=True)
    chosen = sys.argv[2:] or [name for name, _, _ in SCREENS]
    for name, command, lines in (each for each in SCREENS if each[0] in chosen):
        picture = screen(command, Path(sys.argv[1]), lines)
        if name not in ("train", "sft"):  # these only make the runs that are compared
            (ROOT / "docs" / "screens" / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(name)
