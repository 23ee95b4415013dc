"""Batches of texts against `by_hand`: token after token from the whole sequence, without cache, batch or padding. And
`ebft generate` in this process, on tiny models: the texts are the generator's, and stand beside each other."""

import json
import shutil
import sys
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from ebft import cli
from ebft.data.row_format import ALPACA
from ebft.errors import ConfigError
from ebft.evaluate import generation
from ebft.evaluate.generate_command import LiveAnswer
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator, VLLMGenerator, prompt_seed
from ebft.loading import Checkpoint
from ebft.method.sampling import truncate, uniforms
from ebft.model.backbone import prepare_model, text_config
from ebft.runtime.files import read_jsonl
from tests.models import CONFIGS, EXTRA_CONFIGS, tiny_model
from tests.plain import untouched
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer, save_tiny_model

PROMPTS = ["hello world", "a", "def f(x):\n    return", "the longest of them " * 3]
GREEDY = GenerationSettings(max_new_tokens=12)
SAMPLED = GenerationSettings(max_new_tokens=12, temperature=2.5, samples=3, seed=5)
# Rows end at all times; with LONG, some after more than a block of columns.
STOPPED = replace(SAMPLED, max_new_tokens=24, stop=tuple("abcdefghijklmnop"))
LONG = replace(STOPPED, max_new_tokens=70)
MANY = replace(STOPPED, samples=10)  # 5 rows are looked at after every token, 40 after three


def model_of(family: str = "llama", **overrides: Any) -> Any:
    return tiny_model(family, vocab_size=VOCABULARY, **overrides)


def texts_of(generator: TransformersGenerator, *given: Any, **more: Any) -> list[list[str]]:
    return [[found.text for found in samples] for samples in generator.complete(*given, **more)]


@torch.no_grad()
def by_hand(model: Any, tokenizer: Any, prompt: str, settings: Any, key: str, sample: int) -> tuple[str, int]:
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
        text = tokenizer.decode(made, skip_special_tokens=True).removeprefix(prompt[len(prompt.rstrip()) :])
        ends = [text.find(stop) for stop in settings.stop if stop in text]
        if token == tokenizer.eos_token_id or ends:
            break
    return text[: min(ends, default=None)], len(made)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, STOPPED) for family in (*CONFIGS, *EXTRA_CONFIGS, "mixtral", "deepseek_v3")),
        *product(("llama", "gemma3"), (GREEDY, LONG, MANY, replace(SAMPLED, top_p=0.3))),
    ],
)
def test_rows_that_leave_and_join_equal_token_by_token(family: str, settings: GenerationSettings) -> None:
    model, tokenizer = model_of(family), byte_tokenizer(pad=END)  # the pad token is the end token
    completed = TransformersGenerator(model, tokenizer, 40 if settings == MANY else 5).complete(PROMPTS, settings)
    found = [[(one.text, one.tokens) for one in samples] for samples in completed]
    plain = untouched(model)
    for place, prompt in enumerate(PROMPTS):
        expected = [by_hand(plain, tokenizer, prompt, settings, str(place), n) for n in range(settings.samples)]
        assert found[place] == expected
    if settings.stop:
        assert len({*chain(*found)}) >= 4, "samples are all the same"


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
    expected = [{generation.GREEDY: best, 0: a, 1: b} for best, (a, b, _) in zip(greedy, every, strict=True)]
    assert found == {(place, sample): text for place, of in enumerate(expected) for sample, text in of.items()}


def scripted(tokens: list[int], tokenizer: Any) -> Any:
    """A llama that says this after a prompt of one token: for ends and stops at known places."""
    model = model_of(num_hidden_layers=1)
    model.resize_token_embeddings(len(tokenizer))
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        made = output.past_key_values.get_seq_length() - 1
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
def test_the_model_writes_the_whitespace_of_a_prompt(ending: str, script: str, completion: Completion) -> None:
    """`scripted` speaks after a prompt of one token, so it also shows that the whitespace is not in the prompt."""
    tokenizer = byte_tokenizer(pad=END)
    said = [*tokenizer(script)["input_ids"], tokenizer.eos_token_id, *tokenizer("." * 20)["input_ids"]]
    settings = GenerationSettings(max_new_tokens=40, stop=("\nprint(", "\n//"))
    assert only(scripted(said, tokenizer), tokenizer, settings, f"x{ending}") == [completion]


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
    assert (model.generation_config, text_config(model)._attn_implementation) == (own, "ebft")
    assert [model.training, model.model.layers[0].training] == [True, False]


def test_chat_style_wraps_the_prompt() -> None:
    generator = TransformersGenerator(model_of(), byte_tokenizer())
    chat = GenerationSettings(prompt_style="chat", system_prompt="be brief", answer_start="Sure:\n")
    expected = "<system>be brief</turn><user>hi\n</turn><assistant>Sure:\n"
    for prompt, settings in (("hi\n", chat), (expected, replace(GREEDY, prompt_style="rendered"))):
        assert generator.fit(prompt, "0", settings).tokens == byte_tokenizer()(expected)["input_ids"]


