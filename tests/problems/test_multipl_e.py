"""Reading the problems of MultiPL-E and answers to them."""

from __future__ import annotations

import pytest

from ebft.errors import DataError
from ebft.problems.multipl_e import language_code, multipl_e_problem
from ebft.problems.records import Record
from tests.sandbox.attacks.others import PROBLEMS, own_problem


def test_reading_of_answers() -> None:
    cpp = own_problem("cpp")
    body = "    return numbers;\n"
    continued = cpp.source(body + "}\n\nint other() {\n}\n")
    assert continued == cpp.head + "    return numbers;" + "\n}\n"
    assert cpp.source(body.rstrip()) == cpp.head + body + "\n}\n"
    assert cpp.source(cpp.head + body + "}").count("join_numbers") == 1
    fenced = cpp.source(f"```cpp\n{body}}}\n```")
    assert fenced.startswith(cpp.head + "    return numbers;")
    calls_itself = "    return join_numbers(numbers, 1);\n"
    assert cpp.source(calls_itself).startswith(cpp.head), "a call is not a definition"


def test_the_stop_tokens_cut_at_lines_only() -> None:
    go = own_problem("go")
    inside = "    type pair struct { a int }\n    return nil\n}\n"
    assert inside in go.source(inside + "\nfunc main() {\n}\n")
    assert "main" not in go.source(inside + "\nfunc main() {\n}\n")


def test_bad_problems() -> None:
    row = {"name": "x", "language": "cpp", **PROBLEMS["cpp"]}
    for missing in ("name", "language", "prompt", "tests"):
        with pytest.raises(DataError, match=f"line 3 has no field '{missing}'"):
            multipl_e_problem(Record("file: line 3", {name: value for name, value in row.items() if name != missing}))
    with pytest.raises(DataError, match="language='cobol' is not one of"):
        multipl_e_problem(Record("file: line 3", {**row, "language": "cobol"}))
    with pytest.raises(DataError, match="does not end with the head of a function"):
        multipl_e_problem(Record("file: line 3", {**row, "prompt": "// nothing\n"}))


def test_languages_by_their_names() -> None:
    assert [language_code(name) for name in ("C++", "go_test.go", "TypeScript", "rs")] == ["cpp", "go", "ts", "rs"]
    with pytest.raises(DataError, match="unknown language"):
        language_code("cobol")
