"""What is trained, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ebft.config.settings import Values, check, option
from ebft.data.row_format import RowFormat, with_escapes
from ebft.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass
class ModelConfig:
    model: str = option("", "folder or hub name of the model to train, or a run's output folder; smollm2-135m, ...")
    tokenizer: str | None = option(None, "folder or hub name of the tokenizer; default: the model's")
    model_dtype: Dtype = option("float32", "of the trained weights; keep float32: bf16 does not move at lr 1e-6")
    trust_remote_code: bool = option(False, "run code that comes with a model from the hub")
    lora: bool = option(False, "train a LoRA adapter instead of the whole model (needs peft)")
    lora_r: int = option(16, "rank of the adapter", 1)
    lora_alpha: int = option(32, "scale of the adapter")
    lora_dropout: float = option(0.0, "dropout of the adapter; EBFT needs 0")
    lora_target_modules: str = option("all-linear", "modules to adapt, separated by commas")
    peft: str | Values | None = option(None, "another adapter of peft: {peft_type: IA3}, adapter_config.json")
    load_in_4bit: bool = option(False, "keep the base model under an adapter in 4 bits: QLoRA (needs bitsandbytes)")

    def __post_init__(self) -> None:
        check(self)
        if (self.lora and self.peft is not None) or (self.load_in_4bit and not self.adapted):
            raise ConfigError("lora=true and peft exclude each other, and load_in_4bit=true needs one of them")

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained instead of the model."""
        return self.lora or self.peft is not None


@dataclass
class DataConfig:
    dataset: list[str] = option([], "files, folders, hub names or built-ins (stdlib-code, toy-functions, ...), mixed")
    dataset_weights: list[float] = option([], "proportions of a mixture, one a dataset; default: all of everything", 0)
    dataset_split: str = option("train", "split of a hub dataset or of a folder with files named by split")
    validation_dataset: str | None = option(None, "where validation rows come from, if not from the dataset")
    validation_dataset_split: str = option("validation", "its split")
    validation_split: float = option(0.02, "share (below 1) or number of documents held out; 0: no validation", 0)
    test_split: float = option(0.0, "the same, kept from validation too, for `ebft eval --test-split`; 0: none", 0)
    validation_sequences: int = option(64, "maximum number of sequences in an evaluation", 1)
    limit_documents: int | None = option(None, "maximum number of documents to read from each dataset", 1)
    split_seed: int = option(0, "seed of the split and of mixtures", 0)
    text_column: str = option("text", "column of plain text")
    prompt_column: str = option("prompt", "column of prompts")
    completion_column: str = option("completion", "column of completions")
    messages_column: str = option("messages", "column of conversations")
    prompt_template: str | None = option(None, "a prompt made of columns, such as 'Question: {question}\\n'")
    prompt_separator: str | None = option(None, "where there is no whitespace: '\\n' ends prompts, ' ' begins answers")

    def __post_init__(self) -> None:
        check(self)
        self.prompt_template = self.prompt_template and with_escapes(self.prompt_template)
        self.prompt_separator = self.prompt_separator and with_escapes(self.prompt_separator)

    @property
    def columns(self) -> dict[str, str]:
        return {name: getattr(self, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}

    @property
    def row_format(self) -> RowFormat:
        return RowFormat(**self.columns, prompt_template=self.prompt_template, prompt_separator=self.prompt_separator)
