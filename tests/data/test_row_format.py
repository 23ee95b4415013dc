"""Rows of other tools become prompt and completion, or messages."""

from __future__ import annotations

from typing import Any

import pytest

from ebft.config.data import DataConfig
from ebft.data.row_format import RowFormat, is_glued
from ebft.errors import ConfigError, DataError

QUESTION = "### Question:\n{question}\n\n### Answer:\n"


class TestAlpaca:
    def test_with_an_input(self) -> None:
        row = {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "the same, made by others"}
        found = RowFormat().standard(row)
        assert found["completion"] == "3"
        assert found["prompt"].endswith("### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:\n")
        assert found["prompt"].startswith("Below is an instruction that describes a task, paired with an input")

    @pytest.mark.parametrize("row", [{"input": ""}, {"input": None}, {}])
    def test_without_one(self, row: dict[str, Any]) -> None:
        prompt = RowFormat().standard({"instruction": "Say 3.", "output": "3", **row})["prompt"]
        assert prompt.endswith("\n\n### Instruction:\nSay 3.\n\n### Response:\n")
        assert "Input" not in prompt

    def test_named_columns_are_taken_as_they_are(self) -> None:
        named = RowFormat(prompt="instruction", completion="output")
        assert named.standard({"instruction": "a", "output": "b"}) == {"prompt": "a", "completion": "b"}

    def test_an_output_alone_is_no_answer(self) -> None:
        with pytest.raises(DataError, match=r"a row needs 'text'.*it has 'prompt', 'output'"):
            RowFormat().standard({"prompt": "a", "output": "b"})


class TestShareGPT:
    TURNS = ({"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"})
    MESSAGES = (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    )

    def test_turns_become_messages(self) -> None:
        assert RowFormat().standard({"conversations": list(self.TURNS), "id": 1}) == {"messages": list(self.MESSAGES)}

    def test_their_roles_in_messages(self) -> None:
        turns = [{"role": "human", "content": "hi"}, {"role": "gpt", "content": "hello", "id": 3}]
        standard = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "id": 3}]
        assert RowFormat().standard({"messages": turns}) == {"messages": standard}
        pair = {"prompt": turns[:1], "completion": turns[1:]}
        assert RowFormat().standard(pair) == {"prompt": standard[:1], "completion": standard[1:]}

    @pytest.mark.parametrize("role", ["Assistant", "ASSISTANT", "GPT", "bot", "model", "ai", "AI"])
    def test_roles_in_any_letters(self, role: str) -> None:
        turns = [{"role": "User", "content": "hi"}, {"role": role, "content": "hello"}]
        assert [turn["role"] for turn in RowFormat().standard({"messages": turns})["messages"]] == ["user", "assistant"]

    def test_a_role_of_ones_own_stays(self) -> None:
        turns = [{"role": "Critic", "content": "hi"}]
        assert RowFormat().standard({"messages": turns}) == {"messages": turns}

    def test_conversations_with_roles(self) -> None:
        messages = list(self.MESSAGES)
        assert RowFormat().standard({"conversations": messages}) == {"messages": messages}

    def test_under_a_name_of_ones_own(self) -> None:
        found = RowFormat(messages="chat").standard({"chat": list(self.TURNS)})
        assert found == {"messages": list(self.MESSAGES)}

    def test_the_prompt_is_what_comes_before_the_last_answer(self) -> None:
        assert RowFormat().prompt_of({"conversations": list(self.TURNS)}) == list(self.MESSAGES[:2])


class TestPreferences:
    TURNS = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})

    @pytest.mark.parametrize(
        ("row", "column", "standard"),
        [
            ({"prompt": "q", "chosen": "a"}, "completion", {"prompt": "q", "completion": "a"}),
            ({"chosen": list(TURNS)}, "messages", {"messages": list(TURNS)}),
            ({"chosen": "qa"}, "text", {"text": "qa"}),
        ],
    )
    def test_the_way_to_chosen_answers_is_told_and_works(
        self, row: dict[str, Any], column: str, standard: dict[str, Any]
    ) -> None:
        row = {**row, "rejected": "b"}
        with pytest.raises(DataError, match=f"is a preference.* set {column}_column=chosen to train on chosen answers"):
            RowFormat().standard(row)
        assert RowFormat(**{column: "chosen"}).standard(row) == standard


