"""`python -m tools.settings_page > docs/settings.md`: every setting, from the dataclasses that declare them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from ebft.config.recipe import REQUIRED, groups
from ebft.config.settings import default_of

INTRODUCTION = """# Settings

Every setting has the same name in a recipe (`horizon: 8`), as a flag (`--horizon 8`; - and _ are the same) and in
Python; flags win over the recipe. A recipe is one flat list: the groups below only sort it. In Python the settings of
the model and the data are for `ebft train`; all others belong to `EBFTConfig`.

A list is written `[a, b]` in a recipe and `--name a b` or `--name a,b` as a flag; a flag without a value means true,
and `--no-name` false. `none` is no value. An unknown name or a value of the wrong type is an error. What the settings
of the data mean in detail is in [data.md](data.md), those of the method in [method.md](method.md).

`EBFTConfig` is a `transformers.TrainingArguments` and takes all of its settings; those with another default here are in
the table of running. Those for several processes are explained in [distributed.md](distributed.md). The baselines
([baselines.md](baselines.md)) take every setting as well, and have their own.

This page is made by `python -m tools.settings_page > docs/settings.md`; edit the help texts in `src/ebft/config/`.
"""


def settings_page() -> str:
    """The text of docs/settings.md."""
    titles = groups("train")
    baselines = {f"`ebft {command}`": groups(command)["The baseline"] for command in ("sft", "rlvr")}
    del titles["Settings of transformers' TrainingArguments"]
    tables = [f"## {title}\n\n{_table(settings)}" for title, settings in (titles | baselines).items() if settings]
    return "\n".join([INTRODUCTION, *tables])


def _table(settings: Iterable[Field[Any]]) -> str:
    rows = [("setting", "default", "meaning"), ("---", "---", "---")]
    for f in settings:
        value = default_of(f)
        shown = "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        default = "must be given" if f.name in REQUIRED else shown
        rows.append((f"`{f.name}`", default, str(f.metadata.get("help", "")).replace("|", "\\|")))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(settings_page(), end="")
