"""The recommended recipe fits, keeps the step, and gives up no more than it must."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ebft import cli
from ebft.config.recipe import load_recipe
from ebft.planning.memory import GIB, estimate
from ebft.planning.model_shape import ModelShape, meta_model
from ebft.planning.recommend import recommend
from ebft.planning.strategies import STRATEGIES, Strategy, strategy_of
from ebft.planning.workload import Workload
from tests.shapes import SHAPES, shape_folder

pytestmark = pytest.mark.usefixtures("offline")
SHAPE = ModelShape.of(meta_model(SHAPES["Qwen/Qwen2.5-7B"]()), [0.25, 0.5, 0.75])
WORK = Workload(1, 16, 1024, 127, 4, 8, eval_rows=8, eval_samples=4)


def works(gpus: int) -> dict[Strategy, Workload]:
    return {s: replace(WORK, gpus=gpus, adapter=40_370_176 if s.adapter else 0) for s in STRATEGIES}


@pytest.mark.parametrize(
    ("gpus", "gib", "strategy", "checkpointing"),
    [
        (1, 1000, "ddp", False),
        (1, 180, "ddp", False),
        (1, 160, "ddp", True),
        (1, 140, "lora", False),
        (8, 80, "fsdp2", False),
        (1, 48, "lora", False),
        (1, 24, "lora", True),
        (1, 14, "qlora", True),
    ],
)
def test_what_fits_first(gpus: int, gib: float, strategy: str, checkpointing: bool) -> None:
    found = recommend(SHAPE, works(gpus), 16, gpus, gib * GIB)
    assert found is not None
    assert (found.strategy.name, found.work.checkpointing) == (strategy, checkpointing)
    assert found.memory.peak <= gib * GIB
    settings = found.settings
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * gpus == 16
    # Reckoned again from the settings themselves.
    work = replace(
        works(gpus)[found.strategy],
        micro_batch=settings["per_device_train_batch_size"],
        rows=settings.get("rollout_batch_size", 16 // gpus),
        eval_rows=settings.get("per_device_eval_batch_size", 8),
        checkpointing=settings.get("gradient_checkpointing", False),
    )
    assert estimate(SHAPE, work, found.strategy).peak == found.memory.peak
    doubled = replace(work, micro_batch=2 * work.micro_batch)
    whole = work.micro_batch == 16 // gpus
    assert whole or estimate(SHAPE, doubled, found.strategy).peak > gib * GIB, "a larger micro-batch would have fitted"


def test_nothing_fits() -> None:
    assert recommend(SHAPE, works(1), 16, 1, 4 * GIB) is None


def test_the_recipe_is_ready_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = shape_folder("Qwen/Qwen2.5-7B", tmp_path / "model")
    given = ["--model", str(model), "--gpus", "8", "--gpu", "H100", "--tokens", "5e6", "--gamma", "0.1"]
    assert cli.main(["plan", *given]) == 0
    printed = capsys.readouterr().out
    first, recipe = printed.split("\n\n")[:2]
    assert first.startswith("Recommended for 8 GPUs of 80 GiB: fsdp2, ")
    assert " s a step and " in first
    assert " min an epoch (rates scaled from an H200, without communication)" in first
    values = yaml.safe_load(recipe)
    assert values["gamma"] == 0.1
    assert values["model"] == str(model)
    assert "\ndataset:  # replace by yours\n- my.jsonl\noutput_dir: runs/mine  # replace by yours\n" in recipe
    assert strategy_of(load_recipe(None, values)).name == "fsdp2"
    assert "As given (ddp), it does not fit: " in printed
    file = tmp_path / "recipe.yaml"
    assert cli.main(["plan", *given, "--output", str(file), "--output_dir", "mine"]) == 0
    assert f"Written to {file}: ebft train --config {file} --launch 8" in capsys.readouterr().out
    assert yaml.safe_load(file.read_text()) == {**values, "output_dir": "mine"}
    assert "output_dir: mine\n" in file.read_text()
    assert cli.main(["plan", *given, "--output", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
    header = next(line for line in printed.splitlines() if line.startswith("GiB on each GPU"))
    columns = re.split(r"\s{2,}", header)
    assert columns[1:] == ["ddp (as given)", "ddp", "fsdp2 (recommended)", "lora", "lora+fsdp2", "qlora"]
    assert "learning_rate" not in values, "the whole model trains as it was given"


def test_an_adapter_that_was_asked_for_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = shape_folder("Qwen/Qwen2.5-1.5B", tmp_path / "model")
    assert cli.main(["plan", "--model", str(model), "--gpus", "1", "--gpu", "h200", "--lora"]) == 0
    assert capsys.readouterr().out.startswith("Recommended for 1 GPU of 140 GiB: lora, ")


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ([], 1e-5),  # ten times the default
        (["--learning_rate", "3e-6"], 3e-5),  # it was meant for the whole model
        (["--lora", "--learning_rate", "3e-6"], 3e-6),  # it was meant for the adapter
        (["--lora"], 1e-5),
    ],
)
def test_an_adapter_gets_a_learning_rate_of_its_own(
    given: list[str], rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shape_folder("Qwen/Qwen2.5-7B", tmp_path / "model")
    assert cli.main(["plan", "--model", str(model), "--gpus", "1", "--gpu-memory", "48", *given]) == 0
    printed = capsys.readouterr().out
    values = yaml.safe_load(printed.split("\n\n")[1])
    assert (values["lora"], values["learning_rate"]) == (True, rate)
    reason = f"Its learning_rate of {rate:g} is 10 times that of the whole model ({rate / 10:g})"
    assert (reason in printed) == (rate != 3e-6)


def test_every_strategy_stands_with_the_settings_that_fit_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As given nothing fits: float32, and 16 sequences in a micro-batch."""
    model = shape_folder("Qwen/Qwen2.5-7B", tmp_path / "model")
    given = ["plan", "--model", str(model), "--gpu", "a100"]
    assert cli.main(given) == 0
    printed = capsys.readouterr().out
    values = yaml.safe_load(printed.split("\n\n")[1])
    rows = {cells[0]: cells[1:] for line in printed.splitlines() if len(cells := re.split(r"\s{2,}", line)) == 5}
    columns = ["whole model (as given)", "whole model", "lora (recommended)", "qlora"]
    assert rows["GiB on each GPU"] == columns, "one GPU has no shards"
    assert "As given (whole model), it does not fit: " in printed
    assert rows["fits"] == ["no", "no setting does", "yes", "yes"]
    sizes = rows["with per_device_train_batch_size"]
    assert sizes[:3] == ["16", "1", str(values["per_device_train_batch_size"])]
    assert rows["with gradient_checkpointing"] == ["no", "yes", "no", "no"]
    assert rows["computed in"] == ["float32", "bf16", "bf16", "bf16"]
    assert rows["peak"][2] == printed.splitlines()[0].split("lora, ")[1].split()[0]
    assert cli.main([*given, "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    assert ways["ddp"]["best"] is ways["fsdp2"]["best"] is None
    best = ways["qlora"]["best"]
    assert cli.main([*given, "--json", *(f"--{name}={value}" for name, value in best["settings"].items())]) == 0
    assert json.loads(capsys.readouterr().out)["ways"]["qlora"]["peak"] == best["peak"]


def test_an_unknown_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--model", "x/y", "--gpus", "1", "--gpu", "h10", "--gpu-memory", "80"]) == 2
    assert "--gpu h10 is not one of h200, h100" in capsys.readouterr().err
