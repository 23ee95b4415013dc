"""Rows of every kind become tokens with answer flags; a token is a byte, so that flags can be read off the text."""

from itertools import groupby
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from ebft.config.data import DataConfig
from ebft.data.row_format import PLAIN, Row, RowFormat, check_tokenizer, encode, is_glued
from ebft.errors import ConfigError, DataError
from tests.tiny_tokenizer import END, PAD, VOCABULARY, byte_tokenizer

QUESTION = "### Question:\n{question}\n\n### Answer:\n"


def turns(*contents: str) -> list[dict[str, str]]:
    """User and assistant in turn."""
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def flagged(row: Row, tokenizer: Any = None, row_format: RowFormat = PLAIN) -> list[tuple[bool, str]]:
    """The document as (is answer, text), one entry for every run of equal flags."""
    tokenizer = tokenizer or byte_tokenizer()
    document = encode(row, tokenizer, row_format)
    pairs = zip(document.answers, document.tokens, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[0])
    return [(answer, tokenizer.decode([token for _, token in run])) for answer, run in runs]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": f"ab{END}"}, [(True, f"ab{END}")]),
        ({"prompt": "2+2=", "completion": "4", "other": 1}, [(False, "2+2="), (True, f"4{END}")]),
        ({"prompt": "a", "completion": "b", "text": "c"}, [(False, "a"), (True, f"b{END}")]),
        (
            # letters of several bytes, and turns with the same words
            {"messages": [{"role": "system", "content": "be brief"}, *turns("ünï", "日本", "日本", "ünï")]},
            [
                (False, "<system>be brief</turn><user>ünï</turn><assistant>"),
                (True, "日本</turn>"),
                (False, "<user>日本</turn><assistant>"),
                (True, f"ünï</turn>{END}"),
            ],
        ),
        (  # of a prompt nothing is an answer
            {"prompt": turns("a", "example", "b"), "completion": turns("", "c", "d", "e")[1:]},
            [
                (False, "<user>a</turn><assistant>example</turn><user>b</turn><assistant>"),
                (True, "c</turn>"),
                (False, "<user>d</turn><assistant>"),
                (True, f"e</turn>{END}"),
            ],
        ),
        ({"messages": turns("a")}, [(False, f"<user>a</turn>{END}")]),  # nothing that the model has to say
    ],
    ids=str,
)
def test_what_is_an_answer(row: Row, expected: list[tuple[bool, str]]) -> None:
    assert flagged(row) == expected


def test_end_tokens_stand_once() -> None:
    pair, expected = {"prompt": "ab", "completion": "cd"}, [(False, "ab"), (True, f"cd{END}")]
    for pad in (END, PAD, None):
        assert flagged(pair, byte_tokenizer(pad=pad)) == expected
    ending: Any = byte_tokenizer()  # some end every text by themselves
    special = [(END, ending.eos_token_id)]
    ending.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=special)
    assert flagged(pair, ending) == expected
    assert flagged({"text": "ab"}, ending) == [(True, f"ab{END}")]
    closing = byte_tokenizer(chat_template=byte_tokenizer().chat_template.replace("</turn>", END))
    assert flagged({"messages": turns("a", "b")}, closing) == [(False, f"<user>a{END}<assistant>"), (True, f"b{END}")]


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
PAIR = {"prompt": "a", "completion": "b"}


@pytest.mark.parametrize(
    ("row", "standard", "names", "kind"),
    [
        ({"question": "a", "answer": "b"}, PAIR, dict(prompt="question", completion="answer"), "prompt"),
        ({"text": "ab"}, {"text": "ab"}, dict(prompt="question", completion="reply"), "text"),  # of another dataset
        ({"conversations": SHAREGPT, "id": 1}, {"messages": CHAT}, {}, "messages"),
        (
            dict(prompt=SHAREGPT[:1], completion=SHAREGPT[1:]),
            dict(prompt=CHAT[:1], completion=CHAT[1:]),
            {},
            "messages",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, PAIR, dict(completion="chosen"), "prompt"),
    ],
    ids=str,
)
def test_rows_of_others(row: Row, standard: Row, names: dict[str, str], kind: str) -> None:
    assert RowFormat(**names).standard(row) == standard
    assert RowFormat(**names).prompt_kind(row) == kind


def test_roles_in_any_letters() -> None:
    said = [{"role": "User", "content": "hi"}, {"role": "GPT", "content": "hello", "id": 3}, {"role": "Critic"}]
    found = RowFormat().standard({"messages": said})["messages"]
    assert found == [{**turn, "role": role} for turn, role in zip(said, ("user", "assistant", "Critic"), strict=True)]
    assert RowFormat().prompt_of({"messages": said}) == found[:1], "what comes before the last answer"


