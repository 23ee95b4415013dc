"""Reading the problems of MultiPL-E and answers to them; whether right answers pass: `tests.hard.honest`."""

from __future__ import annotations

import time

import pytest

from ebft.errors import DataError
from ebft.problems.multipl_e import MOST, multipl_e_problem
from ebft.problems.problem import Record
from tests.sandbox.multipl_e import own_problem, prompt_of


def first(language: str, answer: str) -> str:
    return own_problem(language).interpretations(answer)[0][0]


def test_reading_of_answers() -> None:
    head, body = prompt_of("cpp", "join_numbers"), "    return numbers;\n"
    assert first("cpp", body + "}\n\nint other() {\n}\n") == head + "    return numbers;" + "\n}\n"
    assert first("cpp", body.rstrip()) == head + body + "\n}\n"
    assert first("cpp", head + body + "}").count("join_numbers") == 1
    assert first("cpp", f"```cpp\n{body}}}\n```").startswith(head + "    return numbers;")
    assert first("cpp", "    return join_numbers(numbers, 1);\n").startswith(head), "a call is not a definition"
    closed = first("js", f"{body}}}\n```\n\nThis returns a value.\n")
    assert closed.rstrip() == prompt_of("js", "join_numbers") + body + "}"
    whole = "long join_numbers(int a) { return a; }\n"
    assert first("cpp", f"First:\n```bash\nmake\n```\nThen:\n```cpp\n{whole}```").endswith(f"std;\n{whole}")
    # Stop tokens cut at lines only.
    inside = "    type pair struct { a int }\n    return nil\n}\n"
    found = first("go", inside + "\nfunc main() {\n}\n")
    assert inside in found
    assert "main()" not in found


@pytest.mark.parametrize(
    ("language", "code", "place"),
    [
        ("java", "class A { String s = \"{\"; /* { */ char c = '{'; } // {\npublic class B { static @ } }", "B"),
        ("java", "class A { static class N {} class C { public static List<Long>\n@ } }", "A.C"),
        ("java", "import java.util.*;\npublic static ArrayList<Long> @ }", "Problem"),
        ("cs", "using System;\nnamespace X.Y { namespace Z { struct S {} class A { static long @ } } }", "X.Y.Z.A"),
        ("cs", "using X;\nusing L = System.Int64;\nstatic long Two() { return 2; }\nstatic L @ }", "Problem"),
    ],
)  # fmt: skip
def test_the_class_around_the_function(language: str, code: str, place: str) -> None:
    name = {"java": "joinNumbers", "cs": "JoinNumbers"}[language]
    program, found = own_problem(language)._with_class(code.replace("@", f"{name}(long a) {{"))
    assert found == place
    lines = [line.strip() for line in program.split("\n") if line.strip()]
    imports = [line.startswith(("import ", "using ")) for line in lines]
    assert imports == sorted(imports, reverse=True), "imports come first"


PIECES = (
    "\n", "x\n", " ", "```\n", "static ", "join_numbers(", "joinNumbers(", "{", "}", "class A ", "=", "public static ",
    "namespace a {\n", "import a\n", "using a = ", "package ", "class A {", "/*", '"', "\\", "> ", "#!",
)  # fmt: skip


@pytest.mark.parametrize("language", ["cpp", "rs", "go", "java", "cs", "js"])
def test_reading_takes_linear_time(language: str) -> None:
    """Twice as long may take twice as long; a quadratic pattern needs minutes for one of these."""
    for piece in PIECES:
        for before in ("", "```\n", f"```\nstatic void {own_problem(language).function}("):
            started = time.process_time()
            found = own_problem(language).interpretations(before + piece * (20_000 // len(piece)))
            assert time.process_time() - started < 1, (piece, before)
            assert len(found) <= MOST


def test_bad_problems() -> None:
    for prompt, message in ("// nothing\n", "row 3: the prompt does not end with"), ("f() {", "unknown language"):
        with pytest.raises(DataError, match=message):
            multipl_e_problem(Record("file: row 3", {"name": "x", "language": "cobol", "prompt": prompt}))
