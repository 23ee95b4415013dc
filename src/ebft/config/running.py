"""How a run behaves beyond what transformers' settings say: compiling, saving, evaluation tasks, safety."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ebft.config.evaluation import TASKS
from ebft.config.fields import at_least, option
from ebft.errors import ConfigError, nearest

_running = partial(option, group="running")


@dataclass
class RunningConfig:
    bf16_if_fast: bool = _running(
        False, "bf16=true where the hardware has units for it (GPUs since Ampere, CPUs with AMX)"
    )
    compile_layers: bool | None = _running(
        None, "compile the model's layers with torch.compile; default: on a GPU, or with torch_compile"
    )
    rollout_batch_size: int | None = _running(
        None, "sequences rolled out at once; default: a whole accumulation window"
    )
    disable_dropout: bool = _running(True, "set the model's dropouts to 0: EBFT needs the log-probs it sampled from")
    save_log_spaced: bool = _running(False, "also save checkpoints at steps 1, 2, 4, 8, ...")
    samples_every: int = _running(50, "write a table of contexts, truths and completions every N steps; 0: never")
    show_prompts: int = _running(
        0, "number of held-out prompts to answer before and after training, shown at the end; 0: none"
    )
    early_stopping_patience: int | None = _running(
        None, "stop after N evaluations without a better metric_for_best_model (cfm); default: never"
    )
    early_stopping_threshold: float = _running(0.0, "what counts as better must be so by more than this")
    max_reward: float = _running(1e4, "stop if the mean reward grows beyond this")
    eval_tasks: list[str] = _running([], f"tasks of `ebft eval` to run while training: {', '.join(TASKS)}")
    eval_tasks_every: int | None = _running(None, "run eval_tasks every N steps; default: at every evaluation")
    eval_task_options: dict[str, Any] = _running(
        {}, "options of `ebft eval` for eval_tasks, such as {limit: 20, samples: 0}; only in a recipe"
    )

    def __post_init__(self) -> None:
        self.check_running()

    def check_running(self) -> None:
        at_least(self, 1, "rollout_batch_size", "eval_tasks_every", "early_stopping_patience")
        at_least(self, 0, "show_prompts")
        for task in self.eval_tasks:
            if task not in TASKS:
                raise ConfigError(
                    f"unknown task {task!r} in eval_tasks; there is {', '.join(TASKS)}{nearest(task, TASKS)}"
                )
