"""Settings of the baselines, `ebft sft` and `ebft rlvr`.

Both take every setting of `ebft train` as well: those of the data and the model mean the same, and those of the method
and the feature network say how validation measures, so that a recipe can be shared and the numbers compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError


@dataclass
class SFTSettings(SFTOptions, EBFTConfig):  # type: ignore[misc]
    trains_in_fp16: ClassVar[bool] = True  # by TRL and transformers, which scale the loss before they differentiate

    @property
    def trains_on_answers(self) -> bool:
        return self.answer_only if self.loss_on_answers is None else self.loss_on_answers

    def __post_init__(self) -> None:
        self.check_options()
        super().__post_init__()


@dataclass
class RLVRSettings(RLVROptions, EBFTConfig):  # type: ignore[misc]
    trains_in_fp16: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_options()
        super().__post_init__()
        if self.rows_per_step % self.generations:
            several = f" times {self.world_size} processes" if self.world_size > 1 else ""
            raise ConfigError(
                f"per_device_train_batch_size={self.per_device_train_batch_size} times gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}{several} are {self.rows_per_step} answers per step, which "
                f"is not a multiple of generations={self.generations}"
            )
