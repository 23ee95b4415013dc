"""Problems of HumanEval, MBPP, MultiPL-E and translation: read from files, put to a model, and run; and the reading of
answers. Whether right answers in other languages pass: `tests.hard.honest`."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError, DataError
from ebft.problems import translation
from ebft.problems.answers import fenced_blocks, has_code, python_variants
from ebft.problems.catalog import load_problems
from ebft.problems.multipl_e import MOST, multipl_e_problem
from ebft.problems.problem import Attempt, Record, run_tests
from ebft.problems.python_problems import humaneval_problem, mbpp_problem
from ebft.problems.translation import Pair, read_pairs
from tests.problems.rows import HUMANEVAL, MBPP, PAIRS, write
from tests.sandbox.attacks.python import ADD, HEAD
from tests.sandbox.multipl_e import own_problem, prompt_of
from tests.sandbox.sandboxed import LONG, needs_sandbox, not_passed


def test_files(tmp_path: Path) -> None:
    zipped = tmp_path / "problems.jsonl.gz"
    for times, cut, said in ((2, None, "row 2: the task 'Own/0' is there already"), (1, -12, "file ended before")):
        zipped.write_bytes(gzip.compress((json.dumps(HUMANEVAL) + "\n").encode() * times)[:cut])
        with pytest.raises(DataError, match=rf"problems.jsonl.gz: .*{said}"):
            load_problems("humaneval", str(zipped))


@needs_sandbox
def test_helpers_of_the_prompt_are_the_problems_own() -> None:
    head = "def half(x):\n    return x / 2\n\n\ndef double(x):\n    '''Undo half.'''\n"
    tests = "def check(candidate):\n    for n in range(5):\n        assert half(candidate(n)) == n\n"
    row = {"task_id": "Own/1", "prompt": head, "entry_point": "double", "test": tests}
    problem = humaneval_problem(Record("own", row))
    assert run_tests(problem, "    return 2 * x\n", limits=LONG).passed
    cheat = "    return 7\n\ndef half(x):\n    import itertools\n    return next(half.n)\nhalf.n = iter(range(99))\n"
    assert run_tests(problem, cheat, limits=LONG).status == "failed"
    # An answer of the function only has the prompt's helpers, too.
    uses = "```python\ndef double(x):\n    return x + 2 * half(x)\n```"
    assert run_tests(problem, uses, limits=LONG).passed


@needs_sandbox
def test_mbpp_with_a_class_of_the_program_and_with_the_fields_of_the_sanitized_set() -> None:
    tree, area = MBPP["code"], "def area(r):\n    return 3.14159265 * r * r"
    row = {"task_id": 8, "prompt": "The area.", "code": area, "test_imports": ["import math"]}
    row |= {"test_list": ["assert math.isclose(area(2), 12.566, rel_tol=0.001)"]}
    trees, areas = (mbpp_problem(Record("own", each)) for each in (MBPP, row))
    assert (trees.tests.names, trees.tests.classes, trees.tests.modules) == (("depth",), ("Node",), ("math",))
    wrong = [tree.replace("1 +", "2 +"), "class Node:\n    pass\ndef depth(node):\n    return 3"]
    forged = "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef area(r):\n    return 0"
    answers = [(trees, tree), *((trees, code) for code in wrong), (areas, area), (areas, forged)]
    found = not_passed([Attempt(problem, code, code) for problem, code in answers])
    assert {code: one.status for code, one in found.items()} == dict.fromkeys([*wrong, forged], "failed")


@needs_sandbox
def test_what_follows_the_function_does_not_count() -> None:
    row = {"task_id": 9, "text": "The last digit.", "code": "def last(n):\n    return n % 10\n"}
    row |= {"test_list": ["assert last(123) == 3", "assert last(7) == 7"]}
    good, bad = "def last(n):\n    return n % TEN\nTEN = 10\n", "def last(n):\n    return n\n"
    right = [
        good + "\ndef first(n):\n    while n >= 10:\n        n = n //",  # cut off
        good + "\ndef first(n",
        good + "\ndef last(n):\n    return n",  # cut off, and by chance it compiles
        good + "\nlast(undefined)\nx = last(undefined)\nwhile True: pass",
        "```python\n" + good + "\ndef first(n):\n    return (n",
    ]
    wrong = ["import math\nsum = 2 +\n" + good, bad + "\n" + good, bad + "\ndef first(n):\n    return (n"]
    problem = mbpp_problem(Record("own", row))
    assert not_passed([Attempt(problem, answer, answer) for answer in right + wrong]).keys() == {*wrong}


def test_mbpp_function_named_like_a_builtin() -> None:
    for code in ("def sum(a, b):\n    return a", ""):
        row = {"task_id": 1, "text": "t", "code": code, "test_list": ["assert sum(10, 15) == 6"]}
        assert mbpp_problem(Record("own", row)).tests.names == ("sum",)


def test_prompts() -> None:
    assert ADD.raw.prompt == HEAD
    assert ADD.chat.prompt.endswith(f"in a markdown code block:\n```\n{HEAD.strip()}\n```\n")
    assert ADD.chat.answer_start.endswith(":\n```python\n")
    mbpp = mbpp_problem(Record("own", MBPP))
    assert mbpp.raw.prompt == f'"""\n{MBPP["text"]}\n{MBPP["test_list"][0]}\n"""\n'
    assert f"```\n{mbpp.raw.prompt.strip()}\n```\n" in mbpp.chat.prompt
    assert humaneval_problem(Record("own", {**HUMANEVAL, "prompt": DEEP[4:]})).tests.classes == (), "a prompt in prose"


DEEP = "x = " + "-" * 100_000 + "1"


COBOL = {"name": "x", "language": "cobol"}


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (humaneval_problem, {**HUMANEVAL, "entry_point": None}, "has no field 'entry_point'"),
        (humaneval_problem, {**HUMANEVAL, "test": DEEP}, "'test' is not valid Python"),
        (humaneval_problem, {**HUMANEVAL, "prompt": 5}, r"no field 'prompt' \(a str\), but int"),
        (mbpp_problem, {**MBPP, "test_list": []}, "no field 'test_list'"),
        (multipl_e_problem, {**COBOL, "prompt": "// nothing\n"}, "row 3: the prompt does not end with"),
        (multipl_e_problem, {**COBOL, "prompt": "f() {"}, "unknown language"),
    ],
)
def test_rows_that_are_no_problems(read: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(Record("file: row 3", row))


BODY = "    return a + b\n"
FUNCTION = "def add(a, b):\n    return a + b\n"
ANSWERS = {
    "body": BODY,
    "body without its first indentation": "return a + b\n",
    "body of two lines without its first indentation": "total = a + b\n    return total\n",
    "body and prose": BODY + "\nThis function adds two numbers.\n",
    "body and a closing fence": BODY + "```\n\nExplanation follows.\n",
    "function": FUNCTION,
    "prompt repeated": HEAD + BODY,
    "fenced function": f"Here you go:\n\n```python\n{FUNCTION}```\nIt adds.",
    "fence not closed": f"Sure!\n```python\n{FUNCTION}",
    "fenced body": f"```python\n{BODY}```",
    "fenced body at the margin": "```python\nreturn a + b\n```",
    "second block has it": f"First install it:\n```bash\npip install nothing\n```\nThen:\n```python\n{FUNCTION}```",
    "usage after it": f"```python\n{FUNCTION}```\nUse it:\n```python\nprint(add(1, 2))\n```",
    "indented fence": "1. Do this:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
    "windows lines": "```python\r\n" + FUNCTION.replace("\n", "\r\n") + "```\r\n",
    "prose around": f"The function is\n\n{FUNCTION}\nand that is all.",
    "main block": f"```python\n{FUNCTION}\nif __name__ == '__main__':\n    raise SystemExit(input())\n```",
    "lambda": "```python\nadd = lambda a, b: a + b\n```",
    "byte order mark in a fence": f"```python\n\ufeff{FUNCTION}```",
    "quoted after prose": "Here it is:\n\n> " + FUNCTION.replace("\n", "\n> "),
    "quoted fence": "It is this:\n>\n" + f"> ```python\n{FUNCTION}```\n".replace("\n", "\n> "),
    "begin and done": f"[BEGIN]\n{FUNCTION}[DONE]",
    "continues and closes it": f"{FUNCTION}```\n",
    "the head again and a helper": f"def plus(a, b):\n    return a + b\n\n\n{HEAD}    return plus(a, b)\n",
    "a word before the fence": f"Here: ```python\n{FUNCTION}```",
}


# A body and another function, raw and not stopped: the first function counts, as in other harnesses.
ANSWERS["begins anew"] = f"{BODY}\ndef add(a, b):\n    return 0\n"
NONE = ["", "pass", "I cannot help.", "```python\n```", "def sub(a, b): return a + b", f"    return 0\n\n{FUNCTION}"]


@needs_sandbox
def test_answers_are_read() -> None:
    every = [Attempt(ADD, answer, name) for name, answer in [*ANSWERS.items(), *zip(NONE, NONE, strict=True)]]
    found = not_passed(every)
    assert found.keys() == {*NONE}
    assert {outcome.status for outcome in found.values()} == {"failed"}


def test_reading_takes_linear_time() -> None:
    for piece in ("\n", " ", "```\n", "def add(", "\ndef ", "[BEGIN]", "x = ", "> ", "\ufeff", "for ", "a ", "if in "):
        started = time.process_time()
        python_variants(HEAD, piece * (40_000 // len(piece)), "add")
        has_code(piece * (200_000 // len(piece)))
        has_code(piece * (200_000 // len(piece)), "cpp")
        assert time.process_time() - started < 3, piece


def test_the_first_reading_is_prompt_and_completion_and_prose_is_no_code() -> None:
    assert python_variants(HEAD, BODY, "add")[0] == (HEAD + BODY,)
    assert fenced_blocks("x `y` ```not a fence``` z") == []
    assert all(map(has_code, ANSWERS.values()))
    assert has_code("```cpp\nint add(int a, int b) {\n    return a + b;\n}\n```", "cpp")
    for answer in ("What should it do?\nPlease say more.", "```python\n```", "The sum of a and b:\n\n$a+b$"):
        assert not has_code(answer)
        assert not has_code(answer, "cpp")


# ---- MultiPL-E -------------------------------------------------------------------------------------------------------


def first(language: str, answer: str) -> str:
    return own_problem(language).interpretations(answer)[0][0]


def test_answers_in_other_languages() -> None:
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
def test_reading_of_other_languages_takes_linear_time(language: str) -> None:
    """Twice as long may take twice as long; a quadratic pattern needs minutes for one of these."""
    for piece in PIECES:
        for before in ("", "```\n", f"```\nstatic void {own_problem(language).function}("):
            started = time.process_time()
            found = own_problem(language).interpretations(before + piece * (20_000 // len(piece)))
            assert time.process_time() - started < 1, (piece, before)
            assert len(found) <= MOST


# ---- translation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "given", "expected"),
    [
        ({"de": "Hallo", "en": "Hello"}, (None, None), ("de", "en")),
        ({"task_id": "a", "de": "Hallo", "en": ["Hello", "Hi"]}, (None, None), ("de", "en")),
        ({"translation": {"de": "Hallo", "en": "Hello"}, "id": 1}, (None, None), ("de", "en")),
        ({"en": "Hello", "de": "Hallo"}, (None, "en"), ("de", "en")),
        ({"source": "Hallo", "reference": "Hello", "more": "x"}, (None, None), ("source", "reference")),
    ],
)
def test_the_fields_of_a_pair(row: dict[str, Any], given: Any, expected: tuple[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", [row])
    assert translation.find_fields(file, "test", given) == expected
    [pair] = read_pairs(file, "test", *expected)
    assert (pair.source, pair.references[0]) in (("Hallo", "Hello"), ("Hello", "Hallo"))


def test_prompts_name_the_languages() -> None:
    german, english = (translation.language_name(None, code, "--x") for code in ("de", "en"))
    expected = "Translate this from German to English:\nGerman: Das Haus ist alt.\nEnglish:"
    assert translation.prompts(PAIRS[:1], german, english) == [expected]
    braces = [Pair("1", "a {source} {b}", ["x"])]
    assert translation.prompts(braces, "A", "B", "{source} =>") == ["a {source} {b} =>"]
    assert translation.language_name("Swiss German", "src", "--x") == "Swiss German"
    with pytest.raises(ConfigError, match="give --source-language"):
        translation.language_name(None, "src", "--source-language")
    for template in ("{source} {text}", "hello"):
        with pytest.raises(ConfigError, match=r"must have {source}, and may have source_language"):
            translation.prompts(PAIRS, "A", "B", template)


def test_rows_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two rows have the id '1'"):
        read_pairs(write(tmp_path / "pairs.jsonl", [{"id": 1, "src": "a", "ref": "b"}] * 2), "test", "src", "ref")
    with pytest.raises(DataError, match=r"no field 'src'; it has 'en', 'de', 'fr': name one with --source-field"):
        translation.find_fields(write(tmp_path / "many.jsonl", [{"en": "a", "de": "b", "fr": "c"}]))
