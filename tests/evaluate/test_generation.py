"""Batches of texts against `by_hand`: token after token from the whole sequence, without cache, batch or padding."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM

from ebft.errors import ConfigError
from ebft.evaluate import generation
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator, VLLMGenerator, prompt_seed
from ebft.evaluate.side_by_side import SideBySide
from ebft.method.sampling import truncate, uniforms
from ebft.model.backbone import prepare_model, text_config
from tests.models import CONFIGS, EXTRA_CONFIGS, MIXTURES, tiny_model
from tests.plain import untouched
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer

PROMPTS = ["hello world", "a", "def f(x):\n    return", "the longest of them " * 3]
GREEDY = GenerationSettings(max_new_tokens=12)
SAMPLED = GenerationSettings(max_new_tokens=12, temperature=2.5, samples=3, seed=5)


def model_of(family: str = "llama", **overrides: Any) -> Any:
    return tiny_model(family, vocab_size=VOCABULARY, **overrides)


def texts_of(generator: TransformersGenerator, *given: Any, **more: Any) -> list[list[str]]:
    return [[found.text for found in samples] for samples in generator.complete(*given, **more)]


@torch.no_grad()
def by_hand(
    model: Any, tokenizer: Any, prompt: str, settings: GenerationSettings, key: str = "0", sample: int = 0
) -> str:
    tokens = tokenizer(prompt.rstrip())["input_ids"]
    made: list[int] = []
    seeds = torch.tensor([prompt_seed(settings.seed, key)])
    uniform = uniforms(seeds, torch.tensor([sample]), 1, settings.max_new_tokens)[0, 0, 0]
    for step in range(settings.max_new_tokens):
        logits = model(torch.tensor([[*tokens, *made]]), use_cache=False).logits[0, -1]
        if settings.temperature == 0:
            token = int(logits.argmax())
        else:
            kept = truncate(logits[None] / settings.temperature, None, settings.top_p).softmax(-1)[0]
            token = int((kept.cumsum(0) <= uniform[step] * kept.sum()).sum())
        made.append(token)
        if token == tokenizer.eos_token_id:
            break
    return tokenizer.decode(made, skip_special_tokens=True).removeprefix(prompt[len(prompt.rstrip()) :])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gpt_neox"])
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, replace(SAMPLED, top_p=0.3)], ids=["greedy", "sampled", "top-p"])
def test_batches_of_unequal_prompts_equal_token_by_token(family: str, settings: GenerationSettings) -> None:
    model, tokenizer = model_of(family), byte_tokenizer(pad=END)  # the pad token is the end token
    found = texts_of(TransformersGenerator(model, tokenizer, batch_size=5), PROMPTS, settings)
    plain = untouched(model)
    for place, prompt in enumerate(PROMPTS):
        expected = [by_hand(plain, tokenizer, prompt, settings, str(place), n) for n in range(settings.samples)]
        assert found[place] == expected
    if settings is SAMPLED:
        assert all(len(set(texts)) > 1 for texts in found), "samples of a prompt are all the same"


def test_results_depend_on_seed_and_key_but_not_on_batch_order_or_neighbours() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    every = texts_of(TransformersGenerator(model, tokenizer, 12), PROMPTS, SAMPLED, keys=PROMPTS)
    alone = texts_of(TransformersGenerator(model, tokenizer, 1), PROMPTS[::-1], SAMPLED, keys=PROMPTS[::-1])
    assert alone[::-1] == every
    generator = TransformersGenerator(model, tokenizer, 5)
    twice = texts_of(generator, ["one", "one"], SAMPLED)
    assert twice[0] != twice[1], "equal prompts under other keys"
    assert texts_of(generator, ["one", "one"], replace(SAMPLED, seed=6)) != twice
    # Greedy answers beside fewer samples.
    wanted = [(place, sample) for place in range(len(PROMPTS)) for sample in (generation.GREEDY, 0, 1)]
    batches = generator.stream(PROMPTS, SAMPLED, wanted, PROMPTS)
    found = {(place, sample): made.text for batch in batches for place, sample, made in batch}
    greedy = [text for [text] in texts_of(generator, PROMPTS, GREEDY)]
    expected = [{generation.GREEDY: likeliest, 0: a, 1: b} for likeliest, (a, b, _) in zip(greedy, every, strict=True)]
    assert found == {(place, sample): text for place, of in enumerate(expected) for sample, text in of.items()}


def scripted(tokens: list[int], tokenizer: Any, prompt: int = 1) -> Any:
    """A llama that says this after a prompt of one token: for ends and stops at known places."""
    model = model_of(num_hidden_layers=1)
    model.resize_token_embeddings(len(tokenizer))
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        made = output.past_key_values.get_seq_length() - prompt
        output.logits = torch.full_like(output.logits, -9.0)
        output.logits[:, -1, tokens[made]] = 9.0
        return output

    model.forward = forward
    return model


def only(model: Any, tokenizer: Any, settings: GenerationSettings, *prompts: str) -> list[Completion]:
    return [found for [found] in TransformersGenerator(model, tokenizer).complete(prompts or ("x",), settings)]


def test_ends_and_stops() -> None:
    tokenizer = byte_tokenizer(pad=END)
    letters = tokenizer("abcdefghijklmnop")["input_ids"]
    ended = scripted([*letters[:3], tokenizer.eos_token_id, *letters], tokenizer)
    assert only(ended, tokenizer, GREEDY) == [Completion("abc", "end", 4)]
    model = scripted(letters, tokenizer)
    model.generation_config.eos_token_id = [letters[3]]  # by the model's own settings
    assert only(model, tokenizer, GREEDY) == [Completion("abc", "end", 4)]
    model = scripted(tokenizer("one two\nthree …four five six")["input_ids"], tokenizer)
    calls, original = [], model.forward
    model.forward = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    settings = GenerationSettings(max_new_tokens=25, stop=("\nthree", "two\nthree f"))
    assert only(model, tokenizer, settings) == [Completion("one two", "stop", 13)]
    assert len(calls) == 13, "it continued after all rows had stopped"
    assert only(model, tokenizer, replace(GREEDY, max_new_tokens=9)) == [Completion("one two\nt", "length", 9)]
    assert only(model, tokenizer, replace(settings, stop=("…",)))[0].text == "one two\nthree "  # of several bytes


def test_many_rows_are_looked_through_less_often_and_end_after_the_same_token() -> None:
    model, tokenizer = model_of(), byte_tokenizer(pad=END)
    stop = (*"abcdefgh", "\n", "~~")
    settings = GenerationSettings(max_new_tokens=61, temperature=2.5, samples=65, stop=stop)
    prompts = ["one", "def f(x):\n"]
    few, many = (TransformersGenerator(model, tokenizer, size).complete(prompts, settings) for size in (13, 130))
    assert many == few  # 13 rows are looked at after every token, 130 after eight
    assert {found.finish for completions in many for found in completions} >= {"stop", "length"}
    assert len({found.tokens % 8 for completions in many for found in completions if found.finish == "stop"}) == 8
    free = TransformersGenerator(model, tokenizer, 13).complete(prompts, replace(settings, stop=()))
    for found, whole in zip(chain.from_iterable(few), chain.from_iterable(free), strict=True):
        first = min((place for place in map(whole.text.find, stop) if place >= 0), default=None)
        assert (found.text, found.finish == "stop") == (whole.text[:first], first is not None)


@pytest.mark.parametrize(
    ("ending", "script", "completion"),
    [
        ("\n", "\n    return x\nprint(1)", Completion("    return x", "stop", 20)),
        ("\n", "\n// note\nprint(1)", Completion("// note", "stop", 15)),  # not at the break of the prompt
        ("\n", "\n\nprint(1)", Completion("", "stop", 8)),
        ("\n    ", "\n    return x\n//", Completion("return x", "stop", 16)),
        ("\n    ", "\n\treturn x\nprint(1)", Completion("\n\treturn x", "stop", 17)),  # its own line: as written
        (" ", "The house\nprint(1)", Completion("The house", "stop", 16)),
        ("", "\nprint(1)", Completion("", "stop", 7)),
        ("\n", "\n  end", Completion("  end", "end", 7)),
    ],
)
def test_whitespace_at_the_end_of_a_prompt_is_written_by_the_model(
    ending: str, script: str, completion: Completion
) -> None:
    """`scripted` speaks after a prompt of one token, so it also shows that the whitespace is not in the prompt."""
    tokenizer = byte_tokenizer(pad=END)
    said = [*tokenizer(script)["input_ids"], tokenizer.eos_token_id, *tokenizer("." * 20)["input_ids"]]
    settings = GenerationSettings(max_new_tokens=40, stop=("\nprint(", "\n//"))
    assert only(scripted(said, tokenizer), tokenizer, settings, f"x{ending}") == [completion]


def test_a_token_of_line_break_and_indentation_can_be_produced() -> None:
    """The case it is for: after a prompt without its line break, one token is both the break and the indentation."""
    tokenizer = byte_tokenizer(pad=END)
    merged = tokenizer.add_tokens(["\n    "]) and tokenizer.convert_tokens_to_ids("\n    ")
    said = [merged, *tokenizer("return")["input_ids"], tokenizer.eos_token_id]
    model = scripted(said, tokenizer, len("def f():"))
    assert only(model, tokenizer, GREEDY, "def f():\n") == [Completion("    return", "end", 8)]


def test_context_is_never_overrun() -> None:
    model, tokenizer = model_of("gpt2", n_positions=32), byte_tokenizer()
    long, short = only(model, tokenizer, GREEDY, "x" * 27, "y" * 4)
    assert (long.finish, long.tokens) == ("context", 5)
    assert (short.finish, short.tokens) == ("length", 12)
    with pytest.raises(ConfigError, match=r"prompt 0 has 32 tokens .* context of 32; use too_long=truncate"):
        only(model, tokenizer, GREEDY, "z" * 32)
    [found] = only(model, tokenizer, replace(GREEDY, too_long="truncate"), "0123456789" * 5)
    assert (found.prompt_truncated, found.tokens) == (True, 12)
    assert found.text == only(model, tokenizer, GREEDY, ("0123456789" * 5)[-20:])[0].text


def test_the_model_is_left_as_it_was() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    expected = texts_of(TransformersGenerator(model, tokenizer), PROMPTS, GREEDY)
    own = model.generation_config
    own.repetition_penalty, own.temperature, own.do_sample = 5.0, 0.1, True  # must neither act nor be lost
    model.config.use_cache = False  # as gradient checkpointing leaves it
    prepare_model(model)
    model.train()
    model.model.layers[0].eval()
    assert texts_of(TransformersGenerator(model, tokenizer), PROMPTS, GREEDY) == expected
    assert model.generation_config is own
    assert [model.training, model.model.layers[0].training] == [True, False]
    assert text_config(model)._attn_implementation == "ebft"


def test_chat_style_wraps_the_prompt() -> None:
    generator = TransformersGenerator(model_of(), byte_tokenizer())
    chat = GenerationSettings(prompt_style="chat", system_prompt="be brief", answer_start="Sure:\n")
    fitted = generator.fit("hi\n", "0", chat)
    assert fitted.whitespace == ""
    expected = "<system>be brief</turn><user>hi\n</turn><assistant>Sure:\n"
    assert fitted.tokens == generator.fit(expected, "0", replace(GREEDY, prompt_style="rendered")).tokens
    assert fitted.tokens == byte_tokenizer()(expected)["input_ids"]


# ---- rows that leave and join are continued as each is alone ---------------------------------------------------------


HOT = 2.5  # a temperature at which the tiny models say something


@torch.no_grad()
def check_drawn(model: Any, prompt: list[int], made: list[int], uniform: Tensor) -> None:
    """Each number lies in its token's part of the distribution after the whole text before it, but for rounding."""
    logits = model(torch.tensor([[*prompt, *made]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    upper = (logits.double() / HOT).softmax(-1).cumsum(-1)
    lower = torch.cat([torch.zeros_like(upper[:, :1]), upper[:, :-1]], -1)
    at, number = torch.tensor(made)[:, None], uniform[: len(made), None].double()
    assert (lower.gather(1, at) - 1e-5 <= number).all()
    assert (number <= upper.gather(1, at) + 1e-5).all()


class Busy:
    """Rows that leave and join, and what is drawn for them."""

    def __init__(self, model: Any) -> None:
        self.texts, self.numbers = SideBySide(model, HOT, None), torch.Generator().manual_seed(0)
        self.rows: list[tuple[list[int], Tensor, list[int]]] = []  # prompt, uniform numbers, tokens
        self.left = list(self.rows)

    def go(self, staying: list[int], joining: list[list[int]], steps: int) -> None:
        uniform = torch.rand(len(joining), 80, generator=self.numbers)
        self.texts.replace(staying, joining, uniform, [False] * len(joining))
        self.left += [row for place, row in enumerate(self.rows) if place not in staying]
        self.rows = [self.rows[place] for place in staying]
        self.rows += [(prompt, numbers, []) for prompt, numbers in zip(joining, uniform, strict=True)]
        for _ in range(steps if self.rows else 0):
            for (_, _, made), [token] in zip(self.rows, self.texts.step().tolist(), strict=True):
                made.append(token)


@pytest.mark.parametrize("family", [*CONFIGS, *EXTRA_CONFIGS, *MIXTURES])
def test_rows_that_leave_and_join_are_continued_as_each_alone(family: str) -> None:
    model = tiny_model(family)
    a, b, c = [5, 9, 3, 7, 2, 8, 1, 4], [11], [6, 2, 30]
    busy = Busy(model)
    busy.go([], [a, b], 4)
    assert busy.texts.mask.shape[1] == busy.texts.cache.get_seq_length() == 11
    busy.go([1], [c], 2)  # the widest leaves: the batch becomes narrower
    assert busy.texts.mask.shape[1] == busy.texts.cache.get_seq_length() == 6
    busy.go([0, 1], [a], 2)
    busy.go([1, 2], [], 3)
    busy.go([], [[8] * 11, b], 1)  # all leave
    busy.go([1, 0], [a, a], 70)  # in another order, and longer than a block of columns
    busy.go([], [[12, 13], [14]], 2)
    plain = untouched(model)
    every = [*busy.left, *busy.rows]
    assert [len(made) for _, _, made in every] == [4, 8, 7, 5, 71, 71, 70, 70, 2, 2]
    for prompt, uniform, made in every:
        check_drawn(plain, prompt, made, uniform)


def test_attention_meets_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model makes of keys and values has a size that a GPU's allocator has met before."""
    sizes: list[tuple[int, int]] = []
    original = F.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sizes.append((query.shape[2], key.shape[2]))
        return original(query, key, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    busy = Busy(model_of())
    busy.go([], [[5] * 60, [6] * 3], 40)
    assert {columns for tokens, columns in sizes if tokens == 1} == {64, 128}
    assert {columns for tokens, columns in sizes if tokens > 1} == {59}


def counted(model: Any) -> list[tuple[int, int]]:
    """The rows and tokens of every pass from now on."""
    seen: list[tuple[int, int]] = []
    original = model.forward
    model.forward = lambda ids, *args, **kwargs: seen.append(tuple(ids.shape)) or original(ids, *args, **kwargs)
    return seen


def test_a_place_is_given_on_as_soon_as_its_row_ends_and_samples_share_their_prompt() -> None:
    """As many steps as the tokens need, where every batch with a long row would have taken the long row's."""
    model, tokenizer = model_of(), byte_tokenizer(pad=END)
    prompts = [f"{number} and" for number in range(40)]
    asked = GenerationSettings(max_new_tokens=60, temperature=HOT, stop=tuple("abcdefghijklmnop"))
    seen = counted(model)
    found = TransformersGenerator(model, tokenizer, 8).complete(prompts, asked)
    widths = [rows for rows, tokens in seen if tokens == 1]
    assert sum(widths) == sum(completion.tokens for [completion] in found), "a row was computed after its end"
    longest = [max(completion.tokens for [completion] in found[start : start + 8]) for start in range(0, 40, 8)]
    assert len(widths) < sum(longest) / 1.5, "no faster than batch after batch"
    seen.clear()
    asked = GenerationSettings(max_new_tokens=3, temperature=1.0, samples=20)
    TransformersGenerator(model, tokenizer, None).complete(["one prompt", "and other."], asked)
    # All but the last token, which the first step is for; and a CPU writes sixteen at once if nobody says otherwise.
    assert [shape for shape in seen if shape[1] > 1] == [(1, 9), (2, 9), (1, 9)]
    assert max(rows for rows, _ in seen) == 16


def test_models_that_keep_more_than_keys_and_values_are_refused() -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))
    shared = model_of()
    text_config(shared).num_kv_shared_layers = 2
    for model in (mamba, shared):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            texts_of(TransformersGenerator(model, byte_tokenizer()), ["a"], GenerationSettings())


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def test_vllm_requests_against_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not vLLM itself: that requests hold what the settings say, and answers are read as they are meant. The stand-in
    stops as vLLM does, at the first stop string wherever it is."""
    texts = {"a": "\n    return x\n//", "b": "\n// first\nsecond\n// third", "c": "\n\n//", "d": " said\n// so"}
    texts |= {"e": "and an end", "f" * 46: "this fills the context"}
    asked: list[tuple[str, Any]] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=50))

        def generate(self, prompts: list[Any], parameters: list[Any], **options: Any) -> list[Any]:
            found = []
            for prompt, p in zip(prompts, parameters, strict=True):
                name = byte_tokenizer().decode(prompt["prompt_token_ids"])
                asked.append((name, p))
                text, place = texts[name], texts[name].find("\n//") if p.stop else -1
                ending = ("stop", "\n//") if place >= 0 else ("stop", None) if name == "e" else ("length", None)
                made = {"text": text[:place] if place >= 0 else text, "token_ids": [1, 2]}
                made |= {"finish_reason": ending[0], "stop_reason": ending[1]}
                found.append(SimpleNamespace(outputs=[SimpleNamespace(**made)]))
            return found

    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    settings = GenerationSettings(max_new_tokens=10, temperature=0.6, samples=2, stop=("\n//",), seed=1)
    prompts = ["a\n", "b\n", "c\n", "d ", "e", "f" * 46]
    found = VLLMGenerator("m", byte_tokenizer(), None).complete(prompts, settings)
    assert [(of[0].text, of[0].finish) for of in found] == [
        ("    return x", "stop"),
        ("// first\nsecond", "stop"),
        ("", "stop"),
        ("said", "stop"),
        ("and an end", "end"),
        ("this fills the context", "context"),
    ]
    assert [name for name, p in asked if p.stop is None] == ["b", "b"], "made again: ended in its prompt's whitespace"
    assert len({p.seed for _, p in asked}) == 12, "every completion has its own seed"
    longest = asked[0][1]
    assert (longest.max_tokens, longest.stop, longest.stop_token_ids, longest.temperature) == (4, ["\n//"], [256], 0.6)
