from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ebft import cli
from tests.command_line.commands import ROWS, SETTINGS, Finished, Refused, contents, ebft, write_rows
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets
    import huggingface_hub

    # The libraries read the variable only when they are first imported.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), byte_tokenizer(pad=END))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", ROWS)


@pytest.fixture(scope="session")
def recipe(model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "model": str(model), "dataset": str(rows)}))
    return file


@pytest.fixture(scope="session")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of three steps through a process, once for all the tests that look at it.

    They are all in one file: in two, with several workers, it would be made twice, and most of it is imports.
    """
    folder = tmp_path_factory.mktemp("run")
    arguments = ["train", "--config", str(recipe), "--output_dir", str(folder / "out"), "--seed", "7"]
    return Finished(arguments, folder / "out", ebft(*arguments, EBFT_CACHE=str(folder / "cache")))


@pytest.fixture
def refused(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs `ebft train`, which must give one line of error, code 2 and no output folder; returns the line."""

    def run(*arguments: object, output: Path | None = None) -> str:
        folder = output or tmp_path / "out"
        before = contents(folder) if folder.is_dir() else None
        capfd.readouterr()
        code = cli.main(["train", "--config", str(recipe), "--output_dir", str(folder), *map(str, arguments)])
        printed = capfd.readouterr()
        lines = [line for line in printed.err.splitlines() if not line.startswith(("note: ", "training on "))]
        assert code == 2, printed
        assert len(lines) == 1, printed.err
        assert lines[0].startswith("ebft: ")
        assert printed.out == ""
        assert (contents(folder) if folder.is_dir() else None) == before
        return lines[0]

    return run
