"""What both baselines share: TRL's arguments, EBFT's measurement, divergence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")
from trl import SFTConfig

from ebft.baselines import sft, trl_trainers
from ebft.config.recipe import load_recipe
from ebft.errors import ConfigError, TrainingDiverged
from ebft.train.sequences import load
from tests.baselines.runs import write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run(
    broken: str, tiny: Path, sums: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    if broken == "loss":
        with torch.no_grad():
            model.lm_head.weight[0] = float("nan")
    else:
        model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
    file = write_recipe(tmp_path, tiny, sums, validation_split=0, eval_strategy="no", save_steps=1, logging_steps=9)
    loaded = load(load_recipe(file, {"output_dir": str(tmp_path / "out")}, "sft"))
    torch.backends.cuda.enable_cudnn_sdp(True)  # another test may have left it off
    trainer = sft.MeasuredSFT.prepare(replace(loaded, model=model))[1]()
    with pytest.raises(ConfigError, match="evaluation needs validation data"):
        trainer.evaluate()
    with pytest.raises(TrainingDiverged, match=rf"the {broken}.* is nan at step 1; try a lower learning_rate"):
        trainer.train()
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_nothing_is_reported_to_the_makers_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    trl_trainers.method("sft")
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY


@pytest.mark.parametrize(("name", "what"), [("packing", "a setting of its own"), ("loss_typ", "TRL does not know")])
def test_trl_options_are_trls_own(name: str, what: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny, sums, trl_options={name: True}), {"output_dir": "o"}, "sft")
    with pytest.raises(ConfigError, match=what):
        trl_trainers.trl_arguments(SFTConfig, recipe.training, packing=False)  # type: ignore[arg-type]
