"""Text from a model: one interface, transformers behind it, or vLLM where it is installed.

What is sampled for a prompt depends on the settings' seed and the prompt's own key, never on those beside it: each
token takes one uniform number, a hash of (seed, key, sample, step), and is found in the cumulative distribution
(`ebft.method.sampling`). What remains of the others is rounding, which may turn a near-tie.

A raw prompt that ends in whitespace is tokenized without it: many tokenizers merge a line break with the indentation
after it, and a model could no longer produce that token. The model writes the whitespace itself, and it is taken off
again: a completion continues the prompt as it was given (`Fitted.shown`).
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ebft.errors import ConfigError, how_to_install
from ebft.evaluate.side_by_side import SideBySide, check_plain_cache
from ebft.method.sampling import check_sampling, uniforms
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import base_model, end_tokens_of, evaluating, text_config

GREEDY = -1  # the sample that is drawn at temperature 0, beside others at the temperature of the settings
ROWS, MOST_ROWS = 16, 1024  # written at once: by default, and the most
REQUESTS_AT_ONCE = 1024  # of vLLM, which batches by itself; this is how often finished completions reach the disk
Wanted = Sequence[tuple[int, int]]  # places of prompts, each with the number of a sample


@dataclass(frozen=True)
class GenerationSettings:
    max_new_tokens: int = 512
    temperature: float = 0.0  # 0 is greedy
    top_p: float | None = None  # sample from the smallest set of tokens with this probability
    samples: int = 1  # completions of every prompt
    stop: tuple[str, ...] = ()  # a completion ends before the first of these strings
    # raw: as it is, but for whitespace at its end; chat: a user's turn of the tokenizer's template; rendered: what the
    # template has made already.
    prompt_style: Literal["raw", "chat", "rendered"] = "raw"
    system_prompt: str | None = None  # what a chat begins with
    answer_start: str = ""  # of the answer in a chat: given to the model, and not part of the completion
    seed: int = 0
    too_long: Literal["error", "truncate"] = "error"  # for a prompt that leaves no room in the model's context

    def __post_init__(self) -> None:
        check_sampling(self.temperature, None, self.top_p)


class Completion(NamedTuple):
    text: str  # before the stop string, without special tokens
    finish: str  # "end" token, "stop" string, "length" (max_new_tokens), or "context" (the model's, used up)
    tokens: int  # how many were generated, the end token included
    prompt_truncated: bool = False


Made = Iterator[list[tuple[int, int, Completion]]]  # place of the prompt, sample, completion


class Fitted(NamedTuple):
    """A prompt as the model is given it."""

    tokens: list[int]
    room: int  # for so many new tokens
    truncated: bool
    whitespace: str  # what the prompt ended in, and the tokens do not

    def shown(self, text: str) -> str:
        """What the model wrote, without the prompt's whitespace; kept whole where it continued otherwise."""
        return "" if self.whitespace.startswith(text) else text.removeprefix(self.whitespace)

    def completion(self, written: str, finish: str, tokens: int, settings: GenerationSettings) -> Completion:
        """Up to the first stop string, which counts from where the completion begins: a line break that belongs to the
        prompt ends nothing."""
        text = self.shown(written)
        if finish == "length" and self.room < settings.max_new_tokens:
            finish = "context"
        first = min((place for place in map(text.find, settings.stop) if place >= 0), default=None)
        return Completion(text[:first], "stop" if first is not None else finish, tokens, self.truncated)


