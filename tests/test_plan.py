"""`ebft plan` through the command: it needs a config.json and nothing else, and says what fits."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Qwen2Config

from ebft import cli
from ebft.config.recipe import load_recipe
from ebft.plan_memory import GIB

pytestmark = pytest.mark.usefixtures("offline")
# The shape of Qwen2.5-1.5B, and what is other in 7B.
SIZES = dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12)
SIZES |= dict(vocab_size=151936, num_key_value_heads=2, tie_word_embeddings=True)
LARGE = dict(hidden_size=3584, intermediate_size=18944, num_attention_heads=28)
LARGE |= dict(vocab_size=152064, num_key_value_heads=4, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shape")
    Qwen2Config(**{**SIZES, **LARGE}).save_pretrained(folder)
    return folder


def planned(capsys: Any, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["plan", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("gpus", "gib", "strategy", "checkpointing"),
    [(1, 165, "whole model", True), (8, 80, "fsdp2", False), (1, 48, "lora", False), (1, 14, "qlora", True)],
)
def test_what_gives_up_least_comes_first(
    gpus: int, gib: int, strategy: str, checkpointing: bool, model: Path, capsys: Any
) -> None:
    arguments = ("--model", model, "--gpus", gpus, "--gpu-memory", gib)
    found = planned(capsys, *arguments)
    best, settings = found["recommended"], found["settings"]
    assert (best["strategy"], settings.get("gradient_checkpointing", False)) == (strategy, checkpointing)
    assert best["peak"] <= 0.9 * gib * GIB
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * gpus == 16
    # Its settings, given, are what was computed, and no larger batch would have fitted.
    flags = [f"--{name}={value}" for name, value in settings.items()]
    assert planned(capsys, *arguments, *flags)["given"] == best
    n = 2 * settings["per_device_train_batch_size"]
    if n <= 16 // gpus:
        larger = [f"--per_device_train_batch_size={n}", f"--gradient_accumulation_steps={16 // gpus // n}"]
        assert not planned(capsys, *arguments, *flags, *larger)["given"]["fits"]


# GiB of tensors at the peak on an H200, on real data (docs/results.md); LoRA in micro-batches of 1, also with random
# weights, whose completions have nothing in common.
@pytest.mark.parametrize(
    ("recipe", "card", "measured", "which"),
    [
        *(("qwen-0.5b", 24, 14.2, "usual"), ("qwen-1.5b", 80, 39.2, "usual")),
        *(("qwen-1.5b-lora", 16, 6.2, "usual"), ("qwen-1.5b-lora", 16, 8.1, "peak")),
    ],
)
def test_the_recipes_of_real_models_fit_and_need_what_was_measured(
    recipe: str, card: int, measured: float, which: str, tmp_path: Path, capsys: Any
) -> None:
    shape = Qwen2Config(**SIZES).to_dict()
    if recipe == "qwen-0.5b":
        shape |= {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    alone = ["--per_device_train_batch_size", 1] if "lora" in recipe else []
    found = planned(capsys, "--config", recipe, "--model", tmp_path, "--gpu-memory", card, *alone)["given"]
    assert found["fits"]
    assert found[which] / GIB == pytest.approx(measured, rel=0.1)
    assert found["usual"] < found["peak"]


def test_the_recipe_is_ready_to_paste(model: Path, tmp_path: Path, capsys: Any) -> None:
    given = ["plan", "--model", str(model), "--gpus", "8", "--gpu", "H100", "--tokens", "5e6", "--gamma", "0.1"]
    assert cli.main(given) == 0
    printed = capsys.readouterr().out
    for words in ("As given: ddp, ", "Recommended for 8 x 80 GiB: fsdp2, ", " an epoch: it fits.", "yaml --launch 8\n"):
        assert words in printed
    assert ": about 7,615.3 million parameters. " in printed
    values = yaml.safe_load(printed.split("\n\n")[1])
    assert values["gamma"] == 0.1
    assert load_recipe(None, values).training.sharding is not None
    file = tmp_path / "recipe.yaml"
    assert cli.main([*given, "--output", str(file), "--output_dir", "mine"]) == 0
    assert yaml.safe_load(file.read_text()) == {**values, "output_dir": "mine"}
    assert cli.main([*given, "--output", str(file)]) == 1
    assert capsys.readouterr().err == f"ebft: {file}: File exists\n"


def test_an_adapter_gets_a_learning_rate_of_its_own(model: Path, capsys: Any) -> None:
    """Ten times the default, or what was meant for the whole model; what was meant for the adapter stays."""
    for given, rate in ((), 1e-5), (("--learning_rate=3e-6",), 3e-5), (("--lora", "--learning_rate=3e-6"), 3e-6):
        settings = planned(capsys, "--model", model, "--gpu-memory", 48, *given)["settings"]
        assert (settings["lora"], settings["learning_rate"]) == (True, rate)


def test_nothing_fits_and_what_is_wrong(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["plan", "--model", str(model), "--gpu-memory", "4"]) == 0
    assert "Nothing fits: a shorter context_length" in capsys.readouterr().out
    for arguments, words in (
        (["--model", str(model)], "ebft plan needs --gpu, one of h200, h100"),
        (["--model", str(tmp_path), "--gpu", "h100"], "config.json of model="),
    ):
        assert cli.main(["plan", *arguments]) == 2
        assert words in capsys.readouterr().err