class TestTemplate:
    def test_columns_are_filled_in(self) -> None:
        template = RowFormat(completion="answer", prompt_template=QUESTION)
        found = template.standard({"question": "1+1?", "answer": "2", "prompt": "not this"})
        assert found == {"prompt": "### Question:\n1+1?\n\n### Answer:\n", "completion": "2"}

    def test_values_are_not_templates(self) -> None:
        template = RowFormat(prompt_template="{question}:{n}")
        assert template.prompt_of({"question": "{x} {{y}}", "n": 3}) == "{x} {{y}}:3"

    def test_a_prompt_without_an_answer_for_rlvr(self) -> None:
        assert RowFormat(prompt_template=QUESTION).prompt_of({"question": "q"}) == QUESTION.format(question="q")

    def test_a_missing_column(self) -> None:
        with pytest.raises(DataError, match="prompt_template names 'question', which is no column"):
            RowFormat(prompt_template=QUESTION).standard({"completion": "b"})
        with pytest.raises(DataError, match=r"no answer in the column 'completion'; it has 'question', 'reply'"):
            RowFormat(prompt_template=QUESTION).standard({"question": "a", "reply": "b"})

    def test_a_named_prompt_that_the_template_leaves_out(self) -> None:
        named = RowFormat(prompt="body", prompt_template=QUESTION)
        with pytest.raises(DataError, match="prompt_column='body' would not be used: prompt_template does not name it"):
            named.standard({"question": "q", "body": "b", "completion": "c"})

    @pytest.mark.parametrize("template", ["no column", "{}", "{a.b}", "{a[0]}", "{open"])
    def test_what_is_no_template(self, template: str) -> None:
        with pytest.raises(ConfigError, match="prompt_template"):
            DataConfig(prompt_template=template)

    def test_line_breaks_of_a_shell(self) -> None:
        assert DataConfig(prompt_template=r"Q: {q}\nA:").row_format.prompt_template == "Q: {q}\nA:"


class TestSeparator:
    @pytest.mark.parametrize(
        ("prompt", "completion", "joined"),
        [("a", "b", "a\nb"), ("a ", "b", "a b"), ("a\n", "b", "a\nb"), ("a", " b", "a b"), ("", "b", "b")],
    )
    def test_comes_where_nothing_stands(self, prompt: str, completion: str, joined: str) -> None:
        found = RowFormat(prompt_separator="\n").standard({"prompt": prompt, "completion": completion})
        assert found["prompt"] + found["completion"] == joined
        plain = RowFormat().standard({"prompt": prompt, "completion": completion})
        assert plain == {"prompt": prompt, "completion": completion}

    def test_prompts_of_rlvr_get_it_too(self) -> None:
        assert RowFormat(prompt_separator="\n").prompt_of({"prompt": "a"}) == "a\n"

    @pytest.mark.parametrize("spaces", [" ", "  "])
    def test_a_space_begins_the_answer(self, spaces: str) -> None:
        """In training, and so where a model is to answer."""
        made = RowFormat(prompt_separator=spaces)
        assert made.standard({"prompt": "a:", "completion": "b"}) == {"prompt": "a:", "completion": f"{spaces}b"}
        assert made.prompt_of({"prompt": "a:"}) == "a:"
        assert made.standard({"prompt": "a: ", "completion": "b"}) == {"prompt": "a: ", "completion": "b"}
        assert made.standard({"prompt": "a:", "completion": " b"}) == {"prompt": "a:", "completion": " b"}

    def test_only_the_spaces_that_it_ends_with(self) -> None:
        made = RowFormat(prompt_separator=" => ")
        assert made.standard({"prompt": "a", "completion": "b"}) == {"prompt": "a =>", "completion": " b"}
        assert made.prompt_of({"prompt": "a"}) == "a =>"
        indented = RowFormat(prompt_separator="\n ").standard({"prompt": "a", "completion": "b"})
        assert indented == {"prompt": "a\n", "completion": " b"}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "a"}, "text"),
        ({"prompt": "a", "completion": "b"}, "prompt"),
        ({"prompt": [{"role": "user", "content": "a"}], "completion": []}, "messages"),
        ({"instruction": "a", "output": "b"}, "alpaca"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "messages"),
    ],
    ids=str,
)
def test_how_prompts_are_made(row: dict[str, Any], kind: str) -> None:
    assert RowFormat().prompt_kind(row) == kind

    def test_messages_are_not_glued(self) -> None:
        assert not is_glued([{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}])