class Generator:
    """Completions of prompts. `context` is the most tokens that prompt and completion may have together, if known."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: int | None) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.streamer: BaseStreamer | None = None  # sees tokens as they come, where one completion is made at a time

    @abstractmethod
    def stream(self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]) -> Made:
        """Completions for the wanted pairs, a few at a time. keys: what tells the prompts' random numbers apart."""

    def complete(
        self, prompts: Sequence[str], settings: GenerationSettings, keys: Sequence[str] | None = None
    ) -> list[list[Completion]]:
        """`settings.samples` completions of every prompt. keys: as in `stream`, by default the prompts' places."""
        wanted = [*product(range(len(prompts)), range(settings.samples))]
        batches = self.stream(prompts, settings, wanted, keys or [*map(str, range(len(prompts)))])
        found = {(place, sample): completion for batch in batches for place, sample, completion in batch}
        return [[found[place, sample] for sample in range(settings.samples)] for place in range(len(prompts))]

    def fit(self, prompt: str, key: str, settings: GenerationSettings) -> Fitted:
        """The prompt's tokens, cut if they must and may be."""
        raw, most = settings.prompt_style == "raw" and prompt.strip(), settings.max_new_tokens
        whitespace = prompt[len(prompt.rstrip()) :] if raw else ""
        tokens = tokenize(prompt.removesuffix(whitespace), self.tokenizer, settings)
        if not tokens:
            raise ConfigError(f"prompt {key} is empty; give the model at least one token")
        context = self.context or len(tokens) + most
        too_long = len(tokens) >= context
        if too_long and settings.too_long == "error":
            what = f"prompt {key} has {len(tokens)} tokens and leaves no room in the model's context of {context}"
            raise ConfigError(f"{what}; use too_long=truncate to drop its beginning")
        if too_long:  # leave the room that was asked for, up to half of the context
            tokens = tokens[-max(1, context - min(most, context // 2)) :]
        return Fitted(tokens, min(most, context - len(tokens)), too_long, whitespace)

    def fit_all(
        self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]
    ) -> list[tuple[int, int, Fitted]]:
        """The wanted pairs with their prompts, the longest first: what needs too much memory fails at once."""
        fitted = {place: self.fit(prompts[place], keys[place], settings) for place in {p for p, _ in wanted}}
        order = sorted(wanted, key=lambda pair: (-len(fitted[pair[0]].tokens), pair))
        return [(place, sample, fitted[place]) for place, sample in order]


class TransformersGenerator(Generator):
    """A causal language model of transformers, with or without an adapter, which is as before afterwards. batch_size:
    completions generated at once; None: 16 on a CPU, on a GPU as many as fit."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, batch_size: int | None = 8) -> None:
        super().__init__(tokenizer, getattr(text_config(model), "max_position_embeddings", None))
        avoid_cudnn_attention()
        self.model, self.batch_size = model, batch_size
        self.end_token_ids = {tokenizer.eos_token_id, *end_tokens_of(model)}

    def stream(self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]) -> Made:
        asked = self.fit_all(prompts, settings, wanted, keys)
        waiting = deque(_Row(self, settings, place, sample, prompt) for place, sample, prompt in asked)
        base: Any = base_model(self.model)
        check_plain_cache(base)
        longest = len(waiting[0].prompt.tokens) if waiting else 0
        batch_size = self.batch_size or rows_that_fit(base, longest, settings.max_new_tokens)
        texts, rows, staying = SideBySide(base, settings.temperature, settings.top_p), list[_Row](), list[int]()
        while waiting or staying:
            joining = [waiting.popleft() for _ in range(min(len(waiting), batch_size - len(staying)))]
            rows = [*(rows[place] for place in staying), *joining]
            seeds = torch.tensor([prompt_seed(settings.seed, keys[row.place]) for row in joining], dtype=torch.long)
            samples = torch.tensor([row.sample for row in joining], dtype=torch.long)[:, None]
            uniform = uniforms(seeds, samples, 1, settings.max_new_tokens)[:, 0, 0]
            with evaluating(self.model):
                greedy = [row.sample == GREEDY for row in joining]
                texts.replace(staying, [row.prompt.tokens for row in joining], uniform, greedy)
                while all(row.completion is None for row in rows):
                    # Decoding many rows after every token takes longer than a small model's step. And no row goes past
                    # the end of its room, where there may be no positions.
                    steps = min(16, 1 + len(rows) // 16, *(row.room for row in rows))
                    drawn = torch.cat([texts.step() for _ in range(steps)], 1)
                    for row, tokens in zip(rows, drawn.tolist(), strict=True):
                        row.take(tokens)
            staying = [place for place, row in enumerate(rows) if row.completion is None]
            yield [(row.place, row.sample, row.completion) for row in rows if row.completion is not None]


def rows_that_fit(base: Any, prompt: int, new: int) -> int:
    """How many texts a model can write side by side in half of the memory that its GPU has free."""
    device = base.get_input_embeddings().weight.device
    if device.type != "cuda":
        return ROWS
    config = text_config(base)
    heads, hidden = config.num_attention_heads, config.hidden_size
    width = getattr(config, "head_dim", None) or hidden // heads
    # Keys and values of all layers; of one again where rows join, and where its heads are repeated. What the pass over
    # the prompts holds. Logits in the model's precision, and a few times in float32 where they are sampled from.
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    cached = 2 * width * (key_heads * (config.num_hidden_layers + 2) + 2 * heads)
    in_pass = 8 * hidden + 3 * (getattr(config, "intermediate_size", None) or 4 * hidden)
    per_row = base.dtype.itemsize * ((prompt + new) * cached + prompt * in_pass) + 20 * config.vocab_size
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(MOST_ROWS, free // 2 // per_row))


@dataclass
class _Row:
    """A completion that is being written, until it has ended."""

    of: TransformersGenerator
    settings: GenerationSettings
    place: int
    sample: int
    prompt: Fitted
    completion: Completion | None = None
    tokens: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many tokens it may still have."""
        return self.prompt.room - len(self.tokens)

    def take(self, tokens: list[int]) -> None:
        """What has been drawn since it took tokens last; what follows its end is left."""
        looked = len(self.tokens)
        end = next((place for place, token in enumerate(tokens) if token in self.of.end_token_ids), None)
        self.tokens += tokens[:end]
        length, finish = len(self.tokens), "end" if end is not None else "length" if self.room == 0 else ""
        if self.settings.stop and self._stops(looked, length):
            finish, length = "stop", next(n for n in range(looked + 1, length + 1) if self._stops(looked, n))
        if streamer := self.of.streamer:
            streamer.put(torch.tensor(self.tokens[looked:]))
            if finish:
                streamer.end()
        if finish:
            text = continuation(self.of.tokenizer, self.prompt.tokens, self.tokens[:length])
            self.completion = self.prompt.completion(text, finish, length + (finish == "end"), self.settings)

    def _stops(self, looked: int, length: int) -> bool:
        """Whether so many tokens show a stop string, which those that were looked at do not."""
        # A token holds at least a byte, but for special ones: looking back so far finds every stop string, and sees
        # where the whitespace of the prompt may be.
        near = 16 + max(len(text.encode()) for text in self.settings.stop) + len(self.prompt.whitespace.encode())
        if looked >= near:
            text = _decode(self.of.tokenizer, self.tokens[looked - near : length])
        else:
            text = self.prompt.shown(continuation(self.of.tokenizer, self.prompt.tokens, self.tokens[:length]))
        return any(string in text for string in self.settings.stop)


class VLLMGenerator(Generator):
    """The extra `vllm`. Seeds are per completion, so that what is sampled does not depend on what else runs; its random
    numbers are not ours. model: folder or hub name, of the base model if there is an adapter, which is a folder."""

    def __init__(self, model: str, tokenizer: PreTrainedTokenizerBase, adapter: str | None, **options: Any) -> None:
        try:
            import vllm
        except ImportError:
            raise ConfigError(f"backend=vllm needs vLLM; {how_to_install('vllm')}") from None
        self.vllm, self.adapter = vllm, None
        self.engine = vllm.LLM(model=model, enable_lora=adapter is not None, **options)
        super().__init__(tokenizer, int(self.engine.llm_engine.model_config.max_model_len))
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            self.adapter = LoRARequest("adapter", 1, adapter)

    def stream(self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]) -> Made:
        def ask(asked: Sequence[tuple[int, int, Fitted]], stop: Sequence[str]) -> list[Any]:
            parameters = [
                self.vllm.SamplingParams(
                    temperature=0.0 if sample == GREEDY else settings.temperature,
                    top_p=1.0 if sample == GREEDY or settings.top_p is None else settings.top_p,
                    max_tokens=prompt.room,
                    stop=list(stop) or None,
                    # Beside the end tokens that vLLM finds itself.
                    stop_token_ids=None if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id],
                    seed=(prompt_seed(settings.seed, keys[place]) + sample) % 2**63,
                )
                for place, sample, prompt in asked
            ]
            tokens = [{"prompt_token_ids": prompt.tokens} for _, _, prompt in asked]
            found = self.engine.generate(tokens, parameters, use_tqdm=False, lora_request=self.adapter)
            return [output.outputs[0] for output in found]

        every = self.fit_all(prompts, settings, wanted, keys)
        for start in range(0, len(every), REQUESTS_AT_ONCE):
            asked = every[start : start + REQUESTS_AT_ONCE]
            found, batch = ask(asked, settings.stop), []
            stopped = [isinstance(one.stop_reason, str) for one in found]
            # vLLM does not know that a line break may belong to the prompt. Answers that it stopped there are made
            # again, the same ones by their seeds, without stop strings, and cut here.
            early = [n for n, one in enumerate(found) if stopped[n] and len(one.text) < len(asked[n][2].whitespace)]
            for n, one in zip(early, ask([asked[n] for n in early], ()) if early else [], strict=True):
                found[n] = one
            for (place, sample, prompt), one, stop in zip(asked, found, stopped, strict=True):
                finish = "length" if one.finish_reason == "length" else "stop" if stop else "end"
                batch.append((place, sample, prompt.completion(one.text, finish, len(one.token_ids), settings)))
            yield batch


