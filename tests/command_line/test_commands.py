from __future__ import annotations

from unittest.mock import Mock

import pytest

from ebft import cli, fetch
from ebft.errors import Preempted
from tests.command_line.commands import ebft


class TestCommands:
    def test_help_through_a_process(self) -> None:
        done = ebft("--help")
        assert done.returncode == 0
        assert not done.stderr
        for command in ("ebft train", "ebft fetch", "ebft env"):
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
        assert cli.main(arguments) == 2
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
            monkeypatch.setitem(cli.COMMANDS, arguments[0], (Mock(side_effect=stop), ""))
            assert cli.main(arguments) == code
            assert capsys.readouterr().err == f"ebft: {words}{end}\n"

    def test_fetch_of_an_unknown_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["fetch", "smollm2-135"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        known = ", ".join(fetch.NAMES)
        assert line == f"ebft: unknown model 'smollm2-135'; there is {known}; did you mean 'smollm2-135m'?"
