"""What of a recipe decides its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import load_recipe
from ebft.method.layout import StridedLayout
from ebft.planning.workload import Workload
from tests.baselines.runs import write_recipe


@pytest.fixture
def workload(tiny: Path, sums: Path, tmp_path: Path) -> Any:
    def make(**settings: Any) -> Workload:
        return Workload.of(load_recipe(write_recipe(tmp_path, tiny, sums, **settings), {"output_dir": "unused"}))

    return make


def test_a_sequence_is_as_long_as_its_layout(workload: Any) -> None:
    work = workload(context_length=50, horizon=5, stride=3, samples=2)
    layout = StridedLayout(50, 5, 3, 2)
    assert (work.anchors, work.packed) == (layout.num_anchors, layout.packed_length)
    assert workload(anchors="answer_start").anchors == 1


def test_rollouts_take_a_window(workload: Any) -> None:
    sizes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4, "per_device_eval_batch_size": 20}
    assert workload(**sizes).rows == 12
    assert workload(**sizes, rollout_batch_size=5).rows == 5


def test_evaluation_has_its_own_sizes(workload: Any) -> None:
    sizes = {"per_device_eval_batch_size": 2, "samples": 3, "context_length": 50, "horizon": 5, "stride": 3}
    work = workload(**sizes, eval_samples=7, eval_strategy="no")
    assert (work.eval_rows, work.evaluation.rows) == (2, 2), "also without evaluation between steps"
    assert work.evaluation.packed == StridedLayout(50, 5, 3, 7).packed_length
    assert workload(**sizes).evaluation.samples == 3
    assert workload(**sizes, validation_split=0, eval_strategy="no").eval_rows == 0


def test_bytes_of_weights(workload: Any) -> None:
    assert (workload().compute_bytes, workload(bf16=True).compute_bytes) == (4, 2)
    assert workload(model_dtype="bfloat16").trained_bytes == 2
    averaged = workload(bf16=True, feature_source="average")
    assert (averaged.feature_bytes, averaged.compute_bytes) == (4, 2)


def test_the_optimizer_has_the_name_of_the_setting(workload: Any) -> None:
    assert workload(optim="adafactor").optimizer == "adafactor"
