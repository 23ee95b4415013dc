"""Is the model hub there? Asked once and briefly, since its own library tries again for half a minute per file."""

from __future__ import annotations

import os
import sys
import threading
from functools import cache

from ebft.errors import first_line

SECONDS = 5.0  # a hub that answers does so in one; HF_HUB_ETAG_TIMEOUT, the library's own setting, says otherwise
FILES = ("config.json", "adapter_config.json", "tokenizer_config.json")  # a model, an adapter, a tokenizer alone


def in_cache(name: str) -> bool:
    """Whether something of this name was downloaded before, so that it can be loaded without the hub."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(name, file), str) for file in FILES)


def why_unreachable() -> str | None:
    """Why nothing can be downloaded from the hub; None if it answers, whatever it says."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    reason = _ask(constants.ENDPOINT, float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or SECONDS))
    return reason and f"{constants.ENDPOINT} cannot be reached: {reason}"


def use_cache_only() -> None:
    """Ask the hub for nothing more: for every small file that a cached model lacks, its library would try for half a
    minute. The variable is for libraries that are imported later, and for processes that are started from here."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"
    if (datasets := sys.modules.get("datasets")) is not None:  # which has read the variable already
        datasets.config.HF_HUB_OFFLINE = True


@cache
def _ask(address: str, seconds: float) -> str | None:
    """The session of the hub's library knows proxies and certificates. Looking up a name has no time limit of its own,
    so that it happens in a thread that is left behind."""
    from huggingface_hub import get_session

    reasons: list[str | None] = []

    def ask() -> None:
        try:
            get_session().head(address, timeout=seconds)
            reasons.append(None)
        except Exception as error:  # of sockets, certificates, proxies, and of whatever library sends requests
            reasons.append(first_line(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return reasons[0] if reasons else f"no answer in {seconds:g} seconds"
