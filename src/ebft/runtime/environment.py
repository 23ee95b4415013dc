"""`ebft env`: what a bug report should say about a machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = (
    "ebft",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "tokenizers",
    "safetensors",
    "numpy",
    "triton",
)


def describe() -> dict[str, str]:
    import torch

    found = {"platform": platform.platform(), "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    found["cpu cores"] = str(os.cpu_count())
    found["torch threads"] = str(torch.get_num_threads())
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            found[f"gpu {number}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    else:
        found["gpu"] = "none"
    return found
