"""A whole training run as `ebft train` does it: data, model, before and after, and what it leaves behind."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, ProgressCallback
from transformers.trainer_callback import PrinterCallback

from ebft import adapters, fetch, loading
from ebft.config.recipe import Recipe, as_given
from ebft.config.training import DataConfig
from ebft.data.formats import check_tokenizer
from ebft.data.packing import DocumentIndex, SequenceDataset, mix
from ebft.data.store import TokenStore, tokenize_source
from ebft.errors import ConfigError, DataError, first_line
from ebft.loading import ADAPTER_FILE, Checkpoint
from ebft.model.backbone import embedding_size
from ebft.runtime import processes
from ebft.train import checkpoints, model_card, ruler
from ebft.train.callbacks import SHOWN, LiveProgress, StepLines, plain
from ebft.train.dry_run import show as show_dry_run
from ebft.train.sequences import check_sequences, pad_token_id
from ebft.train.trainer import EBFTTrainer

if TYPE_CHECKING:
    from ebft.baselines.trainers import Method

CONFIG_FILE = "recipe.yaml"
RESULTS_FILE = "results.json"
DATA_FILE = "data.json"
RESOLVED_FILE = "resolved.json"


def load_tokenizer(recipe: Recipe) -> Any:
    field = "tokenizer" if recipe.model.tokenizer else "model"
    name = fetch.resolve(recipe.model.tokenizer or recipe.model.model)
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise ConfigError(f"{field}={name!r}: no such folder")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=recipe.model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {field}={name!r} cannot be loaded: {first_line(error)}") from None


def load_model(recipe: Recipe, trl: bool = False) -> Any:
    """The model to train, for EBFT or for a trainer of TRL."""
    name = fetch.resolve(recipe.model.model)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if recipe.model.model_dtype not in dtypes:
        raise ConfigError(f"model_dtype={recipe.model.model_dtype!r} is not one of {', '.join(dtypes)}")
    dtype = dtypes[recipe.model.model_dtype]
    if (Path(name).expanduser() / ADAPTER_FILE).is_file():
        if recipe.model.load_in_4bit:
            raise ConfigError(
                f"model={name!r} is an adapter; make a model of it first: ebft export {name} --output ..."
            )
        return _merged(recipe, name, dtype)
    if recipe.model.load_in_4bit and trl:
        raise ConfigError("load_in_4bit=true is for ebft train only; leave it out")
    if recipe.model.adapted and recipe.training.bf16 and not trl:
        dtype = torch.bfloat16  # the base model does not train: it needs no float32 weights, not even on its way
    options: dict[str, Any] = {}
    if recipe.model.load_in_4bit:
        adapters.check_four_bit(recipe.training)
        options = adapters.four_bit(recipe.training.device)
    try:
        if recipe.training.sharding is not None and recipe.training.process_index > 0:
            with torch.device("meta"):  # no weights: they come from the first process, a part of them
                return loading.model_like(name, dtype, recipe.model.trust_remote_code)
        return loading.load_model(name, dtype, recipe.model.trust_remote_code, **options)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={name!r} cannot be loaded: {first_line(error)}") from None


def _merged(recipe: Recipe, name: str, dtype: torch.dtype) -> Any:
    """A base model with a trained adapter merged into its weights: training begins anew from there."""
    found = Checkpoint.find(name)
    try:
        from peft import PeftModel
    except ImportError:
        raise ConfigError(
            f"model={name!r} is an adapter, which needs peft; install it with `pip install ebft[peft]`"
        ) from None
    try:
        base: Any = AutoModelForCausalLM.from_pretrained(
            found.base, dtype=dtype, trust_remote_code=recipe.model.trust_remote_code
        )
        merged: Any = PeftModel.from_pretrained(base, str(found.adapter))
        return merged.merge_and_unload().requires_grad_(True)  # peft had frozen the base
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model={name!r} cannot be loaded: {first_line(error)}") from None


def load_data(
    recipe: Recipe, tokenizer: Any, needs_anchors: bool = True
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences. EBFT needs an anchor somewhere in the training text; baselines do not."""
    data, training = recipe.data, recipe.training

    def tokenized(source: str, split: str) -> DocumentIndex:
        store: TokenStore = tokenize_source(source, tokenizer, split, data.columns, data.limit_documents)
        return DocumentIndex.of(store)

    indices = [tokenized(source, data.dataset_split) for source in data.dataset]
    index = (
        mix(indices, data.dataset_weights or [len(i) for i in indices], data.split_seed)
        if len(indices) > 1
        else indices[0]
    )
    validation: DocumentIndex | None = None
    if data.validation_dataset is not None:
        validation = tokenized(data.validation_dataset, data.validation_dataset_split)
    elif data.validation_split:
        if len(index) < 2:
            raise DataError("one document cannot be split; set validation_split=0 or give a validation_dataset")
        index, validation = index.split(data.validation_split, data.split_seed)
    pad = pad_token_id(tokenizer)
    train_set = SequenceDataset(index, training.context_length, training.packing, pad)
    if needs_anchors:
        check_sequences(train_set, training)
    if validation is None:
        return train_set, None
    return train_set, _first_sequences(
        SequenceDataset(validation, training.context_length, training.packing, pad), data
    )


