"""What is trained, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ebft.config.settings import check, option
from ebft.data.row_format import RowFormat, fields_of, with_escapes
from ebft.errors import ConfigError


@dataclass
class ModelConfig:
    model: str = option(
        "", "folder or hub name of the model to train, or the output folder of a run; smollm2-135m, ..."
    )
    tokenizer: str | None = option(None, "folder or hub name of the tokenizer; default: the model's")
    model_dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "precision of the weights that are trained. Keep float32: a bf16 weight does not move at lr 1e-6"
    )
    trust_remote_code: bool = option(False, "run code that comes with a model from the hub")
    lora: bool = option(False, "train a LoRA adapter instead of the whole model (needs peft)")
    lora_r: int = option(16, "rank of the adapter")
    lora_alpha: int = option(32, "scale of the adapter")
    lora_dropout: float = option(0.0, "dropout of the adapter; EBFT needs 0")
    lora_target_modules: str = option("all-linear", "modules to adapt, separated by commas")
    peft: str | dict[str, Any] | None = option(
        None, "any other adapter of peft: a mapping such as {peft_type: IA3}, or an adapter_config.json or its folder"
    )
    load_in_4bit: bool = option(False, "keep the base model under an adapter in 4 bits: QLoRA (needs bitsandbytes)")

    def __post_init__(self) -> None:
        check(self, ModelConfig)
        if self.lora and self.peft is not None:
            raise ConfigError("lora=true and peft exclude each other; give one of them")
        if self.load_in_4bit and not self.adapted:
            raise ConfigError("load_in_4bit=true needs an adapter to train; set lora=true or peft")

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained instead of the model."""
        return self.lora or self.peft is not None


@dataclass
class DataConfig:
    dataset: list[str] = option(
        [], "file, folder, hub name or built-in (stdlib-code, stdlib-functions, toy-functions); several are mixed"
    )
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
    prompt_template: str | None = option(
        None, "prompts made of columns, such as '### Question:\\n{question}\\n'; the answer is completion_column"
    )
    prompt_separator: str | None = option(
        None, "between a prompt and a completion without whitespace there: '\\n' ends the prompt, ' ' begins the answer"
    )

    def __post_init__(self) -> None:
        check(self, DataConfig, validation_split=0, test_split=0, validation_sequences=1, limit_documents=1)
        for name in ("validation_split", "test_split"):
            if (value := getattr(self, name)) > 1 and value % 1:
                raise ConfigError(f"{name}={value} is no share, being above 1, and no number of documents")
        for name in ("prompt_template", "prompt_separator"):
            if value := getattr(self, name):
                setattr(self, name, with_escapes(value))
        if self.prompt_template is not None and not fields_of(self.prompt_template):
            raise ConfigError(f"prompt_template={self.prompt_template!r} names no column; write one as {{question}}")

    @property
    def columns(self) -> dict[str, str]:
        return {name: getattr(self, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}

    @property
    def row_format(self) -> RowFormat:
        return RowFormat(**self.columns, prompt_template=self.prompt_template, prompt_separator=self.prompt_separator)
