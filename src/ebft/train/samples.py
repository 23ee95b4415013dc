"""A table of samples that a person can read: context, truth, completions, rewards, advantages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

CONTEXT_TOKENS = 24
ANCHORS = 4
LEGEND = """A completion's reward is its alignment less alpha times its diversity.

- **alignment**: how well its features agree with those of the truth; larger is better.
- **diversity**: how much it resembles the other completions of the anchor; smaller is better. Whitening makes the
  features of completions that differ orthogonal, so it is 0 where all of them differ, and above 0 for equal ones. Only
  with `whitening: none` do completions that differ have some.
- **advantage**: the reward less what the other completions got; above 0 the completion becomes likelier, else less."""


def write_table(folder: Path, step: int, example: dict[str, Tensor], tokenizer: Any) -> Path:
    """`folder/step-000010.md`: a few anchors of one sequence, spread over it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"step-{step:06d}.md"
    file.write_text(table(step, example, tokenizer), encoding="utf-8")
    return file


def table(step: int, example: dict[str, Tensor], tokenizer: Any) -> str:
    places = example["anchor_mask"].nonzero().flatten().tolist()
    shown = places[:: max(1, len(places) // ANCHORS)][:ANCHORS]
    lines = [f"# Samples at step {step}", "", LEGEND, ""]
    for place in shown:
        anchor, length = int(example["anchors"][place]), int(example["truth_lengths"][place])
        context = example["input_ids"][max(0, anchor - CONTEXT_TOKENS) : anchor]
        truth = example["input_ids"][anchor : anchor + length]
        lines += [
            f"## Anchor {anchor}",
            "",
            f"Context: {earlier(anchor)}{_text(context, tokenizer)}",
            "",
            "| | text | alignment | diversity | advantage |",
            "|---|---|---|---|---|",
            f"| truth | {_text(truth, tokenizer)} | | | |",
        ]
        for sample, completion in enumerate(example["completions"][place]):
            numbers = (
                example["alignment"][place, sample],
                example["diversity"][place, sample],
                example["advantages"][place, sample],
            )
            cells = " | ".join(f"{float(x):+z.3f}" for x in numbers)
            lines.append(f"| sample {sample + 1} | {_text(completion, tokenizer)} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _text(tokens: Tensor, tokenizer: Any) -> str:
    """The tokens as text, or as numbers without a tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, tokens.tolist()))
    ids = tokens.tolist()
    while len(ids) > 1 and ids[-1] == ids[-2] and ids[-1] in tokenizer.all_special_ids:
        ids.pop()  # a completion that has ended is filled up with its end token
    return table_cell(tokenizer.decode(ids))


def earlier(anchor: int) -> str:
    """Before the last CONTEXT_TOKENS of an anchor's context, if those are not all of it."""
    return "..." if anchor > CONTEXT_TOKENS else ""


def table_cell(text: str) -> str:
    """Any text as code on one line, safe inside a Markdown table."""
    return "`" + repr(text)[1:-1].replace("|", "\\|").replace("`", "'") + "`"
