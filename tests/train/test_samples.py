"""The table of samples."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ebft.train.samples import ANCHORS, table, table_cell, write_table
from tests.tiny_tokenizer import byte_tokenizer


def example(anchors: int = 9, samples: int = 2) -> dict[str, Tensor]:
    """Token t at position t; the second anchor does not count."""
    numbers = torch.arange(anchors * samples).view(anchors, samples) / 10
    return {
        "input_ids": torch.arange(60),
        "completions": torch.full((anchors, samples, 3), 65),
        "alignment": numbers,
        "diversity": -numbers,
        "advantages": numbers + 1,
        "anchors": torch.arange(1, anchors + 1) * 5,
        "anchor_mask": torch.tensor([place != 1 for place in range(anchors)]),
        "truth_lengths": torch.full((anchors,), 2),
    }


def test_contexts_truths_and_numbers_are_those_of_the_anchors(tmp_path: Path) -> None:
    file = write_table(tmp_path / "samples", 12, example(), None)
    assert file.name == "step-000012.md"
    text = file.read_text()
    assert text.startswith("# Samples at step 12\n")
    shown = [int(line.split()[-1]) for line in text.splitlines() if line.startswith("## Anchor")]
    assert len(shown) == ANCHORS
    assert 10 not in shown, "an anchor that does not count is not shown"
    assert f"Context: {' '.join(map(str, range(5)))}\n" in text, "all of it, without dots before it"
    assert f"Context: ...{' '.join(map(str, range(shown[-1] - 24, shown[-1])))}\n" in text
    assert "| truth | 5 6 | | | |" in text
    assert "| sample 1 | 65 65 65 | +0.000 | +0.000 | +1.000 |" in text, "no -0.000"
    assert "| sample 2 | 65 65 65 | +0.100 | -0.100 | +1.100 |" in text
    last = shown[-1]
    assert f"| truth | {last} {last + 1} | | | |" in text


def test_any_text_stays_in_its_cell() -> None:
    tokenizer = byte_tokenizer()
    given = example(anchors=1)
    given["completions"] = torch.tensor([[tokenizer.encode("a|b"), tokenizer.encode("\n`c")]])
    rows = [line for line in table(1, given, tokenizer).splitlines() if line.startswith("| sample")]
    assert rows[0].startswith("| sample 1 | `a\\|b` |")
    assert rows[1].startswith("| sample 2 | `\\n'c` |")
    assert table_cell("`|\t") == "`'\\|\\t`"


def test_an_end_token_is_shown_once() -> None:
    tokenizer = byte_tokenizer()
    end, given = tokenizer.eos_token_id, example(anchors=1)
    given["completions"] = torch.tensor([[[*tokenizer.encode("aa"), end, end, end], [*tokenizer.encode("abbbb")]]])
    rows = [line for line in table(1, given, tokenizer).splitlines() if line.startswith("| sample")]
    assert rows[0].startswith(f"| sample 1 | `aa{tokenizer.eos_token}` |")
    assert rows[1].startswith("| sample 2 | `abbbb` |")


def test_a_sequence_without_anchors_has_an_empty_table() -> None:
    given = example()
    given["anchor_mask"] = torch.zeros(9, dtype=torch.bool)
    assert "## Anchor" not in table(3, given, None)
