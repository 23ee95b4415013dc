"""What `ebft train --help`, `ebft sft --help` and `ebft rlvr --help` say."""

from __future__ import annotations

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


def settings_help(command: str) -> str:
    """What `ebft train --help` says: every setting of the command, by group."""
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
    lines = [
        f"usage: ebft {command} --config recipe.yaml [--setting value ...] [--resume] [--dry-run] [--launch N]",
        "",
        "Settings come from the recipe; flags win over it.",
        "  --config F  a YAML file, or the name of a recipe that comes with ebft: quickstart, paper/qa_code, ...",
        "  --resume    resume from the last complete checkpoint in output_dir",
        "  --dry-run   load and pack the data, print the plan and an example, and stop",
        "  --launch N  start N processes on this machine, one per GPU; N times the rows per step",
    ]
    for group, title in titles.items():
        if group not in groups:
            continue
        lines += ["", title]
        for name, (help, default) in groups[group].items():
            text = " ".join(help.split())
            if group != "transformers" or name in _COMMON:
                shown = "required" if name in REQUIRED else default
                lines.append(f"  --{name:<28} {text.split('. ')[0] if group == 'transformers' else text} [{shown}]")
    return "\n".join(lines)


# Of transformers' settings, those that most runs set.
_COMMON = """output_dir per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
    warmup_steps num_train_epochs max_steps max_grad_norm bf16 gradient_checkpointing logging_steps log_level
    eval_strategy eval_steps save_strategy save_steps save_total_limit load_best_model_at_end metric_for_best_model
    report_to seed use_cpu fsdp""".split()  # noqa: SIM905
