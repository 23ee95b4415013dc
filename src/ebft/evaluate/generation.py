"""Text from a model: one interface, transformers behind it, or vLLM where it is installed.

Prompts are sorted by length and continued side by side with a key-value cache; where one ends, the next takes its place
(`side_by_side.py`). What is sampled for a prompt depends on the settings' seed and the prompt's own key, never on those
beside it: each token takes one uniform number, a hash of (seed, key, sample, step), and is found in the cumulative
distribution (`ebft.method.sampling`). What remains of the others is rounding, which may turn a near-tie.

A raw prompt that ends in whitespace is tokenized without it. Tokenizers that merge a line break with the indentation
after it (those of GPT-2, StarCoder, SmolLM2 and others) would otherwise have cut in the middle of the next natural
token, which the model can then no longer produce. The whitespace is put back afterwards: a completion continues the
prompt as it was given (`Fitted.restore`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from ebft.errors import ConfigError
from ebft.evaluate.side_by_side import SideBySide, has_plain_cache, left_padded
from ebft.method.sampling import check_sampling, sample_tokens, uniforms
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import base_model, end_tokens_of, evaluating, text_config

GREEDY = -1  # the sample that is drawn at temperature 0, beside others at the temperature of the settings
ROWS, MOST_ROWS = 16, 1024  # written at once: by default, and the most
Wanted = Sequence[tuple[int, int]]  # places of prompts, each with the number of a sample


@dataclass(frozen=True)
class GenerationSettings:
    """
    Args:
        max_new_tokens: the most tokens that a completion may have.
        temperature: 0 is greedy.
        top_p: sample from the smallest set of tokens with this probability; None: from all.
        samples: completions per prompt.
        stop: a completion ends before the first of these strings.
        prompt_style: "raw" gives the prompt as it is, but for whitespace at its end, which the model writes itself
            and which is not part of the completion; "chat" makes it a user's turn of the tokenizer's template;
            "rendered" is a text that the template has made already.
        system_prompt: what a chat begins with, if anything.
        answer_start: what the answer in a chat begins with; it is given to the model and not part of the completion.
        seed: of all samples.
        too_long: what to do with a prompt that leaves no room in the model's context.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float | None = None
    samples: int = 1
    stop: tuple[str, ...] = ()
    prompt_style: Literal["raw", "chat", "rendered"] = "raw"
    system_prompt: str | None = None
    answer_start: str = ""
    seed: int = 0
    too_long: Literal["error", "truncate"] = "error"

    def __post_init__(self) -> None:
        check_sampling(self.temperature, None, self.top_p)


class Completion(NamedTuple):
    text: str  # before the stop string, without special tokens
    finish: str  # "end" token, "stop" string, "length" (max_new_tokens), or "context" (the model's, used up)
    tokens: int  # how many were generated, the end token included
    prompt_truncated: bool = False


