from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ebft.errors import ConfigError
from ebft.evaluate import generation
from ebft.evaluate.generation import GREEDY as GREEDY_SAMPLE
from ebft.evaluate.generation import (
    Completion,
    GenerationSettings,
    TransformersGenerator,
    chat_text,
    context_size,
    continuation,
    cut_at_stop,
    prompt_seed,
)
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
) -> list[int]:
    """Token after token from the whole sequence, without cache, batch or padding."""
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
    return made


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gpt_neox"])
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_batches_of_unequal_prompts_equal_token_by_token(family: str, settings: GenerationSettings) -> None:
    model, tokenizer = model_of(family), byte_tokenizer(pad=END)  # the pad token is the end token
    generator = TransformersGenerator(model, tokenizer, batch_size=5)
    found = generator.generate(PROMPTS, settings)
    plain = untouched(model)
    for place, prompt in enumerate(PROMPTS):
        assert len(found[place]) == settings.samples
        for sample, text in enumerate(found[place]):
            expected = by_hand(plain, tokenizer, prompt, settings, str(place), sample)
            written = tokenizer.decode(expected, skip_special_tokens=True)
            assert text == written.removeprefix(prompt[len(prompt.rstrip()) :])
    if settings is SAMPLED:
        assert all(len(set(texts)) > 1 for texts in found), "samples of a prompt are all the same"


