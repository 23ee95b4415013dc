"""What is trained, on what, and how a run behaves: settings that are read before torch and transformers load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ebft.config.settings import Values, check, option
from ebft.data.row_format import RowFormat, fields_of, with_escapes
from ebft.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "float16"]
Task = Literal["calibration", "humaneval", "mbpp", "multipl-e", "translation"]
TASKS = get_args(Task)  # of `ebft eval`


@dataclass
class ModelConfig:
    model: str = option("", "folder or hub name of the model to train, or a run's output folder; smollm2-135m, ...")
    tokenizer: str | None = option(None, "folder or hub name of the tokenizer; default: the model's")
    model_dtype: Dtype = option("float32", "of the trained weights; keep float32: bf16 does not move at lr 1e-6")
    trust_remote_code: bool = option(False, "run code that comes with a model from the hub")
    lora: bool = option(False, "train a LoRA adapter instead of the whole model (needs peft)")
    lora_r: int = option(16, "rank of the adapter")
    lora_alpha: int = option(32, "scale of the adapter")
    lora_dropout: float = option(0.0, "dropout of the adapter; EBFT needs 0")
    lora_target_modules: str = option("all-linear", "modules to adapt, separated by commas")
    peft: str | Values | None = option(None, "another adapter of peft: {peft_type: IA3}, adapter_config.json")
    load_in_4bit: bool = option(False, "keep the base model under an adapter in 4 bits: QLoRA (needs bitsandbytes)")

    def __post_init__(self) -> None:
        check(self, ModelConfig)
        if (self.lora and self.peft is not None) or (self.load_in_4bit and not self.adapted):
            raise ConfigError("lora=true and peft exclude each other, and load_in_4bit=true needs one of them")

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained instead of the model."""
        return self.lora or self.peft is not None


@dataclass
class DataConfig:
    dataset: list[str] = option([], "files, folders, hub names or built-ins (stdlib-code, toy-functions, ...), mixed")
    dataset_weights: list[float] = option([], "proportions of a mixture, one per dataset; default: all of everything")
    dataset_split: str = option("train", "split of a hub dataset or of a folder with files named by split")
    validation_dataset: str | None = option(None, "where validation rows come from, if not from the dataset")
    validation_dataset_split: str = option("validation", "its split")
    validation_split: float = option(0.02, "share (below 1) or number of documents held out; 0: no validation")
    test_split: float = option(0.0, "the same, kept from validation too, for `ebft eval --test-split`; 0: none")
    validation_sequences: int = option(64, "maximum number of sequences in an evaluation")
    limit_documents: int | None = option(None, "maximum number of documents to read from each dataset")
    split_seed: int = option(0, "seed of the split and of mixtures")
    text_column: str = option("text", "column of plain text")
    prompt_column: str = option("prompt", "column of prompts")
    completion_column: str = option("completion", "column of completions")
    messages_column: str = option("messages", "column of conversations")
    prompt_template: str | None = option(None, "a prompt made of columns, such as 'Question: {question}\\n'")
    prompt_separator: str | None = option(None, "where there is no whitespace: '\\n' ends prompts, ' ' begins answers")

    def __post_init__(self) -> None:
        check(
            self, DataConfig, validation_split=0, test_split=0, split_seed=0, validation_sequences=1, limit_documents=1
        )
        self.prompt_template = self.prompt_template and with_escapes(self.prompt_template)
        self.prompt_separator = self.prompt_separator and with_escapes(self.prompt_separator)
        if self.prompt_template is not None:
            fields_of(self.prompt_template)  # an error if it has none

    @property
    def columns(self) -> dict[str, str]:
        return {name: getattr(self, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}

    @property
    def row_format(self) -> RowFormat:
        return RowFormat(**self.columns, prompt_template=self.prompt_template, prompt_separator=self.prompt_separator)


@dataclass
class RunningConfig:
    """How a run behaves beyond what transformers' settings say, and those of its settings with other defaults here."""

    bf16_if_fast: bool = option(False, "bf16=true where the hardware has units for it (GPUs since Ampere, AMX)")
    compile_layers: bool | None = option(None, "torch.compile the layers; default: on a GPU, or with torch_compile")
    rollout_batch_size: int | None = option(None, "sequences rolled out at once; default: a whole accumulation window")
    disable_dropout: bool = option(True, "set the model's dropouts to 0: EBFT needs the log-probs it sampled from")
    save_log_spaced: bool = option(False, "also save checkpoints at steps 1, 2, 4, 8, ...")
    samples_every: int = option(50, "write a table of contexts, truths and completions every N steps; 0: never")
    show_prompts: int = option(0, "held-out prompts to answer before and after training, shown at the end; 0: none")
    early_stopping_patience: int | None = option(None, "stop after N evaluations without a better metric (cfm)")
    early_stopping_threshold: float = option(0.0, "what counts as better must be so by more than this")
    max_reward: float = option(1e4, "stop if the mean reward grows beyond this")
    eval_tasks: list[Task] = option([], f"tasks of `ebft eval` to run while training: {', '.join(TASKS)}")
    eval_tasks_every: int | None = option(None, "run eval_tasks every N steps; default: at every evaluation")
    eval_task_options: Values = option({}, "options of `ebft eval` for them: {limit: 20}; only in a recipe")

    # ---- settings of transformers, most of them for the paper's values
    per_device_train_batch_size: int = option(16, "sequences per process and forward pass")
    per_device_eval_batch_size: int = option(8, "sequences per process in evaluation")
    learning_rate: float = option(1e-6, "learning rate of AdamW")
    lr_scheduler_type: str = option("constant_with_warmup", "learning rate schedule")
    warmup_steps: float = option(0.03, "warm-up: a share of all steps below 1, else steps")
    adam_beta2: float = option(0.95, "second beta of AdamW")
    num_train_epochs: float = option(2.0, "passes over the data")
    logging_steps: float = option(10, "number of steps between log entries")
    save_total_limit: int | None = option(3, "checkpoints kept; the best one is kept besides")
    report_to: str | list[str] | None = option("none", "tensorboard, wandb, trackio, a list of these, all, or none")
    logging_nan_inf_filter: bool = option(False, "hide NaN losses in logs; EBFT stops at them")
    remove_unused_columns: bool = option(False, "EBFT needs all columns of its datasets")
    fsdp: str | bool | None = option(None, "FSDP2: full_shard, or shard_grad_op, which keeps weights until backward")
    ddp_timeout: int = option(1800, "seconds after which a process gives up on another one that does not answer")

    def __post_init__(self) -> None:
        counts = ["per_device_train_batch_size", "per_device_eval_batch_size", "rollout_batch_size"]
        counts += ["eval_tasks_every", "early_stopping_patience"]
        check(self, RunningConfig, **dict.fromkeys(counts, 1), learning_rate=0, show_prompts=0)