def _first_sequences(dataset: SequenceDataset, data: DataConfig) -> SequenceDataset:
    """The documents that fill the first `validation_sequences` sequences."""
    if len(dataset) <= data.validation_sequences:
        return dataset
    if dataset.packing:
        tokens = data.validation_sequences * dataset.context_length
        count = int((dataset.ends < tokens).sum()) + 1
        dataset = SequenceDataset(
            dataset.index.select(_range(count)), dataset.context_length, True, dataset.pad_token_id
        )
        dataset.total_tokens = min(dataset.total_tokens, tokens)
        return dataset
    chosen = dataset.index.select(_range(data.validation_sequences))
    return SequenceDataset(chosen, dataset.context_length, False, dataset.pad_token_id)


def _range(count: int) -> Any:
    import numpy as np

    return np.arange(count)


def train(
    recipe: Recipe, resume: bool, dry_run: bool, command: Sequence[str], method: Method | None = None
) -> dict[str, Any]:
    """Run a recipe from start to end, or go on with it, by EBFT or by the method of a baseline.

    Returns the results before and after.
    """
    output = Path(recipe.training.output_dir or "")
    name = "ebft" if method is None else method.name
    first = recipe.training.process_index == 0
    with recipe.training.main_process_first(local=False):  # it clears away what was cut off
        resume_from = None if dry_run else _claim(output, resume, recipe, name)
    tokenizer = load_tokenizer(recipe)
    check_tokenizer(tokenizer)
    with recipe.training.main_process_first():  # it tokenises; the others find the tokens in the cache
        train_set, validation_set = load_data(recipe, tokenizer, needs_anchors=method is None)
    asked = recipe.training.eval_strategy
    if validation_set is None and asked != "no":
        raise ConfigError(
            f"eval_strategy={getattr(asked, 'value', asked)} needs validation data; set validation_split or "
            "validation_dataset, or eval_strategy=no"
        )
    data = _describe_data(train_set)
    if resume_from is not None:
        _check_same_data(output, data)
    model = load_model(recipe, trl=method is not None)
    check_tokenizer(tokenizer, embedding_size(model))
    if dry_run:
        show = show_dry_run if method is None else method.plan
        if first:
            show(recipe, train_set, validation_set, model, tokenizer)
        return {}
    if "disable_tqdm" not in recipe.given:
        recipe.training.disable_tqdm = False  # transformers hides the bar when its log level is raised
    trainer: Any
    if method is None:
        trainer = EBFTTrainer(
            model, recipe.training, train_set, validation_set, tokenizer, adapters.peft_config(recipe)
        )
    else:
        trainer = method.build(recipe, train_set, validation_set, model, tokenizer)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    shown = SHOWN if method is None else method.shown
    trainer.add_callback(StepLines(shown) if recipe.training.disable_tqdm else LiveProgress(shown))

    # Only now: settings that the trainer refuses leave nothing behind.
    if first:
        asked_for = as_given("use_cpu", recipe.given, type(recipe.training))
        if not torch.accelerator.is_available() and not asked_for:
            print("ebft: no GPU was found: computing on the CPU (use_cpu: true if that is meant)", file=sys.stderr)
        output.mkdir(parents=True, exist_ok=True)
        _save_recipe(recipe, output)
        (output / DATA_FILE).write_text(json.dumps(data, indent=1))
    results = processes.from_first(_read_results(output))
    results["method"] = name
    for ended in ("after", "steps", "spent"):  # of a run that was finished, and goes on
        results.pop(ended, None)
    if validation_set is not None:
        results["ruler"] = ruler.identity(recipe.training, trainer.features, validation_set)
    if first:
        _write_results(output, results)
    if validation_set is not None and "before" not in results:
        # The model as it was loaded: also when the run goes on from a checkpoint that had no evaluation before it.
        results["before"] = trainer.evaluate()
        if first:
            _write_results(output, results)
    trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    if validation_set is not None:
        step, found = trainer.evaluated
        # The last step was evaluated already, unless another model was loaded since.
        known = step == trainer.state.global_step and not trainer.args.load_best_model_at_end
        results["after"] = found if known else trainer.evaluate()
    results["steps"] = trainer.state.global_step
    results["spent"] = {key.removeprefix("spent/"): value for key, value in trainer.spent.totals().items()}
    final = output / "final"
    trainer.save_model(str(final))
    if first:
        tokenizer.save_pretrained(final)
        _write_results(output, results)
        if (picture := model_card.curves(output)) is not None:
            shutil.copy(picture, final)  # for the model card, wherever the folder goes
        model_card.model_card(output, recipe, results, command, method)
    return results if first else {}


