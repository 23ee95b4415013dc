"""What happens beside training, EBFT's or a baseline's: metrics file, checkpoint marks, moving average, samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import IntervalStrategy

from ebft.config.training import EBFTConfig
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, write_text
from ebft.runtime.sharding import is_sharded
from ebft.train import checkpoints
from ebft.train.advice import WarmUpAdvice
from ebft.train.eval_callback import EvalTasks
from ebft.train.samples import write_table

AVERAGE_FILE = "feature_average.safetensors"


def standard(trainer: Any, args: EBFTConfig) -> list[TrainerCallback]:
    own = [
        MetricsFile(),
        trainer.costs,
        Checkpoints(trainer),
        FeatureAverage(trainer),
        Samples(trainer),
        OptimizerTime(trainer),
        LastStepLogged(),
        WarmUpAdvice(),
    ]
    return [*own, EvalTasks(trainer, args)] if args.eval_tasks else own


def keep_tensorboard_here(trainer: Any) -> None:
    """An evaluation before training would otherwise open the log in the working directory."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(Path(trainer.args.output_dir) / "runs")


class MetricsFile(TrainerCallback):
    """Every log entry as a line of `metrics.jsonl`. After a resume, lines beyond the checkpoint are dropped.

    What is measured after training with `load_best_model_at_end` is of the model of an earlier step: `model_step`.
    """

    def __init__(self) -> None:
        self.model_step: int | None = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self.model_step = state.best_global_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.model_step = None
        file = Path(args.output_dir) / "metrics.jsonl"
        if not state.is_world_process_zero or not file.exists():
            return
        kept = []
        for line in file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line a killed run was writing
            if entry["step"] <= state.global_step:
                kept.append(line)
        write_text(file, "".join(f"{line}\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        entry = {"step": state.global_step, **json_ready(logs)}
        if self.model_step is not None:
            entry["model_step"] = self.model_step
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")


class LastStepLogged(TrainerCallback):
    """A run shorter than `logging_steps` would leave no metrics at all."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step >= state.max_steps and args.logging_strategy != IntervalStrategy.NO:
            control.should_log = True
        return control


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as complete after it is written, then deletes old ones; asks for log-spaced ones."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.limit: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer would delete old checkpoints before the new one is marked.
        if args.save_total_limit is not None:
            self.limit, args.save_total_limit = args.save_total_limit, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        step = state.global_step
        if args.save_log_spaced and step & (step - 1) == 0:
            control.should_save = True
        if control.should_save or step >= state.max_steps:
            self.trainer.deferred_checks.run(wait=True)  # a model that has diverged is not worth keeping
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        features = self.trainer.features
        if features is not None and features.source == "average":
            if is_sharded(features.network):
                sharding.save(folder / sharding.AVERAGE, features.network.state_dict())
            elif state.is_world_process_zero and folder.exists():
                save_file(features.network.state_dict(), folder / AVERAGE_FILE)
        processes.barrier()  # the others have written their files too; if one has died, there will be no mark
        if not state.is_world_process_zero or not folder.exists():
            return
        checkpoints.mark_complete(folder)
        keep = {Path(state.best_model_checkpoint)} if state.best_model_checkpoint else set()
        if args.save_log_spaced:
            keep |= {p for p in checkpoints.complete_checkpoints(args.output_dir) if _is_power_of_two(p)}
        checkpoints.rotate(args.output_dir, self.limit, keep)
        self.trainer.costs.pause()


class FeatureAverage(TrainerCallback):
    """Moves the feature network after the model, with feature_source=average, and restores it on resume."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        features = self.trainer.features
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if features.source != "average" or not state.global_step:
            return
        if (folder / sharding.AVERAGE).exists():
            sharding.load(folder / sharding.AVERAGE, features.network.state_dict())
        elif (folder / AVERAGE_FILE).exists():
            features.network.load_state_dict(load_file(folder / AVERAGE_FILE))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.features.source == "average":
            self.trainer.features.update_average(self.trainer.model)


class Samples(TrainerCallback):
    """A table of contexts, truths and completions, every `samples_every` steps."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        window = self.trainer.window
        due = args.samples_every and (state.global_step % args.samples_every == 0 or state.global_step == 1)
        if due and window is not None and state.is_world_process_zero:
            write_table(
                Path(args.output_dir) / "samples", state.global_step, window.example, self.trainer.processing_class
            )


class OptimizerTime(TrainerCallback):
    """The optimiser's step, timed beside the phases that the trainer times itself."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.start = self.trainer.clock.mark()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.clock.add("optimizer", self.start)


def _is_power_of_two(checkpoint: Path) -> bool:
    step = checkpoints.step_of(checkpoint)
    return step > 0 and step & (step - 1) == 0
