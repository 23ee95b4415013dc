"""A whole training run as the commands do it: data, model, before and after, and what it leaves behind."""

from __future__ import annotations

import logging
import math
import shutil
import sys
from typing import Any

import torch
from transformers import ProgressCallback
from transformers.trainer_callback import PrinterCallback

from ebft import validation
from ebft.config.recipe import Recipe, as_given
from ebft.data.formats import check_tokenizer
from ebft.errors import ConfigError
from ebft.loading import check_feature_model, load_model, load_tokenizer
from ebft.method.measures import as_logged, differences
from ebft.model.backbone import embedding_size, end_tokens_of
from ebft.plan import cpu_seconds
from ebft.runtime import processes
from ebft.runtime.files import json_ready, share_weights
from ebft.train import hub, model_card, validation_records
from ebft.train.advice import Advice
from ebft.train.answers_before_after import HeldOutPrompts
from ebft.train.dry_run import flops_per_step
from ebft.train.early_stopping import EarlyStopping
from ebft.train.eval_callback import read_problems
from ebft.train.live_progress import LiveProgress, StepLines
from ebft.train.output_folder import refusal
from ebft.train.preemption import Preemption
from ebft.train.python_run import PythonRun
from ebft.train.run_folder import RunFolder, outcome
from ebft.train.sequences import load_data, prompt_kinds
from ebft.train.training_method import EBFT, Loaded, TrainingMethod

logger = logging.getLogger(__name__)

LONG_ON_CPU = 3  # hours


def plan(recipe: Recipe, method: TrainingMethod = EBFT, resume: bool = False) -> list[str]:
    """`--dry-run`: what a run would do, as lines to print; nothing in processes other than the first."""
    processes.start(recipe.training)
    loaded = _load(recipe, method, None)
    _check_device(loaded, begins=False)
    if recipe.training.process_index != 0:
        return []
    if (why := refusal(RunFolder(recipe).path, resume)) is not None:
        logger.warning(f"the run itself would be refused: {why}")
    if tasks := recipe.training.eval_tasks:
        read_problems(tasks, recipe.training.eval_task_options)
    check_feature_model(recipe.training, loaded.tokenizer)  # which only a run builds
    return method.plan(loaded)


def train(recipe: Recipe, resume: bool = False, method: TrainingMethod = EBFT) -> dict[str, Any]:
    """Run a recipe from start to end, or resume it. Returns the results before and after, in the first process."""
    processes.start(recipe.training)
    folder = RunFolder(recipe)
    preemption = Preemption()
    with preemption.listen(), folder.locked():
        return _train(recipe, folder, resume, method, preemption)


def _train(
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    method: TrainingMethod,
    preemption: Preemption,
) -> dict[str, Any]:
    args = recipe.training
    first = args.process_index == 0
    checkpoint = folder.claim(resume, method.name)
    repository = hub.take_over(args)
    loaded = _load(recipe, method, folder if checkpoint is not None else None)
    _check_device(loaded, begins=True)
    trainer = _build(loaded, method)
    preemption.attach(trainer)

    # Only now: settings that the trainer refuses leave nothing behind.
    if first:
        folder.describe_run(loaded.train_set, prompt_kinds(recipe))
    results = processes.from_first(folder.read_results())
    results["method"] = method.name
    for ended in ("after", "change", "steps", "spent"):  # of a run that was finished, and is continued
        results.pop(ended, None)
    if loaded.validation_set is not None:
        identity = validation.identity(args, trainer.features, loaded.validation_set)
        # Measured in another way, or by a version that did not keep records, it has no difference from what comes.
        records = processes.from_first(validation_records.read(folder.path, "before"))
        if not records or results.get("ruler") != json_ready(identity):
            results.pop("before", None)
        results["ruler"] = identity  # under the name that results have always had it by
    if first:
        folder.write_results(results)
    if loaded.validation_set is not None and "before" not in results:
        # The model as it was loaded: also when the run resumes from a checkpoint that had no evaluation before it.
        # It draws no numbers that training would have drawn: a run that finds its results on disk skips it.
        with torch.random.fork_rng([args.device] if args.device.type == "cuda" else []):
            results["before"] = trainer.evaluate()
        records = trainer.evaluated.records
        if first:
            validation_records.write(folder.path, "before", records)
            folder.write_results(results)
    prompts = None
    if loaded.validation_set is not None and args.show_prompts:
        prompts = HeldOutPrompts(loaded.validation_set, loaded.tokenizer, args.show_prompts, args.temperature)
        shown = results.get("answers", {})
        if shown.get("prompts") != prompts.prompts:  # else the run resumes, and has them on disk
            shown = {"prompts": prompts.prompts, "text": prompts.truths, "before": prompts.answers(trainer)}
        results["answers"] = shown
        if first:
            folder.write_results(results)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if loaded.validation_set is not None:
        last = trainer.evaluated
        # The last step was evaluated already, unless another model was loaded since.
        known = last and last.step == trainer.state.global_step and not trainer.args.load_best_model_at_end
        results["after"] = last.metrics if known else trainer.evaluate()
        results["change"] = as_logged(differences(trainer.evaluated.records, records))
        if first:
            validation_records.write(folder.path, "after", trainer.evaluated.records)
    if prompts is not None:
        results["answers"]["after"] = prompts.answers(trainer)
    results |= outcome(trainer)
    with folder.writing_final() as final:
        trainer.save_model(str(final))
        if first:
            share_weights(final)
            (final / "training_args.bin").unlink(missing_ok=True)  # pickled, and of no use without ebft
            loaded.tokenizer.save_pretrained(final)
            if (picture := model_card.curves(folder.path)) is not None:
                shutil.copy(picture, final)  # for the model card, wherever the folder goes
            model_card.write(final, folder.path.name, recipe, results, method)
    if not first:
        return {}
    folder.write_results(results)
    if repository is not None:
        hub.upload(repository, folder.final, args.hub_revision)
    return results


