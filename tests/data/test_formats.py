from __future__ import annotations

from typing import Any

import pytest

from ebft.data.formats import Document, check_tokenizer, encode
from ebft.data.row_format import RowFormat
from ebft.errors import DataError
from tests.tiny_tokenizer import END, PAD, TURN, VOCABULARY, byte_tokenizer

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"


def stretches(document: Document, tokenizer: Any) -> list[tuple[bool, str]]:
    """The document as (is answer, text), one entry for every run of equal flags; one token is one byte."""
    assert len(document.tokens) == len(document.answers)
    runs: list[tuple[bool, list[int]]] = []
    for token, answer in zip(document.tokens, document.answers, strict=True):
        if runs and runs[-1][0] == answer:
            runs[-1][1].append(token)
        else:
            runs.append((answer, [token]))
    return [(answer, tokenizer.decode(tokens)) for answer, tokens in runs]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class TestText:
    def test_every_token_is_an_answer_and_the_end_token_comes_last(self) -> None:
        tokenizer = byte_tokenizer()
        document = encode({"text": "héllo"}, tokenizer)
        assert document.tokens == [*tokenizer("héllo")["input_ids"], tokenizer.eos_token_id]
        assert document.answers == [True] * 7

    def test_empty_text_is_an_end_token(self) -> None:
        tokenizer = byte_tokenizer()
        assert encode({"text": ""}, tokenizer) == Document([tokenizer.eos_token_id], [True])

    def test_a_text_that_ends_with_the_end_token_gets_no_second_one(self) -> None:
        tokenizer = byte_tokenizer()
        assert encode({"text": f"ab{END}"}, tokenizer) == encode({"text": "ab"}, tokenizer)

    def test_a_tokenizer_that_ends_every_text_by_itself(self) -> None:
        tokenizer = _ending_tokenizer()
        end = tokenizer.eos_token_id
        assert tokenizer("ab")["input_ids"][-1] == end
        assert encode({"text": "ab"}, tokenizer).tokens.count(end) == 1
        document = encode({"prompt": "ab", "completion": "cd"}, tokenizer)
        assert stretches(document, tokenizer) == [(False, "ab"), (True, f"cd{END}")]


class TestPromptAndCompletion:
    def test_only_the_completion_and_the_end_token_are_answers(self) -> None:
        tokenizer = byte_tokenizer()
        document = encode({"prompt": "2+2=", "completion": "4", "other": 1}, tokenizer)
        assert stretches(document, tokenizer) == [(False, "2+2="), (True, f"4{END}")]

    def test_prompt_is_tokenised_as_it_will_be_on_its_own(self) -> None:
        tokenizer = byte_tokenizer()
        document = encode({"prompt": "ab", "completion": "cd"}, tokenizer)
        assert document.tokens[:2] == tokenizer("ab")["input_ids"]

    def test_empty_completion_still_learns_to_stop(self) -> None:
        tokenizer = byte_tokenizer()
        document = encode({"prompt": "ab", "completion": ""}, tokenizer)
        assert stretches(document, tokenizer) == [(False, "ab"), (True, END)]

    def test_completion_with_its_own_end_token(self) -> None:
        tokenizer = byte_tokenizer()
        document = encode({"prompt": "ab", "completion": f"cd{END}"}, tokenizer)
        assert stretches(document, tokenizer) == [(False, "ab"), (True, f"cd{END}")]

    def test_wins_over_text(self) -> None:
        tokenizer = byte_tokenizer()
        both = encode({"prompt": "a", "completion": "b", "text": "c"}, tokenizer)
        assert both == encode({"prompt": "a", "completion": "b"}, tokenizer)

    def test_columns_can_be_renamed(self) -> None:
        tokenizer = byte_tokenizer()
        row = {"question": "a", "answer": "b", "text": "c"}
        named = RowFormat(prompt="question", completion="answer")
        assert encode(row, tokenizer, named) == encode({"prompt": "a", "completion": "b"}, tokenizer)