# What may change when a run goes on: how long, and what it shows and keeps.
_MAY_CHANGE = ("output_dir", "max_steps", "num_train_epochs", "samples_every", "disable_tqdm", "report_to", "run_name")
# How a model is sharded may change too; whether it is, the checkpoint says.
_MAY_CHANGE_PREFIXES = ("logging_", "save_", "eval_", "per_device_eval_", "ddp_", "fsdp")
# These may change with the number of processes, as long as their product with it stays.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def _check_same_run(output: Path, recipe: Recipe) -> None:
    """Going on with another model, other data or another method would be a different run under the same name."""
    file = output / CONFIG_FILE
    before = yaml.safe_load(file.read_text()) if file.exists() else None
    if not isinstance(before, dict):
        return
    resolved, training = output / RESOLVED_FILE, recipe.training
    old_batch = json.loads(resolved.read_text()).get("sequences_per_step") if resolved.exists() else None
    if old_batch not in (None, batch := recipe.training.rows_per_step):
        raise ConfigError(
            f"output_dir={output} holds a run of {old_batch} sequences per step, not {batch}; choose "
            f"per_device_train_batch_size x gradient_accumulation_steps x processes ({training.world_size} here) so "
            f"that it is {old_batch}, or choose another folder"
        )
    for name in sorted(before.keys() | recipe.given.keys()):
        if name in _MAY_CHANGE or name.startswith(_MAY_CHANGE_PREFIXES) or (name in _BATCH and old_batch is not None):
            continue
        old, new = (as_given(name, values, type(recipe.training)) for values in (before, recipe.given))
        if old != new:
            raise ConfigError(
                f"output_dir={output} holds a run with {name}={old!r}, not {new!r}; go on with the same settings, or "
                "choose another folder"
            )


def _describe_data(train_set: SequenceDataset) -> dict[str, Any]:
    return {
        "documents": len(train_set.index),
        "tokens": train_set.total_tokens,
        "checksums": [store.checksum() for store in train_set.index.stores],
    }


def _check_same_data(output: Path, data: dict[str, Any]) -> None:
    """The same name may stand for other data by now; a run that went on with them would be neither run."""
    file = output / DATA_FILE
    before = json.loads(file.read_text()) if file.exists() else data
    if before != data:
        raise ConfigError(
            f"the dataset has changed since the run in output_dir={output} began: {before['documents']} documents and "
            f"{before['tokens']} tokens then, {data['documents']} and {data['tokens']} now, or other text; put the old "
            "data back, or choose another folder"
        )


def _claim(output: Path, resume: bool, recipe: Recipe, method: str = "ebft") -> Path | None:
    """Make sure the output folder is ours to write in; returns the checkpoint to go on from."""
    used = (output / CONFIG_FILE).exists() or bool(checkpoints.all_checkpoints(output))
    if used and not resume:
        raise ConfigError(f"output_dir={output} already holds a run; go on with --resume, or choose another folder")
    if not used and output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"output_dir={output} is not empty and holds no run; choose another folder")
    if used:
        made_by = _read_results(output).get("method", "ebft")
        if made_by != method:
            raise ConfigError(f"output_dir={output} holds a run of {made_by}, not of {method}; choose another folder")
        _check_same_run(output, recipe)
    first = recipe.training.process_index == 0
    for cut_off in checkpoints.remove_incomplete(output) if used and first else ():
        print(f"{cut_off.name} was cut off while it was written; it is not used", file=sys.stderr)
    last = checkpoints.last_checkpoint(output) if used else None
    if last is not None:
        checkpoints.check_kind(last, recipe.training.sharding is not None)
    if not first:
        return last
    if last is not None:
        print(f"going on from {last}", file=sys.stderr)
    elif used:
        print("no whole checkpoint yet: starting from the beginning", file=sys.stderr)
    return last


def _save_recipe(recipe: Recipe, output: Path) -> None:
    resolved = {**asdict(recipe.model), **asdict(recipe.data), **recipe.training.to_dict()}
    resolved["sequences_per_step"] = recipe.training.rows_per_step
    resolved["sharding"] = None if recipe.training.sharding is None else asdict(recipe.training.sharding)
    text = "# What was set, by recipe and flags.\n" + yaml.safe_dump(recipe.given, sort_keys=False)
    (output / CONFIG_FILE).write_text(text)
    (output / RESOLVED_FILE).write_text(json.dumps(resolved, indent=1, default=str))


def _read_results(output: Path) -> dict[str, Any]:
    file = output / RESULTS_FILE
    return json.loads(file.read_text()) if file.exists() else {}


def _write_results(output: Path, results: dict[str, Any]) -> None:
    partial = output / f"{RESULTS_FILE}.partial"
    partial.write_text(json.dumps(plain(results), indent=1))
    partial.replace(output / RESULTS_FILE)
