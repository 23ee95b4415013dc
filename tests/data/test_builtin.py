"""The datasets that every machine has."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest

from ebft.data.rows import read_rows


def read(source: str) -> list[dict[str, Any]]:
    return list(read_rows(source, "train"))


class TestBuiltin:
    def test_functions_have_signature_and_docstring_as_prompt_and_the_rest_as_completion(self) -> None:
        rows = list(itertools.islice(read_rows("stdlib-functions"), 400))
        assert len(rows) == 400
        for row in rows:
            # The prompt alone is a whole function: the docstring closes it, and nothing of the body is in it.
            (prompt,) = ast.parse(row["prompt"]).body
            assert isinstance(prompt, ast.FunctionDef | ast.AsyncFunctionDef)
            assert len(prompt.body) == 1, row["source"]
            assert ast.get_docstring(prompt)
            assert row["prompt"].rstrip().endswith(("'", '"'))
            (whole,) = ast.parse(row["prompt"] + row["completion"]).body
            assert isinstance(whole, ast.FunctionDef | ast.AsyncFunctionDef)
            assert len(whole.body) > 1, row["source"]

    def test_functions_come_from_all_over_the_library(self) -> None:
        rows = read("stdlib-functions")
        assert len(rows) > 1000
        assert len({row["source"].split(":")[0] for row in rows}) > 100

    def test_code_is_one_document_a_module(self) -> None:
        rows = read("stdlib-code")
        assert len(rows) > 200
        assert {"argparse.py", "json", "ast.py"} & {row["source"] for row in rows} >= {"argparse.py", "ast.py"}
        assert next(row["text"] for row in rows if row["source"] == "ast.py") == Path(ast.__file__).read_text("utf-8")

    def test_order_is_fixed(self) -> None:
        first, second = (list(itertools.islice(read_rows("stdlib-functions"), 50)) for _ in range(2))
        assert first == second

    def test_a_file_of_the_same_name_does_not_hide_a_builtin(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "stdlib-code").mkdir()
        assert "source" in next(read_rows("stdlib-code"))