class TestMessages:
    def test_every_assistant_turn_with_its_marker_is_an_answer_and_nothing_else(self) -> None:
        tokenizer = byte_tokenizer()
        messages = [
            message(SYSTEM, "be brief"),
            message(USER, "hi"),
            message(ASSISTANT, "hello"),
            message(USER, "2+2?"),
            message(ASSISTANT, "4"),
        ]
        assert stretches(encode({"messages": messages}, tokenizer), tokenizer) == [
            (False, "<system>be brief</turn><user>hi</turn><assistant>"),
            (True, "hello</turn>"),
            (False, "<user>2+2?</turn><assistant>"),
            (True, f"4</turn>{END}"),
        ]

    def test_letters_of_several_bytes_do_not_shift_the_flags(self) -> None:
        tokenizer = byte_tokenizer()
        messages = [message(USER, "ünï"), message(ASSISTANT, "日本"), message(USER, "é"), message(ASSISTANT, "ß")]
        assert stretches(encode({"messages": messages}, tokenizer), tokenizer) == [
            (False, "<user>ünï</turn><assistant>"),
            (True, "日本</turn>"),
            (False, "<user>é</turn><assistant>"),
            (True, f"ß</turn>{END}"),
        ]

    def test_turns_with_the_same_words_are_told_apart(self) -> None:
        tokenizer = byte_tokenizer()
        messages = [message(USER, "yes"), message(ASSISTANT, "yes"), message(USER, "yes"), message(ASSISTANT, "yes")]
        flags = [answer for answer, _ in stretches(encode({"messages": messages}, tokenizer), tokenizer)]
        assert flags == [False, True, False, True]

    def test_a_template_that_closes_turns_with_the_end_token_gets_no_second_one(self) -> None:
        template = byte_tokenizer().chat_template.replace("</turn>", END)
        tokenizer = byte_tokenizer(chat_template=template)
        messages = [message(USER, "a"), message(ASSISTANT, "b")]
        assert stretches(encode({"messages": messages}, tokenizer), tokenizer) == [
            (False, f"<user>a{END}<assistant>"),
            (True, f"b{END}"),
        ]

    def test_prompt_and_completion_as_messages_flag_only_the_turns_of_the_completion(self) -> None:
        tokenizer = byte_tokenizer()
        row = {
            "prompt": [message(USER, "a"), message(ASSISTANT, "example"), message(USER, "b")],
            "completion": [message(ASSISTANT, "c"), message(USER, "d"), message(ASSISTANT, "e")],
        }
        assert stretches(encode(row, tokenizer), tokenizer) == [
            (False, "<user>a</turn><assistant>example</turn><user>b</turn><assistant>"),
            (True, "c</turn>"),
            (False, "<user>d</turn><assistant>"),
            (True, f"e</turn>{END}"),
        ]

    @pytest.mark.parametrize("messages", [[], "hello", [{"content": "a"}], ["a"], None])
    def test_malformed_conversations(self, messages: Any) -> None:
        with pytest.raises(DataError, match="non-empty list"):
            encode({"messages": messages}, byte_tokenizer())

    def test_no_chat_template(self) -> None:
        with pytest.raises(DataError, match=r"no chat template.*use 'prompt' and 'completion'"):
            encode({"messages": [message(USER, "a")]}, byte_tokenizer(chat_template=None))

    def test_template_that_refuses_a_conversation(self) -> None:
        # As those do that want user and assistant to alternate.
        template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(DataError, match="does not accept this conversation: roles must alternate"):
            encode({"messages": [message(USER, "a")]}, byte_tokenizer(chat_template=template))

    def test_template_that_renders_earlier_turns_differently(self) -> None:
        # As those do that drop the thoughts of all turns but the last.
        template = "{% for m in messages %}{{ m.content if loop.last else '' }}{% endfor %}"
        messages = [message(USER, "a"), message(ASSISTANT, "b"), message(USER, "c"), message(ASSISTANT, "d")]
        with pytest.raises(DataError, match="turn 1 differently inside a longer conversation"):
            encode({"messages": messages}, byte_tokenizer(chat_template=template))