def test_templates() -> None:
    template = RowFormat(completion="answer", prompt_template=QUESTION)
    found = template.standard({"question": "1+1?", "answer": "2", "prompt": "not this"})
    assert found == {"prompt": "### Question:\n1+1?\n\n### Answer:\n", "completion": "2"}
    values = RowFormat(prompt_template="{question}:{n}")
    assert values.prompt_of({"question": "{x} {{y}}", "n": 3}) == "{x} {{y}}:3", "values are not templates"
    assert template.prompt_of({"question": "q"}) == QUESTION.format(question="q"), "for RLVR, without an answer"
    assert DataConfig(prompt_template=r"Q: {q}\nA:").row_format.prompt_template == "Q: {q}\nA:"
    for wrong in ("no column", "{open", "{}", "{a.b}", "{b}"):
        with pytest.raises((ConfigError, DataError), match="prompt_template"):
            RowFormat(prompt_template=wrong).prompt_of({"a": "b"})


@pytest.mark.parametrize(
    ("separator", "prompt", "completion"),
    [(None, "a", "b"), ("\n", "a\n", "b"), ("  ", "a", "  b"), (" => ", "a =>", " b")],
)
def test_the_spaces_of_a_separator_begin_the_answer(separator: str | None, prompt: str, completion: str) -> None:
    """In training, and so where a model is to answer."""
    made = RowFormat(prompt_separator=separator)
    assert made.standard(PAIR) == {"prompt": prompt, "completion": completion}
    assert made.prompt_of({"prompt": "a"}) == prompt
    spaced = {"prompt": "a ", "completion": "b"}
    assert made.standard(spaced) == spaced, "where there is space already, none is put"
    assert not is_glued(CHAT[:1], CHAT[1:])


# As of those that drop the thoughts of all turns but the last.
SHORTENING = "{% for m in messages %}{{ m.content if loop.last else '' }}{% endfor %}"
TEMPLATE = dict(prompt_template=QUESTION)


@pytest.mark.parametrize(
    ("row", "names", "template", "words"),
    [
        ({"question": "a"}, {}, "", r"needs 'text', 'prompt' and 'completion', or 'messages'; it has 'question'"),
        ({"text": 3}, {}, "", "column 'text' holds int, not text"),
        ({"messages": turns("a")}, {}, None, "does not accept this conversation: .*chat_template is not set"),
        ({"messages": turns(*"abcd")}, {}, SHORTENING, "turn 1 differently inside a longer conversation"),
        # A column that was named and is not used would be a run on other text than was meant.
        ({"text": "a", "code": "x"}, dict(completion="code"), "", "completion_column='code' would not be used: 'text'"),
        ({"question": "q", "body": "b", "completion": "c"}, TEMPLATE | dict(prompt="body"), "", "prompt_column='body'"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_row(row: Row, names: dict[str, str], template: str | None, words: str) -> None:
    tokenizer = byte_tokenizer() if template == "" else byte_tokenizer(chat_template=template)
    with pytest.raises(DataError, match=words):
        encode(row, tokenizer, RowFormat(**names))


def test_alpaca() -> None:
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "the same, made by others"}
    found = RowFormat().standard(row)
    assert found["completion"] == "3"
    assert found["prompt"].endswith("### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:\n")
    for nothing in ({"input": ""}, {"input": None}, {}):
        prompt = RowFormat().standard({"instruction": "Say 3.", "output": "3", **nothing})["prompt"]
        assert prompt.endswith("\n\n### Instruction:\nSay 3.\n\n### Response:\n")
        assert "Input" not in prompt


def test_tokenizers() -> None:
    with pytest.raises(DataError, match="needs an end token"):
        check_tokenizer(byte_tokenizer(end=None))
    check_tokenizer(byte_tokenizer(), VOCABULARY)
    with pytest.raises(DataError, match=f"each of its {VOCABULARY + 1} tokens .it has {VOCABULARY}"):
        check_tokenizer(byte_tokenizer(extra_tokens=1), VOCABULARY)


def test_a_text_in_place_of_a_row_is_told_what_rows_are() -> None:
    with pytest.raises(DataError, match=r"a row must be a mapping .* not 'a text'; give \[\{'text'"):
        encode("a text", byte_tokenizer())  # type: ignore[arg-type]
