"""The calibration task's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.tasks.calibration_task import calibration_documents
from tests.tiny_tokenizer import byte_tokenizer

SETTINGS = {
    "tasks": ["calibration"],
    "context_length": 24,
    "horizon": 4,
    "stride": 4,
    "rollouts": 3,
    "profile_lengths": [1, 3, 6],
    "profile_stride": 5,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile_lengths": [1, 1]}, r"profile_lengths=\[1, 1\] must be different numbers"),
        ({"profile_lengths": [0]}, "must be different numbers of at least 1"),
        ({"profile_lengths": [20]}, "profile_lengths up to 20 with profile_stride=5 do not fit in context_length=24"),
        ({"profile_stride": 0}, "profile_stride=0 must be at least 1"),
        ({"whitening": "pap"}, "whitening='pap' is not one of .* did you mean 'paper'"),
        ({"horizon": 24}, "horizon=24 with stride=4 does not fit in context_length=24"),
        ({"rollouts": 1}, "rollouts=1 must be at least 2"),
        ({"rollout_temperature": 0.0}, "temperature=0.0 must be above 0"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalOptions.from_values({**SETTINGS, **changes})


def test_holding_all_documents_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "abc"}\n' * 5)
    options = EvalOptions.from_values({"calibration_data": str(file), "held_out": 100})
    with pytest.raises(ConfigError, match=r"--held-out 100 is all of the 5 documents of .*; give the validation_split"):
        calibration_documents(options, byte_tokenizer())