def test_a_place_is_given_on_as_soon_as_its_row_ends_and_samples_share_their_prompt() -> None:
    """As many steps as the tokens need, where every batch with a long row would have taken the long row's."""
    model, tokenizer, seen = model_of(), byte_tokenizer(pad=END), list[tuple[int, int, int]]()
    original = model.forward

    def forward(ids: Any, attention_mask: Any, **given: Any) -> Any:
        seen.append((*ids.shape, attention_mask.shape[1]))
        return original(ids, attention_mask=attention_mask, **given)

    model.forward = forward
    asked = GenerationSettings(max_new_tokens=60, temperature=2.5, stop=tuple("abcdefghijklmnop"))
    found = TransformersGenerator(model, tokenizer, 8).complete([f"{number} and" for number in range(40)], asked)
    assert max(columns for *_, columns in seen) <= 128, "columns that no row needs any more are still there"
    widths, tokens = [rows for rows, width, _ in seen if width == 1], [one.tokens for [one] in found]
    assert sum(widths) == sum(tokens), "a row was computed after its end"
    batches = sum(max(tokens[start : start + 8]) for start in range(0, 40, 8))
    assert len(widths) < batches / 1.3, "no faster than batch after batch"
    seen.clear()
    asked = GenerationSettings(max_new_tokens=3, temperature=1.0, samples=20)
    TransformersGenerator(model, tokenizer, None).complete(["one prompt", "and other."], asked)
    # All but the last token, which the first step is for; and a CPU writes sixteen at once if nobody says otherwise.
    assert [(rows, width) for rows, width, _ in seen if width > 1] == [(1, 9), (2, 9), (1, 9)]
    assert max(rows for rows, *_ in seen) == 16


def test_models_that_keep_more_than_keys_and_values_are_refused() -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))
    shared = model_of()
    text_config(shared).num_kv_shared_layers = 2
    for model in (mamba, shared):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            texts_of(TransformersGenerator(model, byte_tokenizer()), ["a"], GenerationSettings())


def test_vllm_requests_against_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not vLLM itself: that requests hold what the settings say, and answers are read as they are meant. The stand-in
    stops as vLLM does, at the first stop string wherever it is."""
    cases = {
        "a\n": ("\n    return x\n//", "    return x", "stop"),
        "b\n": ("\n// first\nsecond\n// third", "// first\nsecond", "stop"),
        "c\n": ("\n\n//", "", "stop"),
        "d ": (" said\n// so", "said", "stop"),
        "e": ("and an end", "and an end", "end"),
        "f" * 46: ("this fills the context", "this fills the context", "context"),
    }
    written, asked = {prompt.strip(): text for prompt, (text, *_) in cases.items()}, list[tuple[str, Any]]()

    def answer(prompt: Any, p: Any) -> Any:
        name = byte_tokenizer().decode(prompt["prompt_token_ids"])
        asked.append((name, p))
        text, found, _ = written[name].partition("\n//") if p.stop else (written[name], "", "")
        reason, stop = ("stop", "\n//") if found else ("stop" if name == "e" else "length", None)
        made = SimpleNamespace(text=text, token_ids=[1, 2], finish_reason=reason, stop_reason=stop)
        return SimpleNamespace(outputs=[made])

    class LLM:
        llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=50))

        def __init__(self, **options: Any) -> None: ...

        def generate(self, prompts: list[Any], parameters: list[Any], **options: Any) -> list[Any]:
            return [*map(answer, prompts, parameters)]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=SimpleNamespace))  # type: ignore[arg-type]
    settings = GenerationSettings(max_new_tokens=10, temperature=0.6, samples=2, stop=("\n//",), seed=1)
    found = VLLMGenerator("m", byte_tokenizer(), None).complete([*cases], settings)
    assert [(of[0].text, of[0].finish) for of in found] == [(text, finish) for _, text, finish in cases.values()]
    assert [name for name, p in asked if p.stop is None] == ["b", "b"], "made again: ended in its prompt's whitespace"
    assert len({p.seed for _, p in asked}) == 12, "every completion has its own seed"
    longest = asked[0][1]
    assert (longest.max_tokens, longest.stop, longest.stop_token_ids, longest.temperature) == (4, ["\n//"], [256], 0.6)


# ---- ebft generate ---------------------------------------------------------------------------------------------------


CHAT = "<user>hi</turn><assistant>"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that models are given; all answers are fine."""
    found: list[str] = []

    def complete(self: Any, prompts: list[str], *_: Any) -> list[list[Completion]]:
        found.extend(prompts)
        return [[Completion("fine", "end", 2)] for _ in prompts]

    monkeypatch.setattr(TransformersGenerator, "complete", complete)
    return found


