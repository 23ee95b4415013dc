"""What a run leaves for people: tables of samples, answers, curves, the card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import encode
from ebft.train import report
from tests.tiny_tokenizer import byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")


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


def test_contexts_truths_and_numbers_are_those_of_the_anchors() -> None:
    text = "\n".join(report.sample_lines(example(), None))
    shown = [int(line.split()[-1]) for line in text.splitlines() if line.startswith("## Anchor")]
    assert len(shown) == report.ANCHORS
    assert 10 not in shown, "an anchor that does not count is not shown"
    assert f"Context: {' '.join(map(str, range(5)))}\n" in text, "all of it, without dots before it"
    assert f"Context: ...{' '.join(map(str, range(shown[-1] - 24, shown[-1])))}\n" in text
    assert "| truth | 5 6 | | | |" in text
    assert "| sample 1 | 65 65 65 | +0.000 | +0.000 | +1.000 |" in text, "no -0.000"
    assert "| sample 2 | 65 65 65 | +0.100 | -0.100 | +1.100 |" in text


def test_prompts_end_where_answers_begin() -> None:
    tokenizer = byte_tokenizer()
    rows = [{"prompt": "x" * 100 + "=", "completion": "y" * 100}, {"text": "abcdef"}]
    store = TokenStore.from_documents([encode(row, tokenizer) for row in rows])
    found = report.held_out_prompts(SequenceDataset(DocumentIndex.of(store), 16), tokenizer, 3)
    assert found["prompts"] == ["x" * (report.PROMPT_TOKENS - 1) + "=", "abc"], "a text is cut in its middle"
    assert found["text"] == ["y" * report.ANSWER_TOKENS, "def"]


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    settings = {"model": "some/base", "dataset": ["a/b:c", "rows.jsonl"], "output_dir": str(tmp_path), "use_cpu": True}
    recipe = load_recipe(None, {**settings, "horizon": 5, "prompt_separator": "\\n"})
    results = {"after": {"eval_cfm": 0.25, "eval_cfm_se": 0.125}, "change": {"eval_cfm": -0.25}, "steps": 42}
    report.write_card(tmp_path, "a title", recipe, results, "Energy-Based Fine-Tuning")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---")[1])
    assert (header["base_model"], header["datasets"]) == (["some/base"], ["a/b"]), "names on the hub, not files"
    shown = load_recipe(None, yaml.safe_load(text.partition("```yaml")[2].partition("```")[0]))
    assert shown == recipe, "its settings make the same run"
    assert "| feature-matching loss |  | 0.2500 ± 0.1250 | -0.2500 |" in text
