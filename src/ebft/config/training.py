"""`EBFTConfig`: the settings of `ebft train`, as transformers' Trainer takes them, and those of the baselines. Making
one joins no process group and sets no device up: `runtime.processes.start` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import torch
from transformers import TrainingArguments

from ebft.config.evaluation import TASKS, Task
from ebft.config.method import MethodConfig
from ebft.config.settings import Values, option
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES, smaller_is_better

# What transformers or `accelerate launch` would do beside or instead of ebft, without a word, and what serves instead.
_REFUSED = {"deepspeed": "use fsdp=full_shard", "parallelism_config": "use fsdp=full_shard"}
_REFUSED |= {"enable_jit_checkpoint": "SIGTERM saves a checkpoint", "resume_from_checkpoint": "give --resume"}
_REFUSED |= {"fp16=true": "gradients of a mean over a step's tokens are too small for it; use bf16=true, or float32"}
_REFUSED |= {"early_stopping_patience without evaluations": "set eval_strategy=steps and eval_steps"}
_REFUSED |= {"max_steps=0": "use 1 or more, or -1 for num_train_epochs"}
_OF_SFT = {"neftune_noise_alpha": "rollouts are drawn without that noise; ebft sft takes it"}
_OF_SFT |= {"label_smoothing_factor": "EBFT's loss does not smooth; ebft sft takes it"}
_REFUSED |= _OF_SFT


@dataclass
class EBFTConfig(MethodConfig, TrainingArguments):
    """The method's settings, ebft's own for running, and transformers' (batches, schedules, logging, saving, ...)."""

    bf16_if_fast: bool = option(False, "bf16=true where the hardware has units for it (GPUs since Ampere, AMX)")
    compile_layers: bool | None = option(None, "torch.compile the layers; default: on a GPU, or with torch_compile")
    rollout_batch_size: int | None = option(None, "sequences rolled out at once; default: all of a step", 1)
    disable_dropout: bool = option(True, "set the model's dropouts to 0: EBFT needs the log-probs it sampled from")
    save_log_spaced: bool = option(False, "also save checkpoints at steps 1, 2, 4, 8, ...")
    samples_every: int = option(50, "write a table of contexts, truths and completions every N steps; 0: never", 0)
    show_prompts: int = option(0, "held-out prompts to answer before and after training, shown at the end; 0: none", 0)
    early_stopping_patience: int | None = option(None, "stop after N evaluations without a better metric (cfm)", 1)
    early_stopping_threshold: float = option(0.0, "what counts as better must be so by more than this")
    max_reward: float = option(1e4, "stop if the mean reward grows beyond this", 0)
    eval_tasks: list[Task] = option([], f"tasks of `ebft eval` to run while training: {', '.join(TASKS)}")
    eval_tasks_every: int | None = option(None, "run eval_tasks every N steps; default: at every evaluation", 1)
    eval_task_options: Values = option({}, "options of `ebft eval` for them: {limit: 20}; only in a recipe")

    # ---- settings of transformers, most of them for the paper's values
    per_device_train_batch_size: int = option(16, "sequences per process and forward pass", 1)
    gradient_accumulation_steps: int = option(1, "micro-batches a step", 1)
    per_device_eval_batch_size: int = option(8, "sequences per process in evaluation", 1)
    learning_rate: float = option(1e-6, "learning rate of AdamW", 0)
    lr_scheduler_type: str = option("constant_with_warmup", "learning rate schedule")
    warmup_steps: float = option(0.03, "warm-up: a share of all steps below 1, else steps")
    adam_beta2: float = option(0.95, "second beta of AdamW", 0)
    num_train_epochs: float = option(2.0, "passes over the data", 0)
    logging_steps: float = option(10, "number of steps between log entries")
    save_total_limit: int | None = option(3, "checkpoints kept; the best one is kept besides")
    report_to: str | list[str] | None = option("none", "tensorboard, wandb, trackio, a list of these, all, or none")
    logging_nan_inf_filter: bool = option(False, "hide NaN losses in logs; EBFT stops at them")
    remove_unused_columns: bool = option(False, "EBFT needs all columns of its datasets")
    fsdp: str | bool | None = option(None, "FSDP2: full_shard, or shard_grad_op: faster, larger")  # type: ignore
    ddp_timeout: int = option(1800, "seconds after which a process gives up on another one that does not answer")

    by_trl: ClassVar[bool] = False  # whether a trainer of TRL takes the loss
    sharding: str | None = field(default=None, init=False, repr=False)  # what fsdp asks for, once it is checked

    def __post_init__(self) -> None:
        MethodConfig.__post_init__(self)
        unseen = self.early_stopping_patience is not None and self.eval_strategy in ("no", False)
        refused = {"early_stopping_patience without evaluations": unseen, "max_steps=0": self.max_steps == 0}
        refused["fp16=true"] = self.fp16 and bool(self.fsdp or not self.by_trl)
        refused |= {name: bool(getattr(self, name)) and not self.by_trl for name in _OF_SFT}
        for name, instead in _REFUSED.items():
            asked = os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false") not in ("false", "0")
            if refused.get(name, asked or getattr(self, name, False)):
                raise ConfigError(f"{name} is not supported; {instead}")
        self.bf16 = self.bf16 or (self.bf16_if_fast and _has_fast_bf16(self.use_cpu))
        if not torch.accelerator.is_available():
            # Said aloud: bf16 in a recipe for a GPU then loads on any machine, and several processes find each other.
            self.use_cpu = True
            self.dataloader_pin_memory = False  # there is nothing to pin memory for, and torch would warn
        self._take_over_sharding()
        self._choose_the_best()
        self.report_to = "none" if self.report_to is None else self.report_to
        count, rank, local = (int(os.environ.get(name) or 0) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
        # Until a run starts, and transformers makes its own.
        state = {"num_processes": max(1, count), "process_index": rank, "local_process_index": local}
        self.distributed_state = SimpleNamespace(**state)
        self._setup_devices = torch.device("cpu")  # what transformers asks for on the way, and does not look at
        TrainingArguments.__post_init__(self)
        del self._setup_devices

    def _take_over_sharding(self) -> None:
        """Transformers' FSDP knows no CPUs, adds gradients up in bf16, and shards only when training starts, after the
        frozen network was copied and the first evaluation was made."""
        if self.fsdp not in (None, False, "", "false"):
            odd = [name for name in ("fsdp_config", "eval_tasks", "show_prompts") if getattr(self, name)]
            self.sharding = "full_shard" if self.fsdp in (True, "true") else str(self.fsdp)
            if odd or self.sharding not in ("full_shard", "shard_grad_op"):
                what = f"fsdp={self.fsdp!r} with {', '.join(odd) or 'nothing else'} is not supported"
                raise ConfigError(f"{what}; use fsdp=full_shard or shard_grad_op alone: no process has the whole model")
        self.fsdp, self.fsdp_config = None, None  # transformers and accelerate must not shard a second time

    def _choose_the_best(self) -> None:
        """By which metric, and in which direction: transformers would look for it after the first evaluation."""
        if self.load_best_model_at_end or self.save_strategy == "best" or self.early_stopping_patience is not None:
            self.metric_for_best_model = self.metric_for_best_model or "cfm"
        if (metric := self.metric_for_best_model) is None:
            return
        name, known = metric.removeprefix("eval_"), (*NAMES, "reward")
        if name not in known and not name.startswith(tuple(f"{task}_" for task in self.eval_tasks)):
            ours = f"there is {', '.join(known)}, and <task>_<metric> of eval_tasks{nearest(name, known)}"
            raise ConfigError(f"metric_for_best_model={metric!r} is no metric of validation; {ours}")
        if self.greater_is_better is None:  # not transformers' rule: cross_entropy and cfm do not end with "loss"
            self.greater_is_better = not smaller_is_better(metric)

    @property
    def rows_per_step(self) -> int:
        """Rows of a batch that one optimiser step sees: micro-batches of all processes together."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def device(self) -> torch.device:
        # With several processes transformers says "cpu:0"; 5.17 loads optimisers to there, which torch refuses.
        found = super().device
        return torch.device("cpu") if found.type == "cpu" else found

    def __getstate__(self) -> dict[str, object]:
        """What is pickled into checkpoints (training_args.bin): everything but the secret."""
        return {**vars(self), "hub_token": None}


@dataclass
class SFTSettings(EBFTConfig):
    by_trl: ClassVar[bool] = True  # also in fp16: it scales the loss before it differentiates

    max_length: int = option(2048, "tokens of a training sequence; longer documents are cut", 2)
    pack_training: bool = option(False, "several documents in a training sequence; otherwise one, as TRL does")
    loss_on_answers: bool | None = option(None, "loss on answer tokens only; default: as answer_only")
    trl_options: Values = option({}, "further settings of TRL's SFTConfig by its own names; only in a recipe")
    # ---- transformers' settings with the paper's values
    learning_rate: float = option(1e-5, "learning rate of AdamW", 0)
    num_train_epochs: float = option(5.0, "passes over the data")

    @property
    def trains_on_answers(self) -> bool:
        return self.answer_only if self.loss_on_answers is None else self.loss_on_answers


@dataclass
class RLVRSettings(EBFTConfig):
    by_trl: ClassVar[bool] = True

    rewards: list[str] = option([], "what rewards add up: unit_tests, bleu, or module:function of your own")
    reward_weights: list[float] = option([], "weights of the rewards, one each; default: 1")
    generations: int = option(8, "n: answers drawn to every prompt", 2)
    generation_temperature: float = option(1.0, "sampling temperature of answers; temperature is validation's", 0.01)
    max_new_tokens: int = option(1024, "maximum length of an answer in tokens", 1)
    max_prompt_tokens: int = option(1024, "documents with longer prompts are left out", 1)
    kl_coefficient: float = option(0.0, "weight of the KL divergence from the first model (beta in TRL); 0 is off", 0)
    use_vllm: bool = option(False, "draw answers with vLLM (needs `pip install trl[vllm]` and a GPU)")
    reward_timeout: float = option(10.0, "seconds that one answer's unit tests may take", 0.1)
    reward_workers: int | None = option(None, "answers tested at once; default: one for each core", 1)
    unsafe_exec: bool = option(False, "run unit tests without a sandbox, with your own rights")
    tests_column: str = option("test_list", "column of unit tests: a list of assert statements, or a text of Python")
    reference_column: str | None = option(None, "column of reference answers for bleu; default: completion_column")
    trl_options: Values = option({}, "further settings of TRL's GRPOConfig by its own names; only in a recipe")
    # ---- transformers' settings with the paper's values; a row is one answer: 256 are 32 prompts with 8 answers each
    num_train_epochs: float = option(1.0, "passes over the data")
    gradient_accumulation_steps: int = option(16, "micro-batches a step; a row of a micro-batch is one answer", 1)


def _has_fast_bf16(use_cpu: bool) -> bool:
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_amx_tile_supported()
