from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ebft import gguf_checkpoint

LETTERS = bytes_to_unicode()
# One that stands for what is not known, letters, one that is made of two of them, ends, one of no use, and a plain one
# that is never cut.
WORDS = ["<unk>", *sorted(LETTERS.values()), "zz", "<end>", "<other-end>", "[PAD1]", "<tool>"]
KINDS = [3, *(1 for _ in LETTERS), 1, 3, 3, 5, 4]


def write_gguf(file: Path, architecture: str, kind: Kind, head: Kind | None = None) -> dict[str, torch.Tensor]:
    """What llama.cpp makes of a model with random weights; returns those that are left after it was quantised."""
    family = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": len(WORDS)}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, tie_word_embeddings=True))
    for weights in model.parameters():
        torch.nn.init.normal_(weights)
    writer = gguf.GGUFWriter(file, architecture)
    sizes = {"context_length": 128, "block_count": 2, "embedding_length": 64, "feed_forward_length": 96}
    sizes |= {"head_count": 4, "head_count_kv": 2, "key_length": 16, "rope_dimension_count": 16}
    numbers = {"rope_freq_base": 5000.0, "layer_norm_rms_eps": 2.0**-20, "token_scores": [0.0] * len(WORDS)}
    ends = {"eos_token_id": WORDS.index("<end>"), "pad_token_id": WORDS.index("<other-end>"), "unk_token_id": 0}
    words = {"token_list": WORDS, "token_types": KINDS, "token_merges": ["z z"], "chat_template": "{{ messages }}"}
    about = {"name": "a title", "tokenizer_model": "llama" if architecture == "gemma3" else "gpt2"}
    for key, value in {**about, **sizes, **numbers, **words, **ends}.items():
        getattr(writer, f"add_{key}")(value)
    names, left = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], 2), {}
    for name, tensor in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        place, numbers = f"{names.get_name(stem)}.{suffix}", tensor.detach().numpy()
        if numbers.ndim == 1 and architecture == "gemma3":
            writer.add_tensor(place, numbers + 1)
            left[name] = numbers + 1 - 1
        elif numbers.ndim == 1:
            writer.add_tensor(place, left.setdefault(name, numbers))
        else:
            left[name] = dequantize(quantize(numbers, kind), kind)
            if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):  # the two halves of a head interleaved
                numbers = numbers.reshape(len(numbers) // 16, 2, 8, -1).swapaxes(1, 2).reshape(numbers.shape)
            writer.add_tensor(place, quantize(numbers, kind), raw_dtype=kind)
        if head is not None and name == gguf_checkpoint.TABLE:
            writer.add_tensor("output.weight", quantize(numbers, head), raw_dtype=head)
            left[name] = dequantize(quantize(numbers, head), head)
    for what in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{what}_to_file")()
    writer.close()
    return {name: torch.from_numpy(numbers) for name, numbers in left.items()}


@pytest.mark.parametrize(
    ("architecture", "kind", "head", "dtype", "end"),
    [
        ("llama", Kind.Q4_1, None, "float32", "<other-end>"),  # not the one that the file names
        ("qwen2", Kind.Q4_0, Kind.Q8_0, "bfloat16", "<end>"),
        ("gemma3", Kind.Q5_0, None, "float32", "<end>"),
    ],
)
def test_a_checkpoint_is_what_was_quantised(
    tmp_path: Path, architecture: str, kind: Kind, head: Kind | None, dtype: str, end: str
) -> None:
    """By gguf's own dequantisation. Of two tables the finer one stands in both places."""
    file, folder = tmp_path / "model.gguf", tmp_path / "made"
    folder.mkdir()
    left = write_gguf(file, architecture, kind, head)
    gguf_checkpoint.convert(file, folder, dtype, [end, "<tool>"])

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == getattr(torch, dtype)
    made = dict(model.named_parameters())
    assert set(made) == set(left)
    for name, weights in made.items():
        assert torch.equal(weights, left[name].to(model.dtype)), name
    ours, its = model.config.to_dict(), AutoConfig.from_pretrained(tmp_path, gguf_file=file.name).to_dict()
    other = {key for key in ours | its if ours.get(key) != its.get(key)}
    names = {"_name_or_path", "_model_name_or_path"}
    assert other <= names | {"architectures", "dtype", "quantization_config", "tie_word_embeddings"}
    assert ours["tie_word_embeddings"]
    assert "a title" not in (folder / "config.json").read_text()
    settings = GenerationConfig.from_pretrained(folder).to_diff_dict()
    assert settings["eos_token_id"] == [WORDS.index(end), WORDS.index("<tool>")]
    assert AutoTokenizer.from_pretrained(folder).eos_token == end
    assert not settings.keys() & {"temperature", "top_p", "top_k", "repetition_penalty", "do_sample"}


def test_qwens_tokenizer(tmp_path: Path) -> None:
    """No version of transformers reads all of it: special tokens are whole, texts are normalised as the original's are,
    and of the places in the table without a token there is none."""
    write_gguf(tmp_path / "model.gguf", "qwen2", Kind.Q8_0)
    gguf_checkpoint.convert(tmp_path / "model.gguf", tmp_path, "float32", ["<end>"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<end>", "<other-end>", None)
    assert tokenizer.model_max_length == 128
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.tokenize("a<tool>zz<other-end>") == ["a", "<tool>", "zz", "<other-end>"]
    assert tokenizer.decode(tokenizer("a<tool>zz<other-end>").input_ids, skip_special_tokens=True) == "a<tool>zz"
    assert tokenizer("e\u0301").input_ids == [WORDS.index(LETTERS[byte]) for byte in "\u00e9".encode()]
    assert "[PAD1]" not in tokenizer.get_vocab()
