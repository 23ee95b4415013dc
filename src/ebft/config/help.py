"""What `ebft --help` and `ebft COMMAND --help` say."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

REQUIRED = ("model", "dataset", "output_dir", "rewards")

USAGE = """usage: ebft COMMAND [options]

Energy-Based Fine-Tuning of language models.

  ebft train --config recipe.yaml [--setting value ...]   fine-tune a model (ebft train --help lists the settings)
  ebft sft --config recipe.yaml [--setting value ...]     the baseline: supervised fine-tuning on the same data
  ebft rlvr --config recipe.yaml [--setting value ...]    the baseline: reinforcement learning with a checked reward
  ebft plan --config recipe.yaml --gpus 8 --gpu-memory 80 what a run needs of every GPU, by DDP, FSDP2, LoRA and QLoRA
  ebft sweep --config recipe.yaml --set gamma=0,0.1       many runs, on the GPUs of this machine or with Slurm
  ebft compare RUN RUN ... [--output DIR]                 a table and overlaid curves of runs of any of the three
  ebft export RUN --output DIR                            an ordinary model folder; an adapter is merged
  ebft eval --model M --tasks calibration,humaneval --output DIR   evaluate a checkpoint or an adapter
  ebft score humaneval --problems F --samples F --output F   score completions made elsewhere, no model needed
  ebft fetch smollm2-135m                                 get a small pretrained model without a model hub
  ebft env                                                versions and hardware, for bug reports
  ebft --version
"""

PLAN = """usage: ebft plan --config recipe.yaml --gpus N --gpu-memory GIB [--json] [--setting value ...]

What a run needs of every GPU, part by part, and what would fit. Only the model's config.json is read.
  --gpus N          processes, one on each GPU
  --gpu-memory GIB  of each GPU; an H100 of "80 GB" has 80
  --json            everything in bytes, for programs
Any setting of ebft train may be given as well, and wins over the recipe."""


def settings_help(command: str, training: Any) -> str:
    """What `ebft train --help` says: every setting of the command, by group."""
    from ebft.config.recipe import sections
    from ebft.config.training import EBFTConfig, own_fields

    groups: dict[str, list[tuple[str, str, Any]]] = {}
    own = {*own_fields(EBFTConfig), *own_fields(training)}
    for section in sections(training):
        for f in fields(section):
            if not f.init:
                continue
            inherited = section is training and f.name not in own
            group = "transformers" if inherited else f.metadata.get("group", "running")
            default: Any = f.default
            if default is MISSING:
                default = f.default_factory() if callable(f.default_factory) else None
            groups.setdefault(group, []).append((f.name, " ".join(str(f.metadata.get("help", "")).split()), default))
    titles = {
        "model": "The model",
        "data": "The data",
        "sft": "Supervised fine-tuning",
        "rlvr": "Reinforcement learning",
        "method": "The method" if command == "train" else "How validation measures: EBFT's settings",
        "features": "The frozen feature network",
        "running": "Running",
        "transformers": "Everything of transformers.TrainingArguments; those with the paper's values and the most used",
    }
    common = """output_dir per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
        warmup_steps num_train_epochs max_steps max_grad_norm bf16 gradient_checkpointing logging_steps eval_strategy
        eval_steps save_strategy save_steps save_total_limit load_best_model_at_end metric_for_best_model report_to
        seed use_cpu fsdp""".split()  # noqa: SIM905
    lines = [
        f"usage: ebft {command} --config recipe.yaml [--setting value ...] [--resume] [--dry-run] [--launch N]",
        "",
        "Settings come from the recipe; flags win over it.",
        "  --resume    go on from the last whole checkpoint in output_dir",
        "  --dry-run   load and pack the data, print the plan and an example, and stop",
        "  --launch N  start N processes on this machine, one per GPU; N times the rows per step",
    ]
    for group, title in titles.items():
        if group not in groups:
            continue
        lines += ["", title]
        for name, text, default in groups.get(group, []):
            if group != "transformers" or name in common:
                shown = "required" if name in REQUIRED else getattr(default, "value", default)
                lines.append(f"  --{name:<28} {text.split('. ')[0] if group == 'transformers' else text} [{shown}]")
    return "\n".join(lines)
