"""An ordinary transformers checkpoint of a quantised GGUF file, for the families that `ebft fetch` knows: Llama, Qwen2
and Gemma 3. `from_pretrained(gguf_file=)` would hold all weights in float32, and two tables of tokens instead of one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebft.errors import ConfigError
from ebft.runtime.files import Json
from ebft.runtime.messages import progress

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer

TABLE = "model.embed_tokens.weight"


def convert(gguf: Path, folder: Path, dtype: str, ends: Sequence[str]) -> None:
    """A checkpoint in `folder`, of bfloat16 or float32. ends: tokens that end a text, the tokenizer's own first."""
    import torch
    import transformers
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    reader = GGUFReader(gguf)
    config = transformers.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The originals of these models have one table of tokens, for input and output: where the file has two, they are the
    # same one, quantised in two ways.
    config.tie_word_embeddings, config.dtype = True, dtype
    vars(config).pop("_model_name_or_path", None)  # a title, and no name of anything
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    # It undoes the changes that llama.cpp makes to tensors.
    kind = TENSOR_PROCESSORS.get(reader.fields["general.architecture"].contents(), TensorProcessor)
    processor = kind(config=config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    tensors = {names[tensor.name]: tensor for tensor in reader.tensors if tensor.name in names}
    tensors[TABLE] = tensors.pop("lm_head.weight", tensors[TABLE])  # the output's is the finer one
    if set(tensors) != set(model.state_dict()) - {"lm_head.weight"}:
        raise ConfigError(f"transformers {transformers.__version__} does not know all tensors of the GGUF file")

    tokenizer = _tokenizer(reader, gguf, config, ends)
    tokenizer.save_pretrained(folder)
    reader.fields.clear()  # every word is an array of its own: half a GB
    # Written one by one, in the format of safetensors, since its own function wants all of them in memory at once.
    header: Json = {"__metadata__": {"format": "pt"}}
    numbers, end = {"bfloat16": "BF16", "float32": "F32"}[dtype], 0
    for name, tensor in tensors.items():
        begin, end = end, end + int(tensor.n_elements) * getattr(torch, dtype).itemsize
        header[name] = {"dtype": numbers, "shape": tensor.shape[::-1].tolist(), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file, progress("converting", len(tensors)) as advance:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            found = dequantize(tensor.data, tensor.tensor_type)
            found = processor.process(weights=found, name=tensor.name).weights
            file.write(torch.tensor(found, dtype=getattr(torch, dtype)).view(torch.uint8).numpy().data)
            advance(1)
    config.save_pretrained(folder)
    # Only what ends a text: an original's temperature and repetition penalty would change what is measured.
    ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
    eos = [tokenizer.convert_tokens_to_ids(end) for end in ends]
    transformers.GenerationConfig(**ids, eos_token_id=eos).save_pretrained(folder)


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
