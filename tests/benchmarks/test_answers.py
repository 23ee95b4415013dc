"""Both ways write the same answers, and the JSON has the fields of the printed row. Speed is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.tiny_tokenizer import save_tiny_model


def test_both_ways_write_the_same_answers(tmp_path: Path, run_program: Callable[[str, str], str]) -> None:
    save_tiny_model(tmp_path / "model")
    rows = [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def f{number}(x):\n    """{"Long. " * number}"""\n',
            "entry_point": f"f{number}",
            "test": "def check(candidate):\n    assert candidate(1) == 1\n",
            "canonical_solution": "    return x\n",
        }
        for number in range(3)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = run_program(
        "answers.py",
        f"--model {tmp_path}/model --humaneval {tmp_path}/problems.jsonl --samples 3 --batch-sizes 2 9 "
        f"--max-new-tokens 12 --json {tmp_path}/result.json",
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert [json.loads(line) for line in printed.splitlines()] == result["rows"]
    assert [row["batch_size"] for row in result["rows"]] == [2, 9]
    for row in result["rows"]:
        assert row["answers"] == 9
        assert row["same_answers"] == 1
        assert row["mean_tokens"] <= row["longest"] <= 12
        assert row["times_as_fast"] == row["batch_after_batch"]["seconds"] / row["side_by_side"]["seconds"]
