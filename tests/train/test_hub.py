"""`push_to_hub`, with the hub's two calls replaced."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from tests.baselines.runs import run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def recipe(tiny: Path, sums: Path, tmp_path: Path) -> Path:
    hub = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_private_repo": True}
    return write_recipe(tmp_path, tiny, sums, max_steps=2, save_steps=1, eval_strategy="no", **hub)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def create_repo(self: Any, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        made.append(("create", repo_id, private, exist_ok))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self: Any, *, repo_id: str, folder_path: Path, revision: str | None) -> Any:
        made.append(("upload", repo_id, sorted(file.name for file in folder_path.iterdir())))
        return SimpleNamespace(commit_url="https://hub/me/mine")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return made


def test_the_final_model_and_nothing_else(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    assert run("train", recipe, tmp_path / "out") == 0
    (_, *created), (_, name, files) = calls
    assert (created, name) == (["me/mine", True, True], "me/mine")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert json.loads((tmp_path / "out" / "resolved.json").read_text())["push_to_hub"] is True


def test_without_a_token_nothing_is_trained(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise OSError("401 Unauthorized\nand a long explanation")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    assert run("train", recipe, tmp_path / "out") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "me/mine cannot be made on the hub: 401 Unauthorized; log in with `hf auth login`" in line
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_failed_upload_does_not_fail_the_run(
    recipe: Path, calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the hub is away")

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refuse)
    assert run("train", recipe, tmp_path / "out") == 0
    assert f"again by hand: hf upload me/mine {tmp_path / 'out' / 'final'}" in capsys.readouterr().err
