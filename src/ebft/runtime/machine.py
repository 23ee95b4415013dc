"""What there is on this machine: versions, GPUs and what is left of their memory, a way to the model hub."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

from ebft.errors import first_line
from ebft.version import __version__

LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "tokenizers", "triton")


def describe() -> dict[str, str]:
    """`ebft env`: what a bug report should say about a machine."""
    import torch

    found = {"platform": platform.platform(), "python": platform.python_version(), "ebft": __version__}
    found |= {library: version(library) for library in LIBRARIES if find_spec(library)}
    found |= {"cpu cores": str(os.cpu_count()), "torch threads": str(torch.get_num_threads())}
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    shown = {f"gpu {number}": f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for number, gpu in enumerate(gpus)}
    return {**found, "cuda": str(torch.version.cuda), **shown} if gpus else {**found, "gpu": "none"}


def available_cores() -> int:
    """For this process, which may have been given only some of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def hub_unreachable() -> str | None:
    """Why nothing can be downloaded from the model hub; None if it answers, whatever it says. From then on only its
    cache is asked: its own library would try for half a minute, for every small file that a cached model lacks."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 5))
        return None
    except Exception as error:  # of sockets, certificates, proxies, and of whatever library sends requests
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"  # for libraries that are imported later, and for processes started here
        return f"{constants.ENDPOINT} cannot be reached: {first_line(error)}"