def test_results_do_not_depend_on_batch_order_or_neighbours() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    every = TransformersGenerator(model, tokenizer, 12).generate(PROMPTS, SAMPLED, keys=PROMPTS)
    alone = TransformersGenerator(model, tokenizer, 1).generate(PROMPTS[::-1], SAMPLED, keys=PROMPTS[::-1])
    assert alone[::-1] == every
    fewer = GenerationSettings(max_new_tokens=12, temperature=2.5, samples=2, seed=5)
    assert [texts[:2] for texts in every] == TransformersGenerator(model, tokenizer).generate(PROMPTS, fewer, PROMPTS)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_greedy_answers_beside_samples_are_as_alone(side_by_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not side_by_side:
        monkeypatch.setattr(generation, "has_plain_cache", lambda base: False)
    generator = TransformersGenerator(model_of(), byte_tokenizer(), 5)
    wanted = [(place, sample) for place in range(len(PROMPTS)) for sample in (GREEDY_SAMPLE, 0, 1, 2)]
    keys = [str(place) for place in range(len(PROMPTS))]
    batches = generator.stream(PROMPTS, SAMPLED, wanted, keys)
    found = {(place, sample): made.text for batch in batches for place, sample, made in batch}
    greedy, samples = generator.generate(PROMPTS, GREEDY), generator.generate(PROMPTS, SAMPLED)
    for place in range(len(PROMPTS)):
        assert [found[place, sample] for sample in range(3)] == samples[place]
        assert found[place, GREEDY_SAMPLE] == greedy[place][0]


def test_seed_and_key_decide_what_is_sampled() -> None:
    generator = TransformersGenerator(model_of(), byte_tokenizer())
    twice = generator.generate(["one", "one"], SAMPLED)
    assert twice[0] != twice[1], "equal prompts under other keys"
    assert generator.generate(["one", "one"], SAMPLED) == twice
    other = GenerationSettings(max_new_tokens=12, temperature=2.5, samples=3, seed=6)
    assert generator.generate(["one", "one"], other) != twice


def test_top_p_keeps_the_smallest_set() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    settings = GenerationSettings(max_new_tokens=8, temperature=2.0, top_p=0.3, samples=4)
    found = TransformersGenerator(model, tokenizer).generate(["some text"], settings)[0]
    plain = untouched(model)
    expected = [by_hand(plain, tokenizer, "some text", settings, "0", sample) for sample in range(4)]
    assert found == [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in expected]


def scripted(script: str, end_at: int | None = None) -> Any:
    """A llama that says this after a prompt of one token: for ends and stops at known places."""
    model, tokenizer = model_of(num_hidden_layers=1), byte_tokenizer(pad=END)
    tokens = tokenizer(script)["input_ids"]
    if end_at is not None:
        tokens = [*tokens[:end_at], tokenizer.eos_token_id, *tokens[end_at:]]
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        made = output.past_key_values.get_seq_length() - 1
        output.logits = torch.full_like(output.logits, -9.0)
        output.logits[:, -1, tokens[made]] = 9.0
        return output

    model.forward = forward
    return model, tokenizer


def only(
    model: Any, tokenizer: Any, settings: GenerationSettings, prompts: tuple[str, ...] = ("x",)
) -> list[Completion]:
    wanted = [(place, 0) for place in range(len(prompts))]
    generator = TransformersGenerator(model, tokenizer)
    found = {p: c for batch in generator.stream(prompts, settings, wanted, prompts) for p, _, c in batch}
    return [found[place] for place in range(len(prompts))]


def test_an_end_token_ends_the_text_and_is_not_part_of_it() -> None:
    model, tokenizer = scripted("abcdefghijklmnop", end_at=3)
    assert only(model, tokenizer, GREEDY) == [Completion("abc", "end", 4)]


def test_end_tokens_of_the_models_own_settings_count_too() -> None:
    model, tokenizer = scripted("abcdefghijklmnop")
    model.generation_config.eos_token_id = [tokenizer("d")["input_ids"][0]]
    assert only(model, tokenizer, GREEDY) == [Completion("abc", "end", 4)]


def test_stop_strings_cut_and_end_early() -> None:
    model, tokenizer = scripted("one two\nthree four five six")
    settings = GenerationSettings(max_new_tokens=25, stop=("\nthree", "zzz"))
    calls = []
    original = model.forward
    model.forward = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    assert only(model, tokenizer, settings) == [Completion("one two", "stop", 13)]
    assert len(calls) == 13, "it continued after all rows had stopped"
    assert only(model, tokenizer, GenerationSettings(max_new_tokens=9)) == [Completion("one two\nt", "length", 9)]


def test_a_row_that_stops_early_is_not_changed_by_those_that_continue() -> None:
    tokenizer = byte_tokenizer(pad=END)
    model = model_of()
    free = only(model, tokenizer, GenerationSettings(max_new_tokens=30), ("aa", "bbb"))
    stop = free[0].text[4:6]
    assert stop not in free[1].text
    stopped = only(model, tokenizer, GenerationSettings(max_new_tokens=30, stop=(stop,)), ("aa", "bbb"))
    assert stopped[0].text == free[0].text[: free[0].text.index(stop)]
    assert stopped[0].finish == "stop"
    assert stopped[0].tokens < 30
    assert stopped[1] == free[1]


def test_many_rows_are_looked_through_less_often_and_end_after_the_same_token() -> None:
    tokenizer = byte_tokenizer(pad=END)
    model = model_of()
    stop = (*"abcdefgh", "\n", "~~")
    settings = GenerationSettings(max_new_tokens=61, temperature=2.5, samples=65, stop=stop)
    prompts = ["one", "def f(x):\n"]
    few, many = (TransformersGenerator(model, tokenizer, size).complete(prompts, settings) for size in (13, 130))
    assert many == few  # 13 rows are looked at after every token, 130 after eight
    finishes = {found.finish for completions in many for found in completions}
    assert finishes >= {"stop", "length"}
    assert len({found.tokens % 8 for completions in many for found in completions if found.finish == "stop"}) == 8


def test_several_byte_stop_strings_are_found() -> None:
    model, tokenizer = scripted("größe…ende und so weiter")
    settings = GenerationSettings(max_new_tokens=20, stop=("…",))
    assert only(model, tokenizer, settings)[0].text == "größe"


def test_first_stop_wins() -> None:
    assert cut_at_stop("a b c d", ["d", "b"]) == "a "
    assert cut_at_stop("a b c", ["x"]) is None
    assert cut_at_stop("stop", ["stop"]) == ""


@pytest.mark.parametrize(
    ("ending", "script", "completion"),
    [
        ("\n", "\n    return x\nprint(1)", Completion("    return x", "stop", 20)),
        ("\n", "\n// note\nprint(1)", Completion("// note", "stop", 15)),  # not at the break of the prompt
        ("\n", "\nprint(1)\nprint(2)", Completion("print(1)", "stop", 16)),
        ("\n", "\n\nprint(1)", Completion("", "stop", 8)),
        ("\n    ", "\n    return x\n//", Completion("return x", "stop", 16)),
        ("\n    ", "\n\treturn x\nprint(1)", Completion("\n\treturn x", "stop", 17)),  # its own line: as written
        ("\n", " # why\n    return x\n//", Completion(" # why\n    return x", "stop", 22)),
        (" ", " The house\nprint(1)", Completion("The house", "stop", 17)),
        (" ", "The house\nprint(1)", Completion("The house", "stop", 16)),
        ("", "\nprint(1)", Completion("", "stop", 7)),
        ("\n", "\n  end", Completion("  end", "end", 7)),
    ],
)
def test_whitespace_at_the_end_of_a_prompt_is_written_by_the_model(
    ending: str, script: str, completion: Completion
) -> None:
    """`scripted` speaks after a prompt of one token, so it also shows that the whitespace is not in the prompt."""
    model, tokenizer = scripted(script + "." * 20, end_at=len(script))
    settings = GenerationSettings(max_new_tokens=40, stop=("\nprint(", "\n//"))
    assert only(model, tokenizer, settings, (f"x{ending}",)) == [completion]


def test_prompts_with_and_without_whitespace_in_one_batch() -> None:
    model, tokenizer = scripted("\n//a\n//b" + "." * 20)
    settings = GenerationSettings(max_new_tokens=12, stop=("\n//",))
    found = only(model, tokenizer, settings, ("x\n", "y", "z\n\t "))
    assert found == [Completion("//a", "stop", 7), Completion("", "stop", 3), Completion("", "stop", 3)]


def test_a_token_of_line_break_and_indentation_can_be_produced() -> None:
    """The case it is for: after a prompt without its line break, one token is both the break and the indentation."""
    model, tokenizer = model_of(num_hidden_layers=1), byte_tokenizer(pad=END)
    merged = tokenizer.add_tokens(["\n    "]) and tokenizer.convert_tokens_to_ids("\n    ")
    model.resize_token_embeddings(len(tokenizer))
    original, script = model.forward, [merged, *tokenizer("return")["input_ids"], tokenizer.eos_token_id]

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        made = output.past_key_values.get_seq_length() - len("def f():")
        output.logits = torch.full_like(output.logits, -9.0)
        output.logits[:, -1, script[made]] = 9.0
        return output

    model.forward = forward
    assert only(model, tokenizer, GREEDY, ("def f():\n",)) == [Completion("    return", "end", 8)]


def test_chats_and_blank_prompts_keep_their_whitespace() -> None:
    generator = TransformersGenerator(model_of(), byte_tokenizer())
    fitted = generator.fit("hi\n", "0", GenerationSettings(prompt_style="chat"))
    assert fitted.tokens == byte_tokenizer()("<user>hi\n</turn><assistant>")["input_ids"]
    assert fitted.whitespace == ""
    assert len(generator.fit("\n\n", "0", GREEDY).tokens) == 2


def test_context_is_never_overrun() -> None:
    model, tokenizer = tiny_gpt2(32), byte_tokenizer()
    assert context_size(model, tokenizer) == 32
    prompts = ("x" * 27, "y" * 4)
    long, short = only(model, tokenizer, GREEDY, prompts)
    assert (long.finish, long.tokens) == ("context", 5)
    assert (short.finish, short.tokens) == ("length", 12)
    assert [long, short] == [only(model, tokenizer, GREEDY, (p,))[0] for p in prompts]
    with pytest.raises(ConfigError, match=r"prompt z{32} has 32 tokens .* context of 32; use too_long=truncate"):
        only(model, tokenizer, GREEDY, ("z" * 32,))
    cut = GenerationSettings(max_new_tokens=12, too_long="truncate")
    found = only(model, tokenizer, cut, ("0123456789" * 5,))[0]
    assert found.prompt_truncated
    assert found.tokens == 12
    assert found.text == only(model, tokenizer, GREEDY, (("0123456789" * 5)[-20:],))[0].text


def tiny_gpt2(positions: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


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
    assert model.training
    assert not model.model.layers[0].training
    assert text_config(model)._attn_implementation == "ebft"


def test_no_plan_of_cudnn_for_every_length() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    TransformersGenerator(model_of(), byte_tokenizer())
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_an_adapter_takes_part() -> None:
    from peft import LoraConfig, get_peft_model

    model, tokenizer = model_of(), byte_tokenizer()
    plain = TransformersGenerator(model, tokenizer).generate(PROMPTS, GREEDY)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    with_adapter = TransformersGenerator(adapted, tokenizer).generate(PROMPTS, GREEDY)
    assert with_adapter != plain
    merged = adapted.merge_and_unload()
    assert TransformersGenerator(merged, tokenizer).generate(PROMPTS, GREEDY) == with_adapter


def test_chat_style_wraps_the_prompt() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    text = chat_text([{"role": "user", "content": "hi"}], tokenizer, "be brief")
    assert text == "<system>be brief</turn><user>hi</turn><assistant>"
    chat = GenerationSettings(max_new_tokens=12, prompt_style="chat", system_prompt="be brief")
    raw = TransformersGenerator(model, tokenizer).generate([text], GREEDY)
    assert TransformersGenerator(model, tokenizer).generate(["hi"], chat) == raw
    begun = replace(chat, answer_start="Sure:\n")
    raw = replace(GREEDY, prompt_style="rendered")
    expected = TransformersGenerator(model, tokenizer).generate([f"{text}Sure:\n"], raw)
    assert TransformersGenerator(model, tokenizer).generate(["hi"], begun) == expected
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        TransformersGenerator(model, byte_tokenizer(chat_template=None)).generate(["hi"], chat)


def test_a_leading_space_survives_tokenizers_that_drop_it() -> None:
    class Dropping:
        def decode(self, tokens: list[str], **_: Any) -> str:
            return "".join(tokens).removeprefix(" ")

    assert continuation(Dropping(), [" def", ":"], [" ", "  return"]) == "   return"
    assert continuation(Dropping(), [], [" a"]) == "a"


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"temperature=-1.0 must be 0"):
        GenerationSettings(temperature=-1.0)


def test_empty_prompts_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="prompt task-7 is empty"):
        TransformersGenerator(model_of(), byte_tokenizer()).generate([""], GREEDY, ["task-7"])


def test_a_cpu_writes_sixteen_at_once_if_nobody_says_otherwise() -> None:
    model, tokenizer = model_of(), byte_tokenizer()
    widths: list[int] = []
    original = model.forward

    def forward(ids: Any, *args: Any, **kwargs: Any) -> Any:
        widths.append(ids.shape[0])
        return original(ids, *args, **kwargs)

    model.forward = forward
    TransformersGenerator(model, tokenizer, None).generate(["a"] * 40, GenerationSettings(max_new_tokens=2))
    assert max(widths) == 16
