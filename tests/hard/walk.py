"""The files of ebft that one passes from `ebft train` to the first optimizer step, in the order in which they are met.

    python -m tests.hard.walk

A run like the quickstart, of a tiny model without a network, under `sys.setprofile`. What runs while a module is
imported is left out. At commit 1b477ae there were 87 files of 12,554 lines.
"""

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


def main() -> None:
    met: dict[str, int] = {}  # of each file its lines

    def look(frame: FrameType | None, event: str, _: Any) -> None:
        file = frame.f_code.co_filename if frame else ""
        if event != "call" or file in met or not file.startswith(f"{HOME}{os.sep}"):
            return
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is None:  # nothing is being imported
            met[file] = len(Path(file).read_text().splitlines())

    def arrive(*_: Any) -> None:
        sys.setprofile(None)
        for number, (file, lines) in enumerate(met.items(), 1):
            print(f"{number:3}  {Path(file).relative_to(HOME)!s:<40}{lines:5} lines")
        print(f"{len(met)} files, {sum(met.values()):,} lines", flush=True)
        sys.exit(0)

    register_optimizer_step_post_hook(arrive)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(EBFT_CACHE=f"{place}/cache", HF_HUB_OFFLINE="1")
        model, recipe = save_tiny_model(Path(place, "model"), byte_tokenizer(pad=END)), Path(place, "recipe.yaml")
        recipe.write_text(yaml.safe_dump({**read_values("quickstart"), "model": str(model)}))
        sys.setprofile(look)
        sys.exit(cli.main(["train", "--config", str(recipe), "--output_dir", f"{place}/run"]))


if __name__ == "__main__":
    main()