class TestErrors:
    def test_missing_column_names_those_that_exist(self) -> None:
        with pytest.raises(DataError, match=r"needs 'text', 'prompt' and 'completion', or 'messages'") as caught:
            encode({"question": "a", "answer": "b"}, byte_tokenizer())
        assert "'question', 'answer'" in str(caught.value)
        assert "prompt_column" in str(caught.value)

    def test_prompt_without_completion_is_a_missing_column(self) -> None:
        with pytest.raises(DataError, match="it has 'prompt'"):
            encode({"prompt": "a"}, byte_tokenizer())

    def test_a_row_without_columns(self) -> None:
        with pytest.raises(DataError, match="it has no columns"):
            encode({}, byte_tokenizer())

    @pytest.mark.parametrize(
        ("value", "words"),
        [(3, "holds a number, not text"), ({"a": 1}, "holds an object, not text"), (None, r"is empty \(null\)")],
    )
    def test_value_that_is_no_text(self, value: Any, words: str) -> None:
        with pytest.raises(DataError, match=f"column 'text' {words}"):
            encode({"text": value}, byte_tokenizer())
        with pytest.raises(DataError, match=f"column 'answer' {words}"):
            encode({"prompt": "a", "answer": value}, byte_tokenizer(), RowFormat(completion="answer"))

    def test_tokenizer_without_end_token(self) -> None:
        with pytest.raises(DataError, match="no end token"):
            check_tokenizer(byte_tokenizer(end=None))

    def test_vocabulary_larger_than_the_models(self) -> None:
        check_tokenizer(byte_tokenizer(), VOCABULARY)
        with pytest.raises(DataError, match=f"{VOCABULARY + 1} tokens but the model only {VOCABULARY}"):
            check_tokenizer(byte_tokenizer(extra_tokens=1), VOCABULARY)

    def test_an_end_that_is_not_the_models_own(self, caplog: pytest.LogCaptureFixture) -> None:
        """Seen with a tokenizer that was read wrongly: texts ended with what begins a message."""
        tokenizer = byte_tokenizer()
        end, other = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(TURN)
        check_tokenizer(tokenizer, ends=[other, end])
        check_tokenizer(tokenizer, ends=[])
        assert not caplog.text
        check_tokenizer(tokenizer, ends=[other])
        check_tokenizer(tokenizer, ends=[other])
        assert caplog.text.count(f"ends texts with {END!r}, the model by its own settings with {TURN!r}") == 1

    @pytest.mark.parametrize("pad", [END, PAD, None])
    def test_any_pad_token_works(self, pad: str | None) -> None:
        tokenizer = byte_tokenizer(pad=pad)
        check_tokenizer(tokenizer, VOCABULARY)
        document = encode({"prompt": "ab", "completion": "cd"}, tokenizer)
        assert stretches(document, tokenizer) == [(False, "ab"), (True, f"cd{END}")]


def _ending_tokenizer() -> Any:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.eos_token_id)]
    )
    return tokenizer


class TestColumnsThatWereNamed:
    """A column that was set and is not used would be a run on other text than was meant."""

    def test_a_completion_without_a_prompt(self) -> None:
        row = {"text": "a text", "code": "x = 1"}
        with pytest.raises(DataError, match=r"completion_column='code' would not be used: there is no column 'prompt'"):
            encode(row, byte_tokenizer(), RowFormat(**{"completion": "code"}))

    def test_a_text_beside_messages(self) -> None:
        row = {"messages": [{"role": "user", "content": "hi"}], "body": "a text"}
        with pytest.raises(DataError, match=r"text_column='body' would not be used: 'messages' would be read"):
            encode(row, byte_tokenizer(), RowFormat(**{"text": "body"}))

    def test_a_text_beside_prompt_and_completion(self) -> None:
        row = {"prompt": "p", "completion": "c", "body": "a text"}
        with pytest.raises(DataError, match=r"text_column='body' would not be used: 'prompt' and 'completion' would"):
            encode(row, byte_tokenizer(), RowFormat(**{"text": "body"}))

    def test_columns_of_another_dataset_of_a_mixture(self) -> None:
        assert encode(
            {"text": "ab"}, byte_tokenizer(), RowFormat(**{"prompt": "question", "completion": "reply"})
        ).tokens

    def test_those_that_are_used(self) -> None:
        row = {"question": "p", "reply": "c", "text": "other"}
        found = encode(row, byte_tokenizer(), RowFormat(**{"prompt": "question", "completion": "reply"}))
        assert byte_tokenizer().decode(found.tokens).startswith("pc")
