"""`ebft plan` through the command: it needs a config.json and nothing else, and says what fits."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from ebft.config.recipe import read_values
from ebft.config.shipped import RECIPES
from ebft.planning.model_shape import ModelShape, meta_model
from tests.baselines.runs import write_recipe
from tests.imports import imports_torch
from tests.models import tiny_model
from tests.shapes import SHAPES, shape_folder

pytestmark = pytest.mark.usefixtures("offline")
ROOT = Path(__file__).parents[2]
PAPER = {"context_length": 1024, "horizon": 8, "stride": 8, "samples": 4, "bf16": True}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shapes")
    return {name: shape_folder(name, folder / name) for name in SHAPES}


def planned(recipe: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    flags = ["--output_dir", "unused", *map(str, arguments)]
    assert cli.main(["plan", "--config", str(recipe), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_7b_model_on_eight_gpus(
    shapes: dict[str, Path], sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Worked out by hand: 7.62e9 parameters, 2 + 4 + 4 + 8 bytes for each on every GPU, or 16 of them in 8 pieces."""
    changes = {**PAPER, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
    recipe = write_recipe(tmp_path, shapes["Qwen/Qwen2.5-7B"], sums, **changes)
    found = planned(recipe, capsys, "--gpus", 8, "--gpu-memory", 80)
    # 28 layers of 4 attention matrices (biases in three), 3 of the feed-forward and 2 norms; two embeddings; a norm.
    layer = 2 * 3584**2 + 2 * 3584 * 512 + 3584 + 2 * 512 + 3 * 3584 * 18944 + 2 * 3584
    assert found["parameters"] == 28 * layer + 2 * 152064 * 3584 + 3584 == 7_615_616_512
    assert found["recipe_trains_by"] == "ddp"
    ddp, fsdp2, lora, qlora = (found["ways"][name] for name in ("ddp", "fsdp2", "lora", "qlora"))
    resident = sum(ddp["bytes"][part] for part in ("weights", "master", "gradients", "optimizer"))
    assert resident == 18 * found["parameters"]
    pieces = sum(fsdp2["bytes"][part] for part in ("master", "gradients", "optimizer"))
    assert pieces == 16 * found["parameters"] / 8
    assert (ddp["fits"], fsdp2["fits"], lora["fits"], qlora["fits"]) == (False, True, True, True)
    assert ddp["largest_per_device_train_batch_size"] == 0
    assert fsdp2["largest_per_device_train_batch_size"] >= 1
    # Rank 16 on seven matrices of each layer: r * (rows + columns).
    rows_and_columns = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert lora["adapter_parameters"] == 28 * 16 * rows_and_columns
    assert qlora["bytes"]["weights"] < lora["bytes"]["weights"] / 2
    assert lora["bytes"]["frozen"] == 0
    # Keys and values: 28 layers, 512 wide each, for 1024 tokens and 127 x 4 completions of 7 kept tokens, bf16.
    assert ddp["bytes"]["kv_cache"] == 2 * 2 * 28 * 512 * (1024 + 127 * 4 * 7)


def test_what_is_said_to_fit_fits(
    shapes: dict[str, Path], sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, shapes["meta-llama/Llama-3.1-70B"], sums, **PAPER, gradient_checkpointing=True)
    hardware = ("--gpus", 64, "--gpu-memory", 80)
    asked = ("--per_device_train_batch_size", "--rollout_batch_size")
    found = planned(recipe, capsys, *hardware)["ways"]["fsdp2"]
    best = [found[f"largest_{flag[2:]}"] for flag in asked]
    for change, fits in (((0, 0), True), ((1, 0), False), ((0, 1), False)):
        sizes = [x for flag, n, more in zip(asked, best, change, strict=True) for x in (flag, n + more)]
        again = planned(recipe, capsys, *hardware, *sizes, "--per_device_eval_batch_size", 1)["ways"]["fsdp2"]
        assert again["fits"] is fits
        assert (again["peak"] <= 0.9 * 80 * 2**30) is fits


def test_the_table_has_every_part_and_strategy(
    tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums)
    arguments = ["--output_dir", "x", "--gpus", "2", "--gpu-memory", "24"]
    assert cli.main(["plan", "--config", str(recipe), *arguments]) == 0
    text = capsys.readouterr().out
    for words in ("ddp", "fsdp2", "lora", "qlora", "optimiser", "logits chunk", "keys and values", "Computed, not run"):
        assert words in text
    assert not Path("x").exists()
    weights = next(line for line in text.splitlines() if line.startswith("weights that compute"))
    assert "MiB on each GPU" in text
    assert float(weights.split()[-1]) > 0, "a small model's numbers are not all 0.0"


def test_the_peak_may_be_that_of_evaluation(
    tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums)
    hardware = ("--gpus", "1", "--gpu-memory", "24")
    large = ("--eval_samples", "64", "--per_device_eval_batch_size", "64")
    words = "is evaluation's; a smaller per_device_eval_batch_size lowers it."

    def shown(*more: str) -> str:
        capsys.readouterr()
        assert cli.main(["plan", "--config", str(recipe), "--output_dir", "x", *hardware, *more]) == 0
        return capsys.readouterr().out

    before, after = planned(recipe, capsys, *hardware), planned(recipe, capsys, *hardware, *large)
    for name, way in after["ways"].items():
        assert way["peak_stage"] == "evaluation"
        assert way["peak"] == way["stages"]["evaluation"] > before["ways"][name]["peak"]
    assert words in shown(*large)
    assert words not in shown(*large[:1], "2", *large[2:3], "1")
    without = shown(*large, "--validation_split", "0", "--eval_strategy", "no")
    assert "valuation" not in without


def test_a_mixture_of_experts(sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model("deepseek_v3")
    model.config.save_pretrained(tmp_path / "mixture")
    recipe = write_recipe(tmp_path, tmp_path / "mixture", sums)
    hardware = ("--gpus", "1", "--gpu-memory", "24")
    found = planned(recipe, capsys, *hardware)
    # Two of four experts, 3 x 64 x 32 each, are idle in three of the four layers.
    assert found["parameters"] == model.num_parameters()
    assert found["active_parameters"] == found["parameters"] - 3 * 2 * 3 * 64 * 32
    assert cli.main(["plan", "--config", str(recipe), "--output_dir", "x", *hardware]) == 0
    assert f"({found['active_parameters']:,} of them for a token)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "words"),
    [(9, "num_experts_per_tok=9 must be"), ("two", "expected int, got str"), (None, "got NoneType")],
)
def test_a_number_of_experts_that_cannot_be_is_one_line(
    chosen: object, words: str, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixture"
    tiny_model("mixtral").config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": chosen}))
    recipe = write_recipe(tmp_path, folder, sums)
    capsys.readouterr()
    assert cli.main(["plan", "--config", str(recipe), "--output_dir", "x", "--gpus", "1", "--gpu-memory", "24"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "8"], "needs --gpu, one of h200, h100"),
        (["--gpu_mem", "80"], "or --gpu-memory with a number; --gpu_mem is not known"),
        (["--gpus", "many", "--gpu-memory", "80"], "needs --gpus with a number, not 'many'"),
        (["--gpus", "8", "--gpu-memory"], "needs --gpu-memory with a number"),
        (["--gpus", "nan", "--gpu-memory", "80"], "needs --gpus with a number, not 'nan'"),
        (["--gpus", "2.5", "--gpu-memory", "80"], "--gpus 2.5 is not a whole number"),
        (["--gpu", "8", "--gpu-memory", "80"], "--gpu 8 is not one of h200, h100"),
        (["--gpu", "h10"], "--gpus for their number; did you mean 'h100'?"),
        (["--gpus", "0", "--gpu-memory", "80"], "gpus=0 must be at least 1"),
        (["--gpus", "1", "--gpu-memory", "80", "--gama", "1"], "did you mean 'gamma'"),
        (["--gpus", "1", "--gpu-memory", "80", "--model", "./nowhere"], "no such folder"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums)
    assert cli.main(["plan", "--config", str(recipe), "--output_dir", "x", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["--gpus", "many", "--gpu-memory", "80"], ["--gpus", "0", "--gpu-memory", "80"]]
)
def test_errors_of_the_command_line_are_quick(arguments: list[str]) -> None:
    assert not imports_torch("plan", "--config", "recipe.yaml", *arguments)


def test_the_outputs_in_the_documentation_are_what_the_command_prints(
    shapes: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipes name models of the hub; here their shapes stand in for them."""
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```text\n\$ ebft (plan .*?)\n(.*?)```", (ROOT / "docs" / "plan.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    for command, expected in blocks:
        name = read_values(shlex.split(command)[2])["model"]
        capsys.readouterr()
        assert cli.main([*shlex.split(command), "--model", str(shapes[name])]) == 0
        assert capsys.readouterr().out.replace(str(shapes[name]), name) == expected, f"run `ebft {command}` again"


@pytest.mark.parametrize("file", sorted((RECIPES / "large").glob("*.yaml")), ids=lambda file: file.stem)
def test_large_recipes_fit(file: Path, shapes: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """On as many H100s as their name says, by the strategy they are meant for."""
    model = yaml.safe_load(file.read_text())["model"]
    gpus = re.search(r"-(\d+)xh100", file.stem)
    assert gpus is not None
    found = planned(file, capsys, "--model", shapes[model], "--gpus", gpus.group(1), "--gpu-memory", 80)
    strategy = "qlora" if found["recipe_trains_by"] == "qlora" else "fsdp2"
    assert found["ways"][strategy]["fits"]
    line = next(x for x in (ROOT / "docs" / "plan.md").read_text().splitlines() if f"`large/{file.stem}`" in x)
    assert line.endswith(f"| {found['ways'][strategy]['peak'] / 2**30:.1f} GiB |")
    assert found["ways"][strategy]["peak"] < 0.75 * 80 * 2**30, "an estimate that is 15 % off would no longer fit"


def test_a_larger_feature_network_is_counted(
    shapes: dict[str, Path], tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, bf16=True, feature_model=str(shapes["Qwen/Qwen2.5-7B"]))
    found = planned(recipe, capsys, "--gpus", 1, "--gpu-memory", 80)
    frozen = ModelShape.of(meta_model(SHAPES["Qwen/Qwen2.5-7B"]()), [0.25, 0.5, 0.75]).frozen
    assert {planned["bytes"]["frozen"] for planned in found["ways"].values()} == {2 * frozen}
