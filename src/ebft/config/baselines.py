"""Settings of the baselines, `ebft sft` and `ebft rlvr`.

Both take every setting of `ebft train` as well: those of the data and the model mean the same, and those of the method
and the feature network say how validation measures, so that a recipe can be shared and the numbers compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ebft.config.settings import check, option
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError


@dataclass
class SFTSettings(EBFTConfig):
    trains_in_fp16: ClassVar[bool] = True  # by TRL and transformers, which scale the loss before they differentiate

    max_length: int = option(2048, "tokens of a training sequence; longer documents are cut")
    pack_training: bool = option(False, "several documents in a training sequence; otherwise one, as TRL does")
    loss_on_answers: bool | None = option(None, "loss on answer tokens only; default: as answer_only")
    trl_options: dict[str, Any] = option({}, "further settings of TRL's SFTConfig by its own names; only in a recipe")
    # ---- transformers' settings with the paper's values
    learning_rate: float = option(1e-5, "learning rate of AdamW")
    num_train_epochs: float = option(5.0, "passes over the data")

    @property
    def trains_on_answers(self) -> bool:
        return self.answer_only if self.loss_on_answers is None else self.loss_on_answers

    def __post_init__(self) -> None:
        check(self, SFTSettings, max_length=2)  # a token and one to predict
        super().__post_init__()


@dataclass
class RLVRSettings(EBFTConfig):
    trains_in_fp16: ClassVar[bool] = True

    rewards: list[str] = option([], "what rewards add up: unit_tests, bleu, or module:function of your own")
    reward_weights: list[float] = option([], "weights of the rewards, one each; default: 1")
    generations: int = option(8, "n: answers drawn to every prompt")
    generation_temperature: float = option(1.0, "sampling temperature of the answers; temperature is validation's")
    max_new_tokens: int = option(1024, "maximum length of an answer in tokens")
    max_prompt_tokens: int = option(1024, "documents with longer prompts are left out")
    kl_coefficient: float = option(0.0, "weight of the KL divergence from the first model (beta in TRL); 0 is off")
    use_vllm: bool = option(False, "draw answers with vLLM (needs `pip install trl[vllm]` and a GPU)")
    reward_timeout: float = option(10.0, "seconds that one answer's unit tests may take")
    reward_workers: int | None = option(None, "answers tested at once; default: one for each core")
    unsafe_exec: bool = option(False, "run unit tests without a sandbox, with your own rights")
    tests_column: str = option("test_list", "column of unit tests: a list of assert statements, or a text of Python")
    reference_column: str | None = option(None, "column of reference answers for bleu; default: completion_column")
    trl_options: dict[str, Any] = option({}, "further settings of TRL's GRPOConfig by its own names; only in a recipe")
    # ---- transformers' settings with the paper's values; a row is one answer: 256 are 32 prompts with 8 answers each
    num_train_epochs: float = option(1.0, "passes over the data")
    gradient_accumulation_steps: int = option(16, "micro-batches a step; a row of a micro-batch is one answer")

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ConfigError("no reward: set `rewards` to unit_tests, bleu or module:function")
        positive = dict.fromkeys(("max_new_tokens", "max_prompt_tokens", "reward_workers"), 1)
        check(self, RLVRSettings, **positive, generations=2, kl_coefficient=0)
        for name, longest in {"generation_temperature": float("inf"), "reward_timeout": 86400}.items():
            if not 0 < (value := getattr(self, name)) <= longest:
                raise ConfigError(f"{name}={value} must be above 0, and reward_timeout at most a day")
        super().__post_init__()