def generate(*arguments: object) -> int:
    return cli.main(["generate", "--max-new-tokens", "6", "--device", "cpu", "--model", *map(str, arguments)])


def written_by(folder: Path, prompts: list[str], **settings: Any) -> list[list[str]]:
    found = Checkpoint.find(str(folder))
    tokenizer = found.load_tokenizer()
    generator = TransformersGenerator(found.load(tokenizer, torch.float32, torch.device("cpu")), tokenizer)
    return texts_of(generator, prompts, GenerationSettings(**{"max_new_tokens": 6, "temperature": 0.6, **settings}))


def said(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    waiting = iter([*lines, ""])  # an empty line ends
    monkeypatch.setattr("builtins.input", lambda question: next(waiting))


def of_run(model: Path, folder: Path, **settings: object) -> Path:
    """A model as the final one of a run."""
    shutil.copytree(model, folder / "final")
    (folder / "resolved.json").write_text(json.dumps(settings))
    return folder


def test_one_model_and_several(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    """Of one there is only the text; several have names, and a file."""
    base = save_tiny_model(tmp_path / "base", byte_tokenizer(pad=END, chat_template=None))
    assert generate(tiny, "--prompt", "2+2=", "--temperature", "0") == 0
    [[expected]] = written_by(tiny, ["2+2="], temperature=0)
    assert capsys.readouterr().out == cli.printable(expected) + "\n"
    file, output = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("a\nb\n\n")
    assert generate(tiny, base, "--file", file, "--samples", "2", "--output", output) == 0
    said = capsys.readouterr().out
    assert said.index("> a") < said.index(f"--- {tiny.name}") < said.index("--- base") < said.index("> b")
    found = read_jsonl(output)
    told = [(row["prompt"], row["model"], row["sample"]) for row in found]
    assert told == [*product("ab", (tiny.name, "base"), (0, 1))]
    expected = written_by(tiny, ["a", "b"], samples=2)
    assert [row["completion"] for row in found if row["model"] == tiny.name] == [*chain(*expected)]


GLUED = {"prompt_kinds": ["prompt"], "prompt_separator": "\n"}


@pytest.mark.parametrize(
    ("settings", "flags", "expected"),
    [
        (GLUED, [], "hi\n"),
        (GLUED, ["--prompt-style", "raw"], "hi"),
        (GLUED, ["--prompt-separator", " =\\n"], "hi =\n"),
        ({**GLUED, "prompt_template": "Q: {q}\nA:", "prompt_separator": " "}, [], "Q: hi\nA:"),
        ({"prompt_kinds": ["alpaca"]}, [], ALPACA.format(instruction="hi")),
        ({"prompt_kinds": ["messages"]}, [], CHAT),
        ({"prompt_kinds": ["text"]}, ["--prompt-style", "chat"], CHAT),
    ],
)
def test_prompts_are_made_as_in_the_run(
    settings: Any, flags: list[str], expected: str, tiny: Path, tmp_path: Path, seen: list[str]
) -> None:
    assert generate(of_run(tiny, tmp_path / "run", **settings), "--prompt", "hi", *flags) == 0
    assert seen == [expected]


def test_rows_of_a_file_are_read_as_training_reads_them(tiny: Path, tmp_path: Path, seen: list[str]) -> None:
    """Conversations are rendered, and texts beside them are turns."""
    rows = tmp_path / "rows.jsonl"
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "an answer that is not shown"}]
    rows.write_text(json.dumps({"conversations": turns}) + "\n")
    assert generate(tiny, "--file", rows, "--prompt", "hi") == 0
    assert seen == [CHAT] * 2


def test_a_chat_remembers(tiny: Path, tmp_path: Path, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the model was not trained on any."""
    said(monkeypatch, "hi", "again")
    assert generate(tiny) == 0
    assert seen == [CHAT, f"{CHAT}fine</turn><user>again</turn><assistant>"]
    said(monkeypatch, "hi", "again")
    assert generate(of_run(tiny, tmp_path / "run", prompt_kinds=["prompt"], prompt_separator="\n")) == 0
    assert seen[2:] == ["hi\n", "again\n"], "although its tokenizer has a chat template"


def test_a_chat_shows_tokens_as_they_come(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    early, shown = [], LiveAnswer.on_finalized_text
    monkeypatch.setattr(LiveAnswer, "on_finalized_text", lambda *given, **end: early.append(1) or shown(*given, **end))
    said(monkeypatch, "hi")
    assert generate(tiny, "--max-new-tokens", "20") == 0
    [[expected]] = written_by(tiny, ["hi"], max_new_tokens=20, prompt_style="chat")
    assert cli.printable(expected) + "\n" in capsys.readouterr().out
    assert len(early) > 10, "not token after token"
