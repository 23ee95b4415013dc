"""`import ebft`, help and the mistakes of a command line are answered without torch and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.imports import Ended, imports_torch, run_commands

# By name: the arguments, the exit code, and what standard error says. {folder} has a recipe, {folder}/no has nothing.
COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "no command": ([], 2, ""),
    "help": (["--help"], 0, ""),
    "version": (["--version"], 0, ""),
    "unknown command": (["trian"], 2, "did you mean 'train'?"),
    "log level": (["train", "--log_level", "loud"], 2, "--log_level loud is not one of debug"),
    "unexpected argument": (["train", "recipe.yaml"], 2, "unexpected argument 'recipe.yaml'"),
    "a name of another tool": (
        ["train", "--config", "{folder}/recipe.yaml", "--lr", "1e-5"],
        2,
        "unknown setting 'lr'; here it is called 'learning_rate'",
    ),
    "a bad value of transformers' settings": (
        ["train", "--config", "{folder}/recipe.yaml", "--max-steps", "many"],
        2,
        "max_steps='many' is not a whole number",
    ),
    "missing recipe": (["train", "--config", "{folder}/no.yaml"], 2, "no.yaml: no such recipe"),
    "broken recipe": (["train", "--config", "{folder}/broken.yaml"], 2, "broken.yaml: not valid YAML"),
    "unknown setting": (["train", "--config", "{folder}/recipe.yaml", "--horizen", "4"], 2, "did you mean 'horizon'?"),
    "bad value": (["train", "--config", "{folder}/recipe.yaml", "--horizon", "many"], 2, "is not a whole number"),
    "bad choice": (["sft", "--config", "{folder}/recipe.yaml", "--whitening", "bth"], 2, "did you mean 'both'?"),
    "values that do not fit": (["train", "--config", "{folder}/recipe.yaml", "--horizon", "2000"], 2, "does not fit"),
    "no model": (["train", "--dataset", "d", "--output_dir", "o"], 2, "no model: set `model`"),
    "no data": (["rlvr", "--model", "m", "--output_dir", "o"], 2, "no data: set `dataset`"),
    "no output folder": (["train", "--model", "m", "--dataset", "d"], 2, "no output folder"),
    "launch": (["train", "--launch", "two"], 2, "--launch takes the number of processes"),
    "launch with a bad recipe": (
        ["train", "--launch", "2", "--config", "{folder}/recipe.yaml", "--horizen", "4"],
        2,
        "did you mean 'horizon'?",
    ),
    "plan without a recipe": (["plan"], 2, "ebft plan needs --config"),
    "plan without GPUs": (["plan", "--config", "{folder}/recipe.yaml"], 2, "ebft plan needs --gpu, one of h200"),
    "plan help": (["plan", "--help"], 0, ""),
    "sweep option": (
        ["sweep", "--config", "{folder}/recipe.yaml", "--set", "gamma=0", "--launcher", "slrum"],
        2,
        "slrum",
    ),
    "sweep recipe": (["sweep", "--config", "{folder}/no.yaml", "--set", "gamma=0,1"], 2, "no such recipe"),
    "sweep command": (["sweep", "--command", "trian", "--config", "{folder}/recipe.yaml"], 2, "did you mean 'train'?"),
    "compare nothing": (["compare"], 2, "RUN"),
    "compare missing runs": (["compare", "{folder}/no"], 2, "no"),
    "export without output": (["export", "{folder}/no"], 2, "--output"),
    "export missing run": (["export", "{folder}/no", "--output", "{folder}/o"], 2, "no such folder"),
    "export onto a folder": (["export", "{folder}/no", "--output", "{folder}"], 2, "there already and not empty"),
    "export dtype": (["export", "{folder}/no", "--output", "{folder}/o", "--dtype", "bf16"], 2, "not one of float32"),
    "generate missing model": (["generate", "--model", "{folder}/no", "--prompt", "hi"], 2, "no such folder"),
    "generate without the hub": (["generate", "--model", "some/model", "--prompt", "hi"], 2, "is no folder here"),
    "eval option": (["eval", "--modle", "m"], 2, "did you mean '--model'?"),
    "slip beside a missing option": (["generate", "--promt", "x"], 2, "'--promt'; did you mean '--prompt'?"),
    "missing option": (["generate", "--max_new_tokens", "3"], 2, "required: --model"),
    "eval task": (["eval", "--model", "m", "--tasks", "humanevl", "--output", "o"], 2, "did you mean 'humaneval'?"),
    "eval value": (["eval", "--model", "m", "--tasks", "mbpp", "--output", "o", "--limit", "x"], 2, "not a whole"),
    "eval without a model": (["eval", "--tasks", "mbpp", "--output", "o"], 2, "model"),
    "score option": (["score", "humaneval", "--problem", "f"], 2, ""),
    "score task": (
        ["score", "humanevl", "--problems", "f", "--samples", "f", "--output", "{folder}/o.json"],
        2,
        "humaneval",
    ),
    "score missing file": (
        ["score", "humaneval", "--problems", "{folder}/no", "--samples", "{folder}/no", "--output", "{folder}/o.json"],
        2,
        "no",
    ),
    "train missing model": (
        ["train", "--model", "{folder}/no", "--dataset", "d", "--output_dir", "{folder}/o"],
        2,
        "no such folder",
    ),
    "train without the hub": (
        ["train", "--model", "some/model", "--dataset", "d", "--output_dir", "{folder}/o"],
        2,
        "HF_HUB_OFFLINE is set; give a folder, a model of `ebft fetch` (smollm2-135m",
    ),
    "train in a used folder": (
        ["train", "--model", "{folder}/model", "--dataset", "stdlib-functions", "--output_dir", "{folder}/used"],
        2,
        "already holds a run; choose another folder, or continue it with: ebft train --config",
    ),
    "train in a file": (
        ["sft", "--model", "{folder}/model", "--dataset", "stdlib-functions", "--output_dir", "{folder}/recipe.yaml"],
        2,
        "is a file; choose a folder",
    ),
    "plan with an unknown setting": (
        ["plan", "--model", "{folder}/model", "--gpu", "a100", "--gama", "1"],
        2,
        "did you mean 'gamma'?",
    ),
    "plan missing model": (["plan", "--model", "{folder}/no", "--gpu", "a100"], 2, "no such folder"),
    "plan without the hub": (
        ["plan", "--model", "some/model", "--gpus", "1", "--gpu-memory", "80"],
        2,
        "not in the hub's",
    ),
    "train missing data": (
        ["train", "--model", "m", "--dataset", "{folder}/no.jsonl", "--output_dir", "{folder}/o"],
        2,
        "no such file or folder",
    ),
    "train unknown task": (
        ["train", "--model", "m", "--dataset", "d", "--output_dir", "{folder}/o", "--eval_tasks", "humanevl"],
        2,
        "did you mean 'humaneval'?",
    ),
    "fetch nothing": (["fetch"], 2, "name"),
    "fetch unknown model": (["fetch", "smollm2-135"], 2, "did you mean 'smollm2-135m'?"),
    "underscores": (["eval", "--max_new_tokns", "3"], 2, "did you mean '--max-new-tokens'?"),
    **{
        f"{command} --help": ([*command.split(), "--help"], 0, "")
        for command in (
            *(
                "train",
                "sft",
                "rlvr",
                "sweep",
                "study",
                "study run",
                "study report",
                "compare",
                "export",
                "eval",
                "generate",
            ),
            *("score", "fetch", "env"),
        )
    },
    "env argument": (["env", "two words"], 2, "unexpected argument 'two words'"),
    "env option": (["env", "--verbose"], 2, "unknown option '--verbose'"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "recipe.yaml").write_text("model: m\ndataset: d\noutput_dir: out\n")
    (folder / "broken.yaml").write_text("model: [\n")
    (folder / "model").mkdir()
    (folder / "used").mkdir()
    (folder / "used" / "recipe.yaml").write_text("model: m\n")
    commands = [[a.replace("{folder}", str(folder)) for a in arguments] for arguments, _, _ in COMMANDS.values()]
    found = dict(zip(COMMANDS, run_commands(commands), strict=True))
    assert {Path(p).name for p in folder.iterdir()} == {"recipe.yaml", "broken.yaml", "model", "used"}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_answered_without_heavy_imports(name: str, ended: dict[str, Ended]) -> None:
    _, code, words = COMMANDS[name]
    found = ended[name]
    assert found.imported == []
    assert found.code == code, found.errors
    assert words in found.errors
    lines = found.errors.splitlines()
    assert [line.startswith("ebft: ") for line in lines] == ([True] if code and name != "no command" else [])


def test_heavy_imports_are_noticed() -> None:
    """Or the tests above could not fail."""
    (found,) = run_commands([["env"]])
    assert found.code == 0
    assert "torch" in found.imported


def test_a_sweep_over_an_unknown_setting_is_answered_without_heavy_imports(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("model: m\ndataset: d\noutput_dir: out\n")
    command = ["sweep", "--config", str(tmp_path / "recipe.yaml"), "--set", "gama=0,1"]
    assert not imports_torch(*command)
