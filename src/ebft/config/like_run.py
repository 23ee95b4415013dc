from typing import Any

from ebft.config import evaluation
from ebft.config.evaluation import place_of, settings_of_run
from ebft.runtime.launch import how_to_resume

__all__ = ["how_to_resume", "place_of", "settings_of_run", "validation_options"]


def validation_options(folder: str, borrowed: Any, text: str | None = None) -> dict[str, Any]:
    return evaluation.validation_options(folder, text)
