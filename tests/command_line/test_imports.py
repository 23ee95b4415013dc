"""`import ebft`, help and the mistakes of a command line are answered without torch and transformers."""

from __future__ import annotations

import pytest

from tests.imports import Ended, run_commands

# By name: the arguments, the exit code, and what standard error says. {folder} has a recipe, {folder}/no has nothing.
COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "no command": ([], 2, ""),
    "help": (["--help"], 0, ""),
    "version": (["--version"], 0, ""),
    "unknown command": (["trian"], 2, "did you mean 'train'?"),
    "launch": (["train", "--launch", "two"], 2, "--launch takes the number of processes"),
    "compare nothing": (["compare"], 2, "RUN"),
    "compare missing runs": (["compare", "{folder}/no"], 2, "no"),
    "export without output": (["export", "{folder}/no"], 2, "--output"),
    "export missing run": (["export", "{folder}/no", "--output", "{folder}/o"], 2, "no such folder"),
    "generate missing model": (["generate", "--model", "{folder}/no", "--prompt", "hi"], 2, "no such folder"),
    "eval option": (["eval", "--modle", "m"], 2, "did you mean '--model'?"),
    "slip beside a missing option": (["generate", "--promt", "x"], 2, "'--promt'; did you mean '--prompt'?"),
    "missing option": (["generate", "--max_new_tokens", "3"], 2, "required: --model"),
    "eval task": (["eval", "--model", "m", "--tasks", "humanevl", "--output", "o"], 2, "did you mean 'humaneval'?"),
    "eval without a model": (["eval", "--tasks", "mbpp", "--output", "o"], 2, "model"),
    "score option": (["score", "humaneval", "--problem", "f"], 2, "did you mean '--problems'"),
    "fetch unknown model": (["fetch", "smollm2-135"], 2, "did you mean 'smollm2-135m'?"),
    "env argument": (["env", "two words"], 2, "two words"),
    **{
        f"{command} --help": ([*command.split(), "--help"], 0, "")
        for command in ("study", "study run", "compare", "export", "eval", "generate", "score", "fetch", "env")
    },
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("recipes")
    commands = [[a.replace("{folder}", str(folder)) for a in arguments] for arguments, _, _ in COMMANDS.values()]
    found = dict(zip(COMMANDS, run_commands(commands), strict=True))
    assert not list(folder.iterdir())
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
