"""An ordinary transformers checkpoint of a quantised GGUF file, for the families that `ebft fetch` knows: Llama, Qwen2
and Gemma 3. `from_pretrained(gguf_file=)` does the same on one core; here several processes dequantise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebft.errors import ConfigError
from ebft.runtime.messages import progress

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor

TABLE = "model.embed_tokens.weight"


def convert(gguf: Path, folder: Path, dtype: str, ends: Sequence[str]) -> None:
    """
    Args:
        dtype: of the checkpoint: bfloat16 or float32.
        ends: tokens that end a text, the tokenizer's own first.
    """
    import torch
    import transformers
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(gguf)
    config = transformers.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The originals of these models have one table of tokens, for input and output: where the file has two, they are the
    # same one, quantised in two ways.
    config.tie_word_embeddings, config.dtype = True, dtype
    vars(config).pop("_model_name_or_path", None)  # a title, and no name of anything
    tensors, processor = _named(reader, config)
    weights = {}
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        given = [(t.data, int(t.tensor_type), t.name, processor) for t in tensors.values()]
        with progress("converting", len(tensors), leave=False) as advance:
            for name, numbers in zip(tensors, pool.map(_dequantized, given), strict=True):
                weights[name] = torch.tensor(numbers, dtype=getattr(torch, dtype))
                advance(1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokenizer = _tokenizer(reader, gguf, config, ends)
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    # Only what ends a text: an original's temperature and repetition penalty would change what is measured.
    transformers.GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=[tokenizer.convert_tokens_to_ids(end) for end in ends],
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)


def _named(reader: GGUFReader, config: PreTrainedConfig) -> tuple[dict[str, ReaderTensor], object]:
    """The file's tensors by their names in transformers, and what undoes the changes that llama.cpp makes to them."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    architecture = reader.fields["general.architecture"].contents()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    tensors = {names[tensor.name]: tensor for tensor in reader.tensors if tensor.name in names}
    tensors[TABLE] = tensors.pop("lm_head.weight", tensors[TABLE])  # the output's is the finer one
    if set(tensors) != set(model.state_dict()) - {"lm_head.weight"}:
        raise ConfigError(f"transformers {transformers.__version__} does not know all tensors of the GGUF file")
    return tensors, processor


def _dequantized(given: tuple[NDArray[np.generic], int, str, TensorProcessor]) -> object:
    """The numbers of a tensor, as transformers has them. In a process of its own."""
    from gguf import GGMLQuantizationType as Kind
    from gguf.quants import dequantize

    data, kind, name, processor = given
    return processor.process(weights=dequantize(data, Kind(kind)), name=name).weights


def _tokenizer(reader: GGUFReader, gguf: Path, config: PreTrainedConfig, ends: Sequence[str]) -> Tokenizer:
    """As the original's: a feature network is refused whose vocabulary is another.

    transformers 5.17 takes the token that begins a message of SmolLM2 for its end, and cuts most of Qwen's special
    tokens to pieces; 5.22 does not normalise Qwen's texts, and gives words to unused places of its table.
    """
    import transformers
    from gguf import TokenType

    if config.model_type != "qwen2":
        # Texts of Gemma begin with a token of their own, which is not in the file.
        begin = {"add_bos_token": True} if config.model_type == "gemma3_text" else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, **begin)
        tokenizer.eos_token = ends[0]
        return tokenizer
    words, kinds, merges = (
        reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")
    )
    made: Any = transformers.Qwen2Tokenizer
    tokenizer = made(
        vocab={word: number for number, word in enumerate(words) if kinds[number] != TokenType.UNUSED},
        merges=[tuple(merge.split(" ")) for merge in merges],
        eos_token=ends[0],
        pad_token=words[config.pad_token_id],
        unk_token=None,
        model_max_length=config.max_position_embeddings,
        chat_template=reader.fields["tokenizer.chat_template"].contents(),
    )
    for word, kind in zip(words, kinds, strict=True):
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
            special = kind == TokenType.CONTROL
            tokenizer.add_tokens(transformers.AddedToken(word, special=special, normalized=False), special)
    return tokenizer
