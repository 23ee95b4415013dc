"""`python -m ebft.config.settings_page > docs/settings.md`: every setting, from the dataclasses that define them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import Field, fields
from typing import Any

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.config.baseline_settings import RLVRSettings, SFTSettings
from ebft.config.defaults import TransformersDefaults
from ebft.config.fields import default_of
from ebft.config.help import GROUPS, REQUIRED
from ebft.config.recipe import sections
from ebft.config.training import EBFTConfig

INTRODUCTION = """# Settings

Every setting has the same name in a recipe (`horizon: 8`), as a flag (`--horizon 8`) and in Python; flags win over the
recipe. A recipe is one flat list: the groups below only sort it. In Python the settings of the method, the feature
network, running and transformers belong to `EBFTConfig`; those of the model and the data are for `ebft train`, except
`packing`, which is in `EBFTConfig` too.

A list is written `[a, b]` in a recipe and `--name a b` or `--name a,b` as a flag; a flag without a value means true.
An unknown name or a value of the wrong type is an error. `model`, `dataset` and `output_dir` have no default.

What the settings of the data mean in detail is in [data.md](data.md), those of the method in [method.md](method.md).

This page is made by `python -m ebft.config.settings_page > docs/settings.md`; edit the help texts in `src/ebft/config/`
instead.
"""

TRANSFORMERS = """## Settings of transformers

`EBFTConfig` is a `transformers.TrainingArguments` and takes all of its settings: `max_steps`,
`gradient_accumulation_steps`, `max_grad_norm`, `bf16`, `gradient_checkpointing`, `eval_strategy`, `eval_steps`,
`save_steps`, `load_best_model_at_end`, `seed`, `use_cpu` and so on. Those for several processes are explained in
[distributed.md](distributed.md). `ebft train --help` shows the most used settings with their defaults. These are set by
EBFT itself:
"""


BASELINES = """These come on top of all the others, or have another default. [baselines.md](baselines.md) explains them.
"""


def settings_page() -> str:
    """The text of docs/settings.md."""
    settings = [f for section in sections() for f in fields(section) if f.init]
    parts = [INTRODUCTION]
    for group, title in GROUPS.items():
        if found := [f for f in settings if f.metadata.get("group") == group]:
            parts.append(f"## {title}\n\n{_table(found)}")
    declared_anew = {f.name for f in fields(TransformersDefaults)}
    redefined = [f for f in fields(EBFTConfig) if f.name in declared_anew]
    parts.append(f"{TRANSFORMERS}\n{_table(redefined)}")
    for title, section, options in (
        ("`ebft sft`", SFTSettings, SFTOptions),
        ("`ebft rlvr`", RLVRSettings, RLVROptions),
    ):
        own = {f.name for f in fields(options)}
        added = [f for f in fields(section) if f.name in own]
        parts.append(f"## {title}\n\n{BASELINES}\n{_table(added)}")
    return "\n".join(parts)


def _table(settings: Iterable[Field[Any]]) -> str:
    rows: list[Sequence[str]] = [("setting", "default", "meaning"), ("---", "---", "---")]
    for f in settings:
        meaning = " ".join(str(f.metadata.get("help", "")).split()).replace("|", "\\|")
        rows.append((f"`{f.name}`", _default(f), meaning))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _default(f: Field[Any]) -> str:
    if f.name in REQUIRED:
        return "must be given"
    value = default_of(f)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


if __name__ == "__main__":
    print(settings_page(), end="")
