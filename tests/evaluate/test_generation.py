"""Batches of texts against `by_hand`: token after token from the whole sequence, without cache, batch or padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from ebft.errors import ConfigError
from ebft.evaluate import generation
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator, prompt_seed
from ebft.method.sampling import truncate, uniforms
from ebft.model.backbone import prepare_model, text_config
from tests.models import tiny_model
from tests.plain import untouched
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer

PROMPTS = ["hello world", "a", "def f(x):\n    return", "the longest of them " * 3]
GREEDY = GenerationSettings(max_new_tokens=12)
SAMPLED = GenerationSettings(max_new_tokens=12, temperature=2.5, samples=3, seed=5)


def model_of(family: str = "llama", **overrides: Any) -> Any:
    return tiny_model(family, vocab_size=VOCABULARY, **overrides)


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
    found = TransformersGenerator(model, tokenizer, batch_size=5).generate(PROMPTS, settings)
    plain = untouched(model)
    for place, prompt in enumerate(PROMPTS):
        expected = [by_hand(plain, tokenizer, prompt, settings, str(place), n) for n in range(settings.samples)]
        assert found[place] == expected
    if settings is SAMPLED:
        assert all(len(set(texts)) > 1 for texts in found), "samples of a prompt are all the same"


def test_results_depend_on_seed_and_key_but_not_on_batch_order_or_neighbours() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    every = TransformersGenerator(model, tokenizer, 12).generate(PROMPTS, SAMPLED, keys=PROMPTS)
    alone = TransformersGenerator(model, tokenizer, 1).generate(PROMPTS[::-1], SAMPLED, keys=PROMPTS[::-1])
    assert alone[::-1] == every
    generator = TransformersGenerator(model, tokenizer)
    assert [texts[:2] for texts in every] == generator.generate(PROMPTS, replace(SAMPLED, samples=2), PROMPTS)
    twice = generator.generate(["one", "one"], SAMPLED)
    assert twice[0] != twice[1], "equal prompts under other keys"
    assert generator.generate(["one", "one"], replace(SAMPLED, seed=6)) != twice


def test_greedy_answers_beside_samples_are_as_alone() -> None:
    generator = TransformersGenerator(model_of(), byte_tokenizer(), 5)
    wanted = [(place, sample) for place in range(len(PROMPTS)) for sample in (generation.GREEDY, 0, 1, 2)]
    batches = generator.stream(PROMPTS, SAMPLED, wanted, ["0", "1", "2", "3"])
    found = {(place, sample): made.text for batch in batches for place, sample, made in batch}
    greedy, samples = generator.generate(PROMPTS, GREEDY), generator.generate(PROMPTS, SAMPLED)
    for place in range(len(PROMPTS)):
        assert [found[place, sample] for sample in range(3)] == samples[place]
        assert found[place, generation.GREEDY] == greedy[place][0]


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
    expected = TransformersGenerator(model, tokenizer).generate(PROMPTS, GREEDY)
    own = model.generation_config
    own.repetition_penalty, own.temperature, own.do_sample = 5.0, 0.1, True  # must neither act nor be lost
    model.config.use_cache = False  # as gradient checkpointing leaves it
    prepare_model(model)
    model.train()
    model.model.layers[0].eval()
    assert TransformersGenerator(model, tokenizer).generate(PROMPTS, GREEDY) == expected
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
