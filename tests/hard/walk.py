"""The files of ebft that one passes from `ebft train` to the first optimizer step, in the order in which they are met.

    python -m tests.hard.walk

A run like the quickstart, of a tiny model without a network, under `sys.setprofile`. What runs while a module is
imported is left out. At commit 1b477ae there were 87 files of 12,554 lines.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from torch.optim.optimizer import register_optimizer_step_post_hook

import ebft
from ebft import cli
from ebft.config.recipe import read_values
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

HOME = Path(ebft.__file__).parent


class Arrived(BaseException):
    """The optimizer has made its first step."""


def walk(arguments: list[str]) -> dict[str, int]:
    """The files by the order in which they are first called, each with its lines."""
    met: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in met and file.startswith(f"{HOME}{os.sep}") and not importing(frame):
            met[file] = None

    def arrive(*_: Any) -> None:
        sys.setprofile(None)
        raise Arrived

    hook = register_optimizer_step_post_hook(arrive)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(Arrived):
            sys.setprofile(look)
            cli.main(arguments)
            raise RuntimeError(f"no step was made: {printed.getvalue()}")
    finally:
        sys.setprofile(None)
        hook.remove()
    return {str(Path(file).relative_to(HOME)): len(Path(file).read_text().splitlines()) for file in met}


def importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ.update(EBFT_CACHE=str(folder / "cache"), HF_HUB_OFFLINE="1")
        model = save_tiny_model(folder / "model", byte_tokenizer(pad=END))
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({**read_values("quickstart"), "model": str(model)}))
        found = walk(["train", "--config", str(recipe), "--output_dir", str(folder / "run")])
    for number, (file, lines) in enumerate(found.items(), 1):
        print(f"{number:3}  {file:<40}{lines:5} lines")
    print(f"{len(found)} files, {sum(found.values()):,} lines")


if __name__ == "__main__":
    main()