def tokenize(prompt: str, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> list[int]:
    """The tokens a completion follows. A chat template brings its own special tokens."""
    if settings.prompt_style == "raw":
        tokens = tokenizer(prompt)["input_ids"]
        # Some tokenizers end every text by themselves, after which a model has nothing to say.
        return tokens[:-1] if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id else tokens
    if settings.prompt_style == "chat":
        turns = [{"role": "user", "content": prompt}]
        prompt = chat_text(turns, tokenizer, settings.system_prompt) + settings.answer_start
    return tokenizer(prompt, add_special_tokens=False)["input_ids"]


def chat_text(turns: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, system_prompt: str | None = None) -> str:
    """A conversation by the tokenizer's template, up to where the assistant's next turn begins."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError("the tokenizer has no chat template; give the model prompts as texts (--prompt-style raw)")
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return str(tokenizer.apply_chat_template([*system, *turns], tokenize=False, add_generation_prompt=True))


def continuation(tokenizer: PreTrainedTokenizerBase, prompt: list[int], tokens: list[int]) -> str:
    """The text of `tokens` after the prompt. Decoded alone, some tokenizers would lose the space they begin with."""
    before = prompt[-8:]
    context, whole = _decode(tokenizer, before), _decode(tokenizer, [*before, *tokens])
    return whole[len(context) :] if whole.startswith(context) else _decode(tokenizer, tokens)


def _decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def prompt_seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:8], "big") >> 2
