"""A byte-level tokenizer without any download: one token a byte, so that flags can be read as stretches of text."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.models import tiny_model

END, PAD, TURN = "<end>", "<pad>", "</turn>"
VOCABULARY = 256 + 3
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</turn>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(
    end: str | None = END, pad: str | None = None, chat_template: str | None = CHAT_TEMPLATE, extra_tokens: int = 0
) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, PAD, TURN, *(f"<extra{number}>" for number in range(extra_tokens))])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, pad_token=pad, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny_model(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **sizes: int) -> Path:
    """A model with its tokenizer as a user would have it on disk."""
    tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2, **sizes).save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder
