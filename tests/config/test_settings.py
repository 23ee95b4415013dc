"""How settings are read: types, lists, names of other tools, slips; where recipes come from; what is refused."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from ebft import EBFTConfig
from ebft.config.data import ModelConfig
from ebft.config.evaluation import BORROWED, GROUPS, EvalOptions, options
from ebft.config.method import MethodConfig, settings_that_change
from ebft.config.recipe import field_types, find_recipe, load_recipe, read_values, shipped_names
from ebft.config.settings import Parser, check, check_name, option, typed
from ebft.config.training import RLVRSettings
from ebft.errors import ConfigError
from ebft.loading import tap_settings
from ebft.model.features import resolve_taps
from ebft.runtime import processes


@dataclass
class Settings:
    kind: Literal["last", "none"] = option("last", "which")
    names: list[str] = option(["x"], "some")
    count: int = option(3, "how many", 1)
    share: float = option(0.5, "how much")
    limit: int | None = option(None, "at most", 1)
    flag: bool = option(True, "whether")
    layers: list[int | float] = option([], "some")
    made_of: str | dict[str, Any] | None = option(None, "parts")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        *((int, value, 100) for value in ("100", 100.0, "1e2")),
        *((float, value, 1.0) for value in (1, "1e0")),
        *((bool, value, True) for value in (True, "True", "yes", "1")),
        *((bool, value, False) for value in ("false", "no", 0)),
        *((int | None, value, None) for value in (None, "none", "null")),
        (Literal["last", "none"], "none", "none"),  # a choice, and not the absence of a value
        (str, False, "no"),  # YAML's bare `no`
        (str | bool | None, True, True),
        (list[str], " a , b ,", ["a", "b"]),
        (list[str], "none", []),
        (list[float], 0.5, [0.5]),
        *((str | dict[str, Any] | None, value, value) for value in ({"r": 4}, "adapter.json")),
    ],
)
def test_values_become_the_types_of_their_settings(kind: Any, value: Any, expected: Any) -> None:
    found = typed("name", value, kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"), [(str, 5), (int, "many"), (int, 1.5), (int, True), (bool, "perhaps"), (list[float], "1,x")]
)
def test_wrong_types_are_told(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^name=.* is not "):
        typed("name", value, kind)


def test_layers_are_fractions_of_the_depth_or_numbers() -> None:
    for given in ([0.25, 1, 1.0], "0.25,1,1.0", ["0.25", "1", "1.0"]):
        layers = typed("feature_layers", given, field_types()["feature_layers"])
        taps = tap_settings(MethodConfig(feature_layers=layers))["layers"]
        assert [(type(tap), tap) for tap in taps] == [(float, 0.25), (int, 1), (float, 1.0)]
        assert resolve_taps(taps, 6) == (1, 1, 6), "the first layer, and the last"


def test_checks_look_once_at_choices_and_smallest_values() -> None:
    check(Settings(limit=None, count=1))
    for wrong in ({"kind": "lats"}, {"count": 0}, {"count": float("nan")}):
        with pytest.raises(ConfigError, match=r"did you mean 'last'|must be at least 1"):
            check(Settings(**wrong))  # type: ignore[arg-type]
    Settings().names.append("y")
    assert Settings().names == ["x"], "a default is not shared"


def test_names_of_other_tools_lead_to_ours() -> None:
    of_eval = ["--" + name.replace("_", "-") for name, _, _ in options()]
    for known, name, ours in (
        (field_types("train"), "beta", "kl_weight"),
        (field_types("rlvr"), "beta", "kl_coefficient"),
        (of_eval, "--num-generations", "--samples"),
        (of_eval, "--num_generations", "--samples"),
        (["use_cpu"], "use-cpu", "use_cpu"),
    ):
        with pytest.raises(ConfigError, match=f"unknown setting '{name}'; here it is called '{ours}'"):
            check_name(name, known, "setting")


def parsed(*arguments: str) -> Any:
    parser = Parser("test", "a test")
    parser.add_argument("--config")
    parser.add_settings("Settings", [(f.name, f) for f in fields(Settings)])
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--count", "4", "--made_of=a=b"], {"count": "4", "made_of": "a=b"}),
        (["--made-of", "x", "--count", "-1"], {"made_of": "x", "count": "-1"}),
        (["--flag", "--names", "a,b", "c", "--names", "d"], {"flag": True, "names": ["a", "b", "c", "d"]}),
        (["--no-flag", "--count", "1", "--count", "2"], {"flag": False, "count": "2"}),
        (["--flag", "false"], {"flag": "false"}),
    ],
)
def test_flags_are_read(arguments: list[str], settings: dict[str, Any]) -> None:
    assert parsed(*arguments).settings == settings
    assert parsed().settings == {}


def test_a_place_with_a_comma_is_one_value_and_an_unknown_flag_is_told(tmp_path: Path) -> None:
    (place := tmp_path / "ebft,seed=0").mkdir()
    assert parsed("--names", str(place), "a,b").settings["names"] == [str(place), "a", "b"]
    for slip, meant in (("--cuont", "--count"), ("--mdae_of", "--made-of")):
        with pytest.raises(ConfigError, match=f"^unknown option '{slip}'; did you mean '{meant}'"):
            parsed(slip, "4")
    with pytest.raises(ConfigError, match=r"^what is 'recipe.yaml'\? Name it, as in --config recipe.yaml"):
        parsed("recipe.yaml")


def test_evaluation_borrows_what_changes_its_numbers() -> None:
    names = {inner for inner, owner in BORROWED.values() if owner is MethodConfig}
    own = {"alpha", "eval_samples", "eval_seed"}
    assert names == set(settings_that_change("text", "features", "proxy")) - own
    chosen = EvalOptions.from_values({"rollouts": "3", "samples": "5", "rollout_temperature": "0.7", "seed": "2"})
    assert (chosen.method.samples, chosen.samples, chosen.method.temperature, chosen.temperature) == (3, 5, 0.7, 0.6)
    assert chosen.method.eval_seed == 2
    assert chosen.values("calibration")["rollouts"] == 3


def test_groups_hold_every_option_once() -> None:
    names = [name for name, _, _ in options()]
    assert len(set(names)) == len(names)
    assert sorted(name for group in GROUPS.values() for name in EvalOptions().values(group)) == sorted(names)
    assert {"horizon", "whitening", "sequences", "text_column"} <= EvalOptions().values("calibration").keys()


def test_a_file_and_flags_which_win(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"  # YAML itself takes 1e-5 for text
    file.write_text("model: of-the-file\ndataset: [a.jsonl, b.jsonl]\nhorizon: 4\nstride: 2\nlearning_rate: 1e-5\n")
    recipe = load_recipe(file, {"output_dir": "o", "horizon": "6", "model": "some-model"})
    assert (recipe.training.horizon, recipe.training.stride, recipe.training.learning_rate) == (6, 2, 1e-5)
    assert (recipe.model.model, recipe.data.dataset) == ("some-model", ["a.jsonl", "b.jsonl"])
    assert recipe.given["horizon"] == 6


def test_shipped_recipes_are_found_but_a_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(find_recipe(name).is_file() for name in shipped_names())
    assert read_values("quickstart")["output_dir"] == "runs/quickstart"
    (tmp_path / "quickstart").write_text("output_dir: mine\n")
    assert read_values("quickstart") == {"output_dir": "mine"}
    with pytest.raises(ConfigError, match=r"no such recipe or study: neither a file .*; did you mean 'paper/qa_code'"):
        find_recipe("qa_code")


def test_unknown_names_and_what_is_required() -> None:
    for given, words in (
        ({"horizen": "1"}, "unknown setting 'horizen' of `ebft train`; did you mean 'horizon'"),
        ({"model": ""}, "no model: every run needs one; give --model"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_recipe(None, {"model": "m", "dataset": "rows.jsonl", "output_dir": "out", "use_cpu": True, **given})


@pytest.mark.parametrize("content", [b"", b"\xff\xfe: 1", b"[" * 400, b"gamma: 0\nhorizon: 4\ngamma: 1\n"])
def test_what_is_no_recipe_is_one_line_with_the_files_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_values(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)
    assert ("'gamma' stands there twice" in str(error.value)) == (b"horizon" in content)


ON_CPU: dict[str, Any] = {"output_dir": "o", "use_cpu": True}


def train(**settings: Any) -> EBFTConfig:
    return EBFTConfig(**ON_CPU, **settings)


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (MethodConfig, {"whitening": "bth"}, "whitening='bth' is not one of none, .*; did you mean 'both'"),
        (MethodConfig, {"context_length": 5}, "does not fit in context_length=5; use a longer context"),
        (MethodConfig, {"samples": 1}, "samples=1 leaves no unbiased feature-matching loss"),
        (MethodConfig, {"short_truths": True}, "short_truths=true needs document_masks=true"),
        (MethodConfig, {"feature_model": "m", "feature_source": "random"}, "exclude each other"),
        (ModelConfig, {"lora": True, "peft": {"r": 4}}, "exclude each other"),
        (train, {"max_length": 512}, "unknown setting 'max_length' of EBFTConfig; here it is called 'context_length'"),
        (RLVRSettings, {"beta": 0.1}, "unknown setting 'beta' of RLVRSettings; here it is called 'kl_coefficient'"),
        (train, {"max_steps": 0}, "-1 for num_train_epochs"),
        (train, {"early_stopping_patience": 2}, "without evaluations is not supported; set eval_strategy"),
        (train, {"fp16": True}, "fp16=true is not supported; .*; use bf16=true, or float32"),
        (train, {"deepspeed": "zero.json"}, "deepspeed is not supported; use fsdp=full_shard"),
        (train, {"neftune_noise_alpha": 5}, "neftune_noise_alpha is not supported; .* ebft sft takes it"),
        (train, {"label_smoothing_factor": 0.1}, "label_smoothing_factor is not supported; .* ebft sft takes it"),
        (train, {"metric_for_best_model": "eval_loss"}, "is no metric of validation; there is cross_entropy, .*"),
        (train, {"fsdp": True, "fsdp_config": {"version": 1}}, "use fsdp=full_shard or shard_grad_op alone"),
        (train, {"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be at least 1"),
        (RLVRSettings, {"output_dir": "o", "generations": 1}, "generations=1 must be at least 2"),
        (train, {"fsdp": True, "eval_tasks": ["humaneval"]}, "with eval_tasks is not supported"),
    ],
)
def test_values_that_would_go_wrong_late_or_unseen(made: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**settings)


def test_what_asks_for_a_sharded_model() -> None:
    found = [train(fsdp=fsdp) for fsdp in ("full_shard", True, "shard_grad_op", None)]
    assert [each.sharding for each in found] == ["full_shard", "full_shard", "shard_grad_op", None]
    assert {each.fsdp_plugin_args for each in found} == {None}, "transformers must not shard it a second time"


def test_accelerate_launch_does_not_wrap_the_model_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="deepspeed is not supported"):
        train()
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="does not shard the model here; set fsdp=full_shard"):
        processes.start(train())
    with pytest.raises(ConfigError, match="report_to='tensorbord' is not known or not installed"):
        processes.start(train(report_to="tensorbord"))
    config = train()
    monkeypatch.setattr(EBFTConfig, "n_gpu", 4)
    with pytest.raises(ConfigError, match="one process sees 4 GPUs; start one process per GPU"):
        processes.start(config)


def test_nothing_is_joined_or_set_up_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    found = train()
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    assert (found.world_size, found.process_index, found.local_process_index) == (4, 1, 1)
    assert found.rows_per_step == 4 * 16
    assert "_setup_devices" not in vars(found), "asking for counts sets nothing up either"


@pytest.mark.parametrize(
    ("metric", "larger"),
    [("eval_cross_entropy", False), ("whitened_proxy", True), ("mbpp_pass@1", True), ("calibration_cfm_at_8", False)],
)
def test_what_is_best(metric: str, larger: bool) -> None:
    assert train(metric_for_best_model=metric, eval_tasks=["mbpp", "calibration"]).greater_is_better == larger
