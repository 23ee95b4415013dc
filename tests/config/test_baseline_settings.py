"""Settings of the baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebft.config.baseline_settings import RLVRSettings
from ebft.errors import ConfigError


def test_the_processes_that_were_launched_count_in_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        ConfigError, match=r"times 3 processes are 6 answers per step, which is not a multiple of gen.*=4"
    ):
        RLVRSettings(
            output_dir=str(tmp_path),
            use_cpu=True,
            rewards=["bleu"],
            generations=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=1,
        )
