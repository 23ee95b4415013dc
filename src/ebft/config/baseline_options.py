"""What the baselines add to the settings of `ebft train`: their own options, each with its checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ebft.config.fields import at_least, option
from ebft.errors import ConfigError

# Settings of `ebft train` that say how EBFT trains and not how validation measures: idle in a baseline.
ONLY_EBFT = ("gamma", "kl_weight", "rollout_batch_size", "max_reward", "compile_layers", "disable_dropout")
TRL_HELP = "further settings of TRL's {name} by its own names, such as {example}; only in a recipe"


@dataclass
class SFTOptions:
    max_length: int = option(
        2048, "tokens of a training sequence; longer documents are cut. context_length is validation's", "sft"
    )
    pack_training: bool = option(
        False,
        "fill training sequences with documents one after the other, which see each other unless document_masks is "
        "set; otherwise one document a row, as TRL does",
        "sft",
    )
    loss_on_answers: bool | None = option(
        None,
        "loss on answer tokens only; default: as answer_only, which also says where validation's anchors are",
        "sft",
    )
    trl_options: dict[str, Any] = option({}, TRL_HELP.format(name="SFTConfig", example="{loss_type: dft}"), "sft")
    # ---- transformers' settings with the paper's values
    learning_rate: float = field(default=1e-5, metadata={"help": "learning rate of AdamW"})
    num_train_epochs: float = field(default=5.0, metadata={"help": "passes over the data"})

    def check_options(self) -> None:
        if self.max_length < 2:
            raise ConfigError(f"max_length={self.max_length} must be at least 2: a token and one to predict")


@dataclass
class RLVROptions:
    rewards: list[str] = option(
        [], "reward functions: unit_tests, bleu, or module:function of your own; their rewards are added", "rlvr"
    )
    reward_weights: list[float] = option([], "weights of the rewards, one each; default: 1", "rlvr")
    generations: int = option(8, "n: answers drawn to every prompt", "rlvr")
    generation_temperature: float = option(
        1.0, "sampling temperature of the answers; temperature is that of validation's rollouts", "rlvr"
    )
    max_new_tokens: int = option(1024, "maximum length of an answer in tokens", "rlvr")
    max_prompt_tokens: int = option(1024, "documents with longer prompts are left out", "rlvr")
    kl_coefficient: float = option(
        0.0, "weight of the KL divergence from the first model (beta in TRL); 0 is off", "rlvr"
    )
    use_vllm: bool = option(False, "draw answers with vLLM (needs `pip install trl[vllm]` and a GPU)", "rlvr")
    reward_timeout: float = option(10.0, "seconds that one answer's unit tests may take", "rlvr")
    reward_workers: int | None = option(None, "answers tested at once; default: one for each core", "rlvr")
    unsafe_exec: bool = option(False, "run unit tests without a sandbox, with your own rights", "rlvr")
    tests_column: str = option(
        "test_list", "column of unit tests: a list of assert statements, or a text of Python", "rlvr"
    )
    reference_column: str | None = option(
        None, "column of reference answers for bleu; default: completion_column", "rlvr"
    )
    trl_options: dict[str, Any] = option(
        {}, TRL_HELP.format(name="GRPOConfig", example="{loss_type: grpo, scale_rewards: none}"), "rlvr"
    )
    # ---- transformers' settings with the paper's values; a row is one answer: 256 are 32 prompts with 8 answers each
    num_train_epochs: float = field(default=1.0, metadata={"help": "passes over the data"})
    gradient_accumulation_steps: int = field(
        default=16, metadata={"help": "micro-batches a step; a row of a micro-batch is one answer"}
    )

    def check_options(self) -> None:
        if not self.rewards:
            raise ConfigError("no reward: set `rewards` to unit_tests, bleu or module:function")
        if self.reward_weights and len(self.reward_weights) != len(self.rewards):
            raise ConfigError(f"reward_weights has {len(self.reward_weights)} values for {len(self.rewards)} rewards")
        if self.generations < 2:
            raise ConfigError(
                f"generations={self.generations} must be at least 2: answers are judged against each other"
            )
        at_least(self, 1, "max_new_tokens", "max_prompt_tokens", "reward_workers")
        if not self.generation_temperature > 0:
            raise ConfigError(f"generation_temperature={self.generation_temperature} must be above 0")
        if self.kl_coefficient < 0:
            raise ConfigError(f"kl_coefficient={self.kl_coefficient} must not be negative")
        if not 0 < self.reward_timeout <= 86400:
            raise ConfigError(f"reward_timeout={self.reward_timeout} must be a positive number of seconds")
