"""Damaged and hostile files: one line with the file's name, code 2, nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ebft import cli
from ebft.data import formats
from ebft.runtime.files import write_text
from ebft.runtime.messages import plot_label, printable
from tests.command_line.commands import Refused


def parquet(damage: Callable[[bytearray], bytes]) -> bytes:
    import io

    import pyarrow

    pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["some text of a row " * 9] * 999}), file)
    return damage(bytearray(file.getvalue()))


def garbled(content: bytearray, start: int, end: int) -> bytes:
    for place in range(start, end):
        content[place] ^= 0x5A
    return bytes(content)


DATA: dict[str, Callable[[], bytes]] = {
    "deep.jsonl": lambda: b'{"text": ' + b"[" * 100_000,
    "deep.json": lambda: b"[" * 100_000,
    "text.jsonl": lambda: b'{"text": "\xff\xfe"}\n',
    "text.json": lambda: b'[{"text": "\xff\xfe"}]',
    "text.csv": lambda: b"text\n\xff\xfe\n",
    "digits.jsonl": lambda: b'{"text": ' + b"9" * 5000 + b"}\n",
    "cut.parquet": lambda: parquet(lambda content: bytes(content[: len(content) // 2])),
    "content.parquet": lambda: parquet(lambda content: garbled(content, 50, 400)),
    "footer.parquet": lambda: parquet(lambda content: garbled(content, len(content) - 200, len(content) - 20)),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DATA[name]())
    assert f"{tmp_path / name}: " in refused("--dataset", tmp_path / name)


MODELS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "weights cut": ("model.safetensors", lambda content: content[: len(content) // 2]),
    "weights' header": ("model.safetensors", lambda content: b"\xff" * 16 + content[16:]),
    "tokenizer cut": ("tokenizer.json", lambda content: content[: len(content) // 2]),
    "another tokenizer": ("tokenizer.json", lambda _: b'{"version": "1.0", "model": {"type": "BPE", "vocab": 5}}'),
    "a list": ("tokenizer_config.json", lambda _: b"[]"),
    "deep settings": ("config.json", lambda _: b'{"a":' * 50_000),
    "settings of a wrong type": ("config.json", lambda c: c.replace(b'"hidden_size": ', b'"hidden_size": "x", "y": ')),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, refused: Refused, model: Path, tmp_path: Path) -> None:
    file, damage = MODELS[name]
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / file).write_bytes(damage((broken / file).read_bytes()))
    line = refused("--model", broken)
    assert f"model='{broken}' cannot be loaded: " in line


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "does not accept this conversation"),
        ("{{ x.y.z }}", "does not accept this conversation"),
        ("{{ messages + 1 }}", "does not accept this conversation"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "not finished after 1 s"),
    ],
)
def test_chat_templates(
    template: str, words: str, refused: Refused, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "TEMPLATE_SECONDS", 1.0)
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "chat_template.jinja").write_text(template)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "chat.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 9)
    assert words in refused("--model", broken, "--dataset", tmp_path / "chat.jsonl")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe: 1", b"[" * 5000, b"{a: " * 3000, b"a: \x00", b"a: 2001-99-99", b"? [a]\n: b"]
)
def test_recipes(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_bytes(content)
    assert cli.main(["train", "--config", str(tmp_path / "recipe.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ebft: {tmp_path}/recipe.yaml: ")


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--config", "\x1b[2J\x07.yaml"]) == 2
    assert capsys.readouterr().err.startswith("ebft: \\x1b[2J\\x07.yaml: no such recipe: ")
    assert printable("a\tb\n\x9b\u202e") == "a\tb\n\\x9b\\u202e"


@pytest.mark.pictures
def test_names_in_pictures_are_no_formulas(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    for name in (r"$\frac{$", r"_hidden$\input{/etc/passwd}$", "\x1b[31m"):
        axis.plot([0, 1], label=plot_label(name))
    assert len(axis.legend().get_texts()) == 3
    figure.savefig(tmp_path / "picture.png")
    plt.close(figure)


def test_what_is_written_beside_its_place_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    (tmp_path / "results.json.partial").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "results.json", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "results.json").read_text() == "new"
    assert not (tmp_path / "results.json").is_symlink()
