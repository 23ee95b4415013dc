"""Secrets among the settings. They go into the environment, where libraries look for them, and nowhere else.

Settings are written into recipes, model cards, checkpoints and logs. A token that is no longer among them when they are
read cannot be written into any of these, today's or those to come.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ebft.errors import ConfigError

HIDDEN = "<hidden>"  # in commands that model cards of earlier versions showed
_VARIABLES = {"hub_token": "HF_TOKEN"}
_LOOKS_SECRET = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|access_?key)$", re.IGNORECASE)


def take_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """The settings without secrets, which are in the environment from now on."""
    kept = dict(values)
    for name, variable in _VARIABLES.items():
        secret = kept.pop(name, None)
        if isinstance(secret, str) and secret and secret != HIDDEN:
            os.environ[variable] = secret
    for name, value in kept.items():
        _check_options(name, value)
    return kept


def _check_options(where: str, value: Any) -> None:
    """Options of libraries inside a setting: whatever looks like a secret would be written down with it."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        if _LOOKS_SECRET.search(str(name)) and isinstance(inner, str):
            raise ConfigError(
                f"{where} holds {name!r}, which would be written into recipes and checkpoints; put it into the "
                "environment, where the library reads it"
            )
        _check_options(where, inner)


def is_secret(name: str) -> bool:
    return name in _VARIABLES
