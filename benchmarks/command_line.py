"""What the command lines of all benchmarks share: errors in one line, and checks before anything is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Prints errors in one line, without the usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def check_device(self, device: str) -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            self.error("--device cuda: torch sees no CUDA device; use --device cpu")

    def check_output(self, file: Path | None) -> None:
        """Finds out before the measurement, not after it, that a file cannot be written."""
        if file is None:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.open("a").close()
            # An empty file is no result. Only a real file is removed, never /dev/null or /dev/stdout.
            if file.is_file() and not file.is_symlink() and not file.stat().st_size:
                file.unlink()
        except OSError as error:
            self.error(f"--json {file}: {error.strerror}")

    def read_json(self, file: Path) -> Any:
        try:
            return json.loads(file.read_text())
        except OSError as error:
            self.error(f"{file}: {error.strerror}")
        except json.JSONDecodeError as error:
            self.error(f"{file} is not JSON: {error}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)
