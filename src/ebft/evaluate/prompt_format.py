"""How the run behind a model made its prompts, so that `ebft generate` shows the model what it was trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ebft.config.like_run import settings_of_run
from ebft.data.row_format import ALPACA, Row, RowFormat, fields_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptFormat:
    kind: str | None = None  # as `RowFormat.prompt_kind` has it; None: not known, or several
    rows: RowFormat = RowFormat()

    @property
    def is_chat(self) -> bool:
        return self.kind == "messages"

    def __str__(self) -> str:
        """What becomes of a text that somebody types; empty if it stays as it is."""
        if self.is_chat:
            return "a user's turn of the chat template"
        if self.kind == "alpaca" and self.rows.prompt_template is None:
            return "an instruction of Alpaca's template"
        template = self._template or "{prompt}"
        made = template + self.rows.prompts_end_with * (not template[-1].isspace())
        return "" if made == "{prompt}" else repr(made)

    def of_text(self, text: str) -> str:
        """A text that somebody typed, as the prompt of a row. One that follows the template already is left so."""
        template, name = self._template, self.rows.prompt
        bare = text.removesuffix(self.rows.answers_begin_with)
        if not bare.endswith((" ", "\n", "\t")):  # else it is indentation, which rows keep too
            text = bare
        if template is not None:
            template, name = (None, name) if _follows(template, text) else (template, fields_of(template)[0])
        return replace(self.rows, prompt_template=template).prompt_of({name: text})

    def of_row(self, row: Row) -> Any:
        """The prompt of a row like those of training, or of one that has nothing but a prompt."""
        prompt, template = row.get(self.rows.prompt), self._template or self.rows.prompt_template
        if isinstance(prompt, str) and any(name not in row for name in fields_of(template or "")):
            return self.of_text(prompt)
        return self.rows.prompt_of(row)

    @property
    def _template(self) -> str | None:
        """What one text can be put into."""
        template = self.rows.prompt_template
        if template is None and self.kind == "alpaca":
            template = ALPACA
        return template if template and len(fields_of(template)) == 1 else None


def _follows(template: str, text: str) -> bool:
    before, after = template.partition("{")[0].strip(), template.rpartition("}")[2].strip()
    return bool(before or after) and text.strip().startswith(before) and text.strip().endswith(after)


def format_of_runs(models: Sequence[str]) -> PromptFormat:
    """How the runs behind these models made their prompts; as they are, if there are none or they differ."""
    found = {name: made for name in models if (made := _format_of(name)) is not None}
    if len(set(found.values())) > 1:
        logger.warning(
            f"{' and '.join(found)} made their prompts in different ways, so prompts are given as they are; "
            "--prompt-style, --prompt-template and --prompt-separator say otherwise"
        )
        return PromptFormat()
    return next(iter(found.values()), PromptFormat())


def _format_of(model: str) -> PromptFormat | None:
    folder = Path(model).expanduser()
    settings = settings_of_run(folder) if folder.is_dir() else None
    if settings is None:
        return None
    kinds = settings.get("prompt_kinds") or []
    names = {f.name: f.name if f.name.startswith("prompt_") else f"{f.name}_column" for f in fields(RowFormat)}
    given = {name: settings[setting] for name, setting in names.items() if settings.get(setting) is not None}
    return PromptFormat(kinds[0] if len(kinds) == 1 else None, RowFormat(**given))
