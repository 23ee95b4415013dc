from __future__ import annotations

from dataclasses import fields
from typing import Any
from unittest.mock import Mock

import pytest

from ebft import cli
from ebft.config.method import MethodConfig
from ebft.config.model_and_data import DataConfig, ModelConfig
from ebft.config.running import RunningConfig
from ebft.errors import Preempted
from tests.command_line.commands import ebft


class TestCommands:
    def test_help_through_a_process(self) -> None:
        done = ebft("--help")
        assert done.returncode == 0
        assert not done.stderr
        for command in ("ebft train", "ebft fetch smollm2-135m", "ebft env"):
            assert command in done.stdout

    def test_without_a_command_the_usage_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([]) == 2
        assert "usage: ebft" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        import ebft as package

        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == package.__version__

    def test_unknown_command_suggests_the_nearest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["trian"]) == 2
        assert capsys.readouterr().err == (
            "ebft: unknown command 'trian'; there is train, sft, rlvr, plan, sweep, study, compare, generate, export, "
            "eval, score, fetch, env; did you mean 'train'?\n"
        )

    def test_train_help_is_grouped_and_holds_every_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "--help"]) == 0
        text = capsys.readouterr().out
        titles = ["The model", "The data", "The method", "The frozen feature network", "Running", "Everything of"]
        places = [text.index(f"\n{title}") for title in titles]
        assert places == sorted(places)
        own = [f.name for cls in (MethodConfig, RunningConfig, ModelConfig, DataConfig) for f in fields(cls)]
        for name in [*own, "output_dir", "learning_rate", "max_steps", "report_to"]:
            assert f"  --{name} " in text, name
        for flag in ("--resume", "--dry-run", "--config"):
            assert flag in text
        method, features = places[2], places[3]
        assert method < text.index("--horizon ") < features < text.index("--feature_layers ")
        assert "G: tokens of a rollout [8]" in text

    def test_env_names_versions_and_hardware(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["env"]) == 0
        lines = capsys.readouterr().out.splitlines()
        found = dict(line.split("  ", 1) for line in lines)
        assert {"platform", "python", "ebft", "torch", "transformers", "peft", "cpu cores"} <= set(found)
        assert any(line.startswith("gpu") for line in lines)

    @pytest.mark.parametrize("arguments", [["env", "--verbose"], ["fetch"], ["fetch", "a", "b"]])
    def test_wrong_arguments_of_the_small_commands(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: ")

    @pytest.mark.parametrize(
        ("arguments", "resumes"),
        [
            (["generate", "--model", "m"], False),
            (["study", "report", "s"], False),
            (["fetch", "m"], False),
            (["study", "run", "s"], True),
            (["eval"], True),
        ],
    )
    def test_only_commands_that_resume_say_so_when_stopped(
        self, arguments: list[str], resumes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        end = "; the same command resumes from here" if resumes else ""
        stops: list[tuple[BaseException, int, str]] = [
            (KeyboardInterrupt(), cli.INTERRUPTED, "stopped"),
            (Preempted("SIGTERM"), cli.PREEMPTED, "stopped by SIGTERM"),
        ]
        for stop, code, words in stops:
            monkeypatch.setattr(cli, f"_{arguments[0]}", Mock(side_effect=stop))
            assert cli.main(arguments) == code
            assert capsys.readouterr().err == f"ebft: {words}{end}\n"

    def test_fetch_of_an_unknown_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["fetch", "smollm2-135"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        known = "smollm2-135m, gemma3-270m, bytes-2m"
        assert line == f"ebft: unknown model 'smollm2-135'; there is {known}; did you mean 'smollm2-135m'?"


class TestFlags:
    @pytest.mark.parametrize(
        ("arguments", "file", "values"),
        [
            (["--config", "a.yaml", "--horizon", "4"], "a.yaml", {"horizon": "4"}),
            (["--horizon=4", "--config=a.yaml"], "a.yaml", {"horizon": "4"}),
            (["--learning-rate", "1e-5"], None, {"learning_rate": "1e-5"}),
            (["--lora", "--packing", "false"], None, {"lora": True, "packing": "false"}),
            (
                ["--dataset", "a.jsonl", "b.jsonl", "--seed", "1"],
                None,
                {"dataset": ["a.jsonl", "b.jsonl"], "seed": "1"},
            ),
            (["--max_steps", "-1"], None, {"max_steps": "-1"}),
            (["--run_name=a=b"], None, {"run_name": "a=b"}),
        ],
    )
    def test_are_read(self, arguments: list[str], file: str | None, values: dict[str, Any]) -> None:
        assert cli._flags(arguments) == (file, values)

    @pytest.mark.parametrize("arguments", [["recipe.yaml"], ["-x"], ["--config"], ["--config", "a", "b"]])
    def test_that_make_no_sense(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: ")