class Generator(ABC):
    """Completions of prompts. `context` is the most tokens that prompt and completion may have together, if known."""

    def __init__(self, tokenizer: Any, context: int | None) -> None:
        self.tokenizer, self.context = tokenizer, context

    @abstractmethod
    def stream(
        self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]
    ) -> Iterator[list[tuple[int, int, Completion]]]:
        """Completions (prompt, sample, completion) for the wanted (prompt, sample) pairs, a few at a time. The sample
        `GREEDY` is drawn at temperature 0, whatever the settings say."""

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings, keys: Sequence[str] | None = None
    ) -> list[list[str]]:
        """`settings.samples` texts for every prompt; see `complete`."""
        return [[found.text for found in samples] for samples in self.complete(prompts, settings, keys)]

    def complete(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings,
        keys: Sequence[str] | None = None,
        advance: Callable[[int], None] = lambda made: None,
    ) -> list[list[Completion]]:
        """`settings.samples` completions of every prompt, in the order of the prompts.

        Args:
            keys: what tells the prompts' random numbers apart; by default their places in the list.
            advance: called with the number of completions made since its last call.
        """
        keys = [str(place) for place in range(len(prompts))] if keys is None else keys
        wanted = [(place, sample) for place in range(len(prompts)) for sample in range(settings.samples)]
        found: dict[tuple[int, int], Completion] = {}
        for batch in self.stream(prompts, settings, wanted, keys):
            found |= {(place, sample): completion for place, sample, completion in batch}
            advance(len(batch))
        return [[found[place, sample] for sample in range(settings.samples)] for place in range(len(prompts))]

    def fit(self, prompt: str, key: str, settings: GenerationSettings) -> Fitted:
        """The prompt's tokens, cut if they must and may be, and the room they leave for a completion."""
        whitespace = trailing_whitespace(prompt) if settings.prompt_style == "raw" else ""
        tokens = tokenize(prompt.removesuffix(whitespace), self.tokenizer, settings)
        if not tokens:
            raise ConfigError(f"prompt {key} is empty; give the model at least one token")
        if self.context is None:
            return Fitted(tokens, settings.max_new_tokens, False, whitespace)
        too_long = len(tokens) >= self.context
        if too_long and settings.too_long == "error":
            raise ConfigError(
                f"prompt {key} has {len(tokens)} tokens and leaves no room in the model's context of {self.context}; "
                "use too_long=truncate to drop its beginning"
            )
        if too_long:  # leave the room that was asked for, up to half of the context
            tokens = tokens[-max(1, self.context - min(settings.max_new_tokens, self.context // 2)) :]
        return Fitted(tokens, min(settings.max_new_tokens, self.context - len(tokens)), too_long, whitespace)

    def fit_all(
        self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]
    ) -> tuple[dict[int, Fitted], list[tuple[int, int]]]:
        """The wanted prompts fitted, and the pairs with the longest first: what needs too much memory fails at once."""
        fitted = {place: self.fit(prompts[place], keys[place], settings) for place in sorted({p for p, _ in wanted})}
        return fitted, sorted(wanted, key=lambda pair: (-len(fitted[pair[0]].tokens), pair))


class Fitted(NamedTuple):
    tokens: list[int]
    room: int
    truncated: bool
    whitespace: str = ""  # what the prompt ended in, and the tokens do not

    def restore(self, text: str) -> str:
        """The completion of the prompt as it was given, from what the model wrote after its tokens: without the
        prompt's whitespace, which it wrote itself. A model that continues otherwise has its text kept whole."""
        return text.removeprefix(self.whitespace)

    def cut(self, text: str, stop: Sequence[str]) -> str | None:
        """`restore`, and then the part before the first stop string; None if there is none.

        Stop strings count from where the completion begins: a line break that belongs to the prompt ends nothing.
        """
        if len(text) < len(self.whitespace) and self.whitespace.startswith(text):
            return None  # it may still become the prompt's whitespace
        return cut_at_stop(self.restore(text), stop)


class TransformersGenerator(Generator):
    """
    Args:
        model: a causal language model of transformers, with or without a peft adapter. Its mode, its attention and
            its generation settings are as before afterwards; the process has `avoid_cudnn_attention`.
        tokenizer: its tokenizer. A pad token is not needed, and may be the end token.
        batch_size: completions generated at once; None: 16 on a CPU, on a GPU as many as fit (`rows_that_fit`).
    """

    def __init__(self, model: nn.Module, tokenizer: Any, batch_size: int | None = 8) -> None:
        super().__init__(tokenizer, context_size(model, tokenizer))
        avoid_cudnn_attention()
        self.model, self.batch_size = model, batch_size
        self.streamer: Any = None  # of transformers: sees tokens as they come, where one completion is made at a time
        self.end_token_ids = end_token_ids(model, tokenizer)

    def stream(
        self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]
    ) -> Iterator[list[tuple[int, int, Completion]]]:
        fitted, order = self.fit_all(prompts, settings, wanted, keys)
        waiting = deque(
            _Row(self.tokenizer, self.end_token_ids, settings, fitted[place], place, sample) for place, sample in order
        )
        base: Any = base_model(self.model)
        plain = has_plain_cache(base)
        prompt = max((len(row.prompt.tokens) for row in waiting), default=0)
        batch_size = self.batch_size or (rows_that_fit(base, prompt, settings.max_new_tokens) if plain else ROWS)
        write = self._write if plain else self._write_batches
        for ended in write(base, waiting, batch_size, settings, keys):
            yield [(row.place, row.sample, row.completion) for row in ended if row.completion is not None]

    def _write(
        self, base: Any, waiting: deque[_Row], batch_size: int, settings: GenerationSettings, keys: Sequence[str]
    ) -> Iterator[list[_Row]]:
        """Rows as they end; those that wait take their places."""
        rows: list[_Row] = []
        staying: list[int] = []
        texts = SideBySide(base, settings.temperature, settings.top_p)
        while waiting or staying:
            joining = [waiting.popleft() for _ in range(min(len(waiting), batch_size - len(staying)))]
            rows = [*(rows[place] for place in staying), *joining]
            if self.streamer is not None:
                self.streamer.put(torch.tensor(rows[0].prompt.tokens))
            with evaluating(self.model):
                numbers = _uniforms(joining, settings, keys)
                texts.replace(staying, [row.prompt.tokens for row in joining], numbers, [r.greedy for r in joining])
                while all(row.completion is None for row in rows):
                    # Decoding many rows after every token takes longer than a small model's step. And no row goes past
                    # the end of its room, where there may be no positions.
                    steps = min(16, 1 + len(rows) // 16, *(row.room for row in rows))
                    drawn = torch.cat([texts.step() for _ in range(steps)], 1).cpu()
                    if self.streamer is not None:
                        self.streamer.put(drawn)
                    for row, tokens in zip(rows, drawn.tolist(), strict=True):
                        row.take(tokens)
            if self.streamer is not None:
                self.streamer.end()
            staying = [place for place, row in enumerate(rows) if row.completion is None]
            yield [row for row in rows if row.completion is not None]

    def _write_batches(
        self, base: Any, waiting: deque[_Row], batch_size: int, settings: GenerationSettings, keys: Sequence[str]
    ) -> Iterator[list[_Row]]:
        """A batch after another by transformers' own loop, for models that keep more than keys and values."""
        while waiting:
            rows = [waiting.popleft() for _ in range(min(len(waiting), batch_size))]
            self._write_batch(base, rows, settings, keys)
            yield rows

    @torch.no_grad()
    def _write_batch(self, base: Any, rows: list[_Row], settings: GenerationSettings, keys: Sequence[str]) -> None:
        device = base.get_input_embeddings().weight.device
        ids, mask = (each.to(device) for each in left_padded([row.prompt.tokens for row in rows]))
        greedy = torch.tensor([[row.greedy] for row in rows], device=device)
        uniform = _uniforms(rows, settings, keys).to(device)

        def choose(input_ids: Tensor, scores: Tensor) -> Tensor:
            """Leaves each row the token of its own uniform number; greedy search can only take that one."""
            number = uniform[:, input_ids.shape[1] - ids.shape[1], None]
            chosen = sample_tokens(scores.float(), number, settings.temperature, None, settings.top_p)
            chosen = torch.where(greedy, scores.argmax(-1, keepdim=True), chosen)
            return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)

        def ended(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            for row, token in zip(rows, input_ids[:, -1].tolist(), strict=True):
                if row.completion is None:
                    row.take([token])
            return torch.tensor([row.completion is not None for row in rows], device=device)

        # Defaults of the model's own (a repetition penalty, a temperature) must not slip in, hence bare ones.
        own_settings, base.generation_config = base.generation_config, GenerationConfig()
        try:
            with evaluating(self.model):
                base.generate(
                    ids,
                    attention_mask=mask,
                    generation_config=GenerationConfig(
                        max_new_tokens=max(row.room for row in rows), do_sample=False, use_cache=True, pad_token_id=0
                    ),
                    logits_processor=LogitsProcessorList([choose]),
                    stopping_criteria=StoppingCriteriaList([ended]),
                    streamer=self.streamer,
                )
        finally:
            base.generation_config = own_settings


def rows_that_fit(base: Any, prompt: int, new: int) -> int:
    """How many texts of so many new tokens after so many a model can write side by side in half of the memory that its
    GPU has free."""
    device = base.get_input_embeddings().weight.device
    if device.type != "cuda":
        return ROWS
    config, size = text_config(base), base.dtype.itemsize
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    # Keys and values of all layers; of one again where rows join, and where its heads are repeated. What the pass over
    # the prompts holds. Logits in the model's precision, and a few times in float32 where they are sampled from.
    cached = 2 * width * (key_heads * (config.num_hidden_layers + 2) + 2 * heads)
    in_pass = 8 * config.hidden_size + 3 * inner
    per_row = size * ((prompt + new) * cached + prompt * in_pass) + 20 * config.vocab_size
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(MOST_ROWS, free // 2 // per_row))


def _uniforms(rows: Sequence[_Row], settings: GenerationSettings, keys: Sequence[str]) -> Tensor:
    """[rows, max_new_tokens], of each row's own."""
    if settings.temperature == 0 or not rows:
        return torch.zeros(len(rows), settings.max_new_tokens)
    seeds = torch.tensor([prompt_seed(settings.seed, keys[row.place]) for row in rows])
    samples = torch.tensor([[row.sample] for row in rows])
    return uniforms(seeds, samples, 1, settings.max_new_tokens)[:, 0, 0]


class _Row:
    """A completion that is being written, until it has ended."""

    def __init__(
        self, tokenizer: Any, ends: Sequence[int], settings: GenerationSettings, prompt: Fitted, place: int, sample: int
    ) -> None:
        self.tokenizer, self.ends, self.settings, self.prompt = tokenizer, ends, settings, prompt
        self.place, self.sample = place, sample
        self.greedy = sample == GREEDY
        self.tokens: list[int] = []
        self.completion: Completion | None = None
        # A token holds at least a byte, but for special ones: looking back so far finds every stop string.
        self.look_back = 8 + max((len(stop.encode()) for stop in settings.stop), default=0)
        # Until here, what is looked at may begin with the whitespace of the prompt.
        self.start = self.look_back + 8 + len(prompt.whitespace.encode())

    @property
    def room(self) -> int:
        """How many tokens it may still have."""
        return self.prompt.room - len(self.tokens)

    def take(self, tokens: list[int]) -> None:
        """What has been drawn since it took tokens last; what follows its end is left."""
        looked, tokens = len(self.tokens), tokens[: self.room]
        end = next((place for place, token in enumerate(tokens) if token in self.ends), None)
        self.tokens += tokens[:end]
        if self._stops(looked, len(self.tokens)):
            length = next(n for n in range(looked + 1, len(self.tokens) + 1) if self._stops(looked, n))
            text = self.prompt.cut(self._text(length), self.settings.stop)
            self.completion = Completion(text or "", "stop", length, self.prompt.truncated)
        elif end is not None:
            self._end("end", 1)
        elif self.room == 0:
            self._end("length" if self.prompt.room == self.settings.max_new_tokens else "context")

    def _end(self, finish: str, end_tokens: int = 0) -> None:
        text = self.prompt.restore(self._text(len(self.tokens)))
        self.completion = Completion(text, finish, len(self.tokens) + end_tokens, self.prompt.truncated)

    def _text(self, length: int) -> str:
        return continuation(self.tokenizer, self.prompt.tokens, self.tokens[:length])

    def _stops(self, looked: int, length: int) -> bool:
        """Whether so many tokens show a stop string, which those that were looked at do not."""
        if not self.settings.stop:
            return False
        if looked < self.start:
            return self.prompt.cut(self._text(length), self.settings.stop) is not None
        tail = _decode(self.tokenizer, self.tokens[looked - self.look_back : length])
        return cut_at_stop(tail, self.settings.stop) is not None


def tokenize(prompt: str, tokenizer: Any, settings: GenerationSettings) -> list[int]:
    """The tokens a completion follows. A chat template brings its own special tokens."""
    if settings.prompt_style == "raw":
        tokens = tokenizer(prompt)["input_ids"]
        # Some tokenizers end every text by themselves, after which a model has nothing to say.
        return tokens[:-1] if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id else tokens
    if settings.prompt_style == "chat":
        turns = [{"role": "user", "content": prompt}]
        prompt = chat_text(turns, tokenizer, settings.system_prompt) + settings.answer_start
    return tokenizer(prompt, add_special_tokens=False)["input_ids"]


def trailing_whitespace(prompt: str) -> str:
    """What a raw prompt is tokenized without; nothing, if it is all there is."""
    return prompt[len(prompt.rstrip()) :] if prompt.strip() else ""


def chat_text(turns: list[dict[str, str]], tokenizer: Any, system_prompt: str | None = None) -> str:
    """A conversation by the tokenizer's template, up to where the assistant's next turn begins."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError("the tokenizer has no chat template; give the model prompts as texts (--prompt-style raw)")
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return tokenizer.apply_chat_template([*system, *turns], tokenize=False, add_generation_prompt=True)


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """The text before the first stop string; None if there is none."""
    places = [place for place in (text.find(s) for s in stop) if place >= 0]
    return text[: min(places)] if places else None


def continuation(tokenizer: Any, prompt: list[int], tokens: list[int]) -> str:
    """The text of `tokens` after the prompt. Decoded alone, some tokenizers would lose the space they begin with."""
    before = prompt[-8:]
    context, whole = _decode(tokenizer, before), _decode(tokenizer, [*before, *tokens])
    return whole[len(context) :] if whole.startswith(context) else _decode(tokenizer, tokens)


def _decode(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def prompt_seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:8], "big") >> 2


def context_size(model: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens the model has positions for; None if nothing says so."""
    config = text_config(model)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if isinstance(limit, int) and limit < 10**9 else None  # transformers' "unknown" is 1e30


def end_token_ids(model: nn.Module, tokenizer: Any) -> list[int]:
    """Tokens that end a completion: the tokenizer's, and those that the model's own settings name."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return list(dict.fromkeys([*own, *end_tokens_of(model)]))