def _load(recipe: Recipe, method: TrainingMethod, resumed: RunFolder | None) -> Loaded:
    """Data, tokenizer and model, with everything that can be wrong about them."""
    data, asked = recipe.data, recipe.training.eval_strategy
    if asked != "no" and not data.validation_split and data.validation_dataset is None:
        raise ConfigError(
            f"eval_strategy={getattr(asked, 'value', asked)} needs validation data; set validation_split or "
            "validation_dataset, or eval_strategy=no"
        )
    tokenizer = load_tokenizer(recipe)
    check_tokenizer(tokenizer)
    with recipe.training.main_process_first():  # it tokenises; the others find the tokens in the cache
        train_set, validation_set = load_data(recipe, tokenizer, method.needs_anchors)
    if resumed is not None:
        resumed.check_same_data(train_set)
    model = load_model(recipe)
    check_tokenizer(tokenizer, embedding_size(model), end_tokens_of(model))
    return Loaded(recipe, train_set, validation_set, model, tokenizer)


def _check_device(loaded: Loaded, begins: bool) -> None:
    """A run that would take long on a CPU begins there only if that was asked for."""
    recipe, args = loaded.recipe, loaded.recipe.training
    if torch.accelerator.is_available() or as_given("use_cpu", recipe.given, recipe.command):
        return
    rows, per_step = len(loaded.train_set), args.rows_per_step
    steps = args.max_steps if args.max_steps > 0 else math.ceil(rows / per_step) * args.num_train_epochs
    anchors = (args.context_length - args.horizon) // args.stride if args.anchors == "strided" else 1
    packed = args.context_length + anchors * args.samples * args.horizon
    parameters = sum(p.numel() for p in loaded.model.parameters())
    flops = steps * flops_per_step(parameters, min(per_step, rows), packed)
    hours = processes.from_first(cpu_seconds(flops, args.bf16)) / 3600  # so that all processes decide alike
    if hours < LONG_ON_CPU or recipe.command != "train":
        word = "no GPU was found: computing on the CPU (set use_cpu: true if this is intended)"
    else:
        how_long = f"{hours:,.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
        word = (
            f"no GPU was found, and this machine's CPU would take at least {how_long}: too slow; use a GPU or a "
            "smaller model (--config quickstart takes minutes), or go on all the same with --use_cpu true"
        )
        if begins:
            raise ConfigError(word)
    if args.process_index == 0:
        logger.warning(word)


def _build(loaded: Loaded, method: TrainingMethod) -> Any:
    """The trainer, with ebft's own progress instead of transformers'."""
    args = loaded.recipe.training
    if "disable_tqdm" not in loaded.recipe.given:
        args.disable_tqdm = False  # transformers hides the bar when its log level is raised
    trainer = method.build(loaded)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(PythonRun)  # a run by a command leaves more
    trainer.add_callback(Advice())
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold))
    shows_bar = sys.stderr.isatty() and not args.disable_tqdm
    trainer.add_callback(LiveProgress(method.shown) if shows_bar else StepLines(method.shown))
    return trainer
