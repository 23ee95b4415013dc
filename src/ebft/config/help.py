"""What `ebft train --help`, `ebft sft --help` and `ebft rlvr --help` say."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import fields
from typing import Any

from ebft.config.fields import default_of
from ebft.config.recipe import own_sections
from ebft.config.transformers_settings import transformers_settings

REQUIRED = ("model", "dataset", "output_dir", "rewards")
GROUPS = {
    "model": "The model",
    "data": "The data",
    "sft": "Supervised fine-tuning",
    "rlvr": "Reinforcement learning",
    "method": "The method",
    "features": "The frozen feature network",
    "running": "Running",
}


def settings_help(command: str, width: int | None = None) -> str:
    """What `ebft train --help` says: every setting of the command, by group, no wider than the terminal."""
    width = width or shutil.get_terminal_size().columns
    # By group and name. What ebft declares anew keeps the place that it has in transformers.
    groups: dict[str, dict[str, tuple[str, Any]]] = {"transformers": {}}
    for name, setting in transformers_settings().items():
        groups["transformers"][name] = (setting.help, setting.default)
    for f in (f for section in own_sections(command) for f in fields(section)):
        group = f.metadata.get("group", "transformers")
        groups.setdefault(group, {})[f.name] = (str(f.metadata.get("help", "")), default_of(f))
    titles = {
        **GROUPS,
        "transformers": "Everything of transformers.TrainingArguments; those with the paper's values and the most used",
    }
    if command != "train":
        titles["method"] = "How validation measures: EBFT's settings"
    usage = f"usage: ebft {command} "
    lines = [
        *_wrapped(usage, "--config recipe.yaml [--setting value ...] [--resume] [--dry-run] [--launch N]", width),
        "",
        "Settings come from the recipe; flags win over it.",
    ]
    for flag, text in _FLAGS.items():
        lines += _wrapped(f"  {flag:<10}  ", text, width)
    for group, title in titles.items():
        if group not in groups:
            continue
        lines += ["", *_wrapped("", title, width)]
        for name, (help, default) in groups[group].items():
            text = " ".join(help.split())
            if group != "transformers" or name in _COMMON:
                text = text.split(". ")[0] if group == "transformers" else text
                lines += _wrapped(f"  --{name:<28} ", f"{text}{_default(name, default)}", width)
    return "\n".join(lines)


def _default(name: str, default: Any) -> str:
    """Behind the text of a setting; nothing where nothing is set."""
    if name in REQUIRED:
        return " [required]"
    if default is None or default in ("", [], {}):
        return ""
    return f" [{', '.join(map(str, default)) if isinstance(default, list) else default}]"


def _wrapped(name: str, text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, the text in a column of its own; but never a column of single words."""
    width = max(width, len(name) + 30)
    return textwrap.wrap(
        text,
        width,
        initial_indent=name,
        subsequent_indent=" " * len(name),
        break_on_hyphens=False,
        break_long_words=False,
    )


_FLAGS = {
    "--config F": "a YAML file, or the name of a recipe that comes with ebft: quickstart, paper/qa_code, ...",
    "--resume": "resume from the last complete checkpoint in output_dir",
    "--dry-run": "load and pack the data, print the plan and an example, and stop",
    "--launch N": "start N processes on this machine, one per GPU; N times the rows per step",
}


# Of transformers' settings, those that most runs set.
_COMMON = """output_dir per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
    warmup_steps num_train_epochs max_steps max_grad_norm bf16 gradient_checkpointing logging_steps log_level
    eval_strategy eval_steps save_strategy save_steps save_total_limit load_best_model_at_end metric_for_best_model
    report_to seed use_cpu fsdp""".split()  # noqa: SIM905
