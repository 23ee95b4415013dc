"""A whole training run as the commands do it: data, model, before and after, and what it leaves behind."""

from __future__ import annotations

import logging
import math
import shutil
import timeit
from pathlib import Path

import torch
from huggingface_hub import HfApi
from transformers import ProgressCallback
from transformers.trainer_callback import PrinterCallback

from ebft import loading
from ebft.config.recipe import Recipe
from ebft.errors import ConfigError, first_line
from ebft.runtime import processes
from ebft.runtime.files import share_weights
from ebft.runtime.messages import duration
from ebft.train import report
from ebft.train.callbacks import EvalTasks, Preemption, Progress
from ebft.train.measured import Measured
from ebft.train.networks import FlopCounter
from ebft.train.run_folder import FINAL, Results, RunFolder, whole
from ebft.train.sequences import Loaded, first_document, load, prompt_kinds, trained_part, warn
from ebft.train.trainer import EBFTTrainer

logger = logging.getLogger(__name__)


def plan(recipe: Recipe, method: type[Measured] = EBFTTrainer, resume: bool = False) -> list[str]:
    """`--dry-run`: what a run would do, as lines to print; nothing in processes other than the first."""
    config = recipe.training
    processes.start(config)
    loaded = load(recipe)
    if processes.rank() != 0:
        return []
    if not resume:
        RunFolder(recipe).claim(False, method.method)
    if config.eval_tasks:
        EvalTasks(None, config)
    loading.check_feature_model(config, loaded.tokenizer)  # which only a run builds
    epoch, steps = _steps(loaded, method.prepare(loaded)[0])
    held_out = "none" if loaded.validation_set is None else f"{len(loaded.validation_set):,} sequences"
    return [
        f"model       {recipe.model.model}, {loaded.model.num_parameters():,} parameters in {recipe.model.model_dtype}",
        f"trains on   {trained_part(recipe, loaded.train_set.index)}",
        f"validation  {held_out}",
        f"steps       {steps:,} ({epoch:,} an epoch), of {config.rows_per_step:,} rows each",
        *("", "The first document, as the model sees it:", *first_document(loaded)),
    ]


def _steps(loaded: Loaded, rows: int) -> tuple[int, int]:
    """Of an epoch, and of the whole run. Nobody should find out after hours that a CPU takes days: said is the time
    of the text's tokens alone, forwards and backwards, at the rate of a matrix product."""
    recipe, config = loaded.recipe, loaded.recipe.training
    epoch = math.ceil(rows / config.rows_per_step)
    steps = config.max_steps if config.max_steps > 0 else math.ceil(epoch * config.num_train_epochs)
    if config.use_cpu:
        matrix = torch.ones(1024, 1024, dtype=torch.bfloat16 if config.bf16 else torch.float32)
        product = min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=20))  # of the time that nobody disturbs
        passes = 2 if recipe.model.adapted else 3  # of a frozen base only the inputs have gradients
        tokens = int(loaded.train_set.index.lengths.sum()) * steps / max(epoch, 1) / config.world_size
        spent = duration(passes * FlopCounter(loaded.model).over(tokens, tokens) * product / (2 * 1024**3))
        words = f"computing on the CPU, where {steps:,} steps take at least {spent} beside rollouts and validation"
        asked = recipe.given.get("use_cpu")
        warn(words if asked else f"no GPU was found: {words} (set use_cpu: true if this is intended)")
    return epoch, steps


def train(recipe: Recipe, resume: bool = False, method: type[Measured] = EBFTTrainer) -> Results:
    """Run a recipe from start to end, or resume it. Returns the results before and after, in the first process."""
    args = recipe.training
    processes.start(args)
    folder, preemption = RunFolder(recipe), Preemption()
    with preemption.listen(), folder.locked():
        checkpoint = folder.claim(resume, method.method)
        # Only the final model goes to the hub: the Trainer would upload samples of the training text too.
        pushes, args.push_to_hub = args.push_to_hub and processes.rank() == 0, False
        if pushes:  # now, while a missing token costs nothing
            name = args.hub_model_id or folder.path.resolve().name
            try:
                repository = HfApi().create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
            except Exception as error:  # the library raises many kinds, for networks, tokens and names
                raise ConfigError(f"push_to_hub: {first_line(error)}; log in with `hf auth login`") from None
        loaded = load(recipe)
        data = folder.check_data(loaded.train_set)
        rows, build = method.prepare(loaded)
        _steps(loaded, rows)
        trainer = build()
        trainer.by_command = True
        trainer.remove_callback(ProgressCallback)  # of transformers, as is the next
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Progress(trainer))
        preemption.trainer = trainer
        trainer.add_callback(preemption)
        folder.describe(data, prompt_kinds(recipe.data))  # settings that were refused leave nothing
        if processes.rank() == 0:
            held_out = "" if loaded.validation_set is None else f"; {len(loaded.validation_set.index):,} for validation"
            logger.info(f"training on {trained_part(recipe, loaded.train_set.index)}{held_out}")
        _measure_and_train(trainer, checkpoint)
        with whole(folder.path / FINAL) as final:
            trainer.save_model(str(final))
            if processes.rank() == 0:
                share_weights(final)
                (final / "training_args.bin").unlink(missing_ok=True)  # pickled, and of no use without ebft
                loaded.tokenizer.save_pretrained(final)
                if (picture := report.curves(folder.path)) is not None:
                    shutil.copy(picture, final)  # for the model card, wherever the folder goes
                report.write_card(final, folder.path.name, recipe, trainer.results, method.title)
        trainer.write_results()
        if pushes:
            try:
                HfApi().upload_folder(repo_id=repository, folder_path=folder.path / FINAL, revision=args.hub_revision)
            except Exception as error:  # a run that has ended well does not fail over its upload
                logger.warning(f"not uploaded: {error}; by hand: hf upload {repository} {folder.path / FINAL}")
        return trainer.results if processes.rank() == 0 else {}


def _measure_and_train(trainer: Measured, checkpoint: Path | None) -> None:
    """Measure, train, measure. What a run that is resumed finds on disk is not measured again."""
    settings, held_out, shown = trainer.settings, trainer.held_out, dict[str, list[str]]()
    if held_out is not None and not trainer.take_over():
        # The model as it was loaded: also when the run resumes from a checkpoint that had no evaluation before it.
        # It draws no numbers that training would have drawn: a run that finds its results on disk skips it.
        with torch.random.fork_rng([settings.device] if settings.device.type == "cuda" else []):
            trainer.evaluate()
    answers = trainer.results.pop("answers", {})
    if held_out is not None and settings.show_prompts:
        shown = report.held_out_prompts(held_out, trainer.processing_class, settings.show_prompts)
        if answers.get("prompts") != shown["prompts"]:
            answers = {"before": report.answers_to(shown["prompts"], trainer)}
        trainer.results["answers"] = {**shown, "before": answers["before"]}
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if held_out is not None and "after" not in trainer.results:
        trainer.evaluate()
    if shown:
        trainer.results["answers"]["after"] = report.answers_to(shown["prompts"], trainer)
