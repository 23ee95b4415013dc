"""Programs in the languages of MultiPL-E: right ones pass, hostile ones do not; missing toolchains are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebft.errors import DataError
from ebft.problems.code import run_tests
from ebft.problems.multipl_e import MultiPLEProblem, language_name, problem
from ebft.problems.records import Record
from ebft.sandbox import bridges, languages
from ebft.sandbox.isolated_tests import Outcome
from ebft.sandbox.isolation import Limits
from tests.sandbox.attacks.others import ATTACKS, PROBLEMS, RIGHT
from tests.sandbox.sandboxed import Background, in_background, needs_language, needs_sandbox


def own(language: str) -> MultiPLEProblem:
    return problem(Record("own", {"name": f"own_{language}", "language": language, **PROBLEMS[language]}))


def cases(answers: dict[str, list[str]] | dict[str, dict[str, str]]) -> list[object]:
    return [
        pytest.param(language, answer, id=f"{language}-{place}", marks=[needs_sandbox, needs_language(language)])
        for language, of_language in answers.items()
        for place, answer in (of_language.items() if isinstance(of_language, dict) else enumerate(of_language))
    ]


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    def run(chosen: dict[str, str]) -> Outcome:
        right = chosen["answer"] in RIGHT[chosen["language"]]
        limits = Limits(seconds=30.0) if right else Limits(seconds=4.0, memory_mib=512, output_kib=64)
        return run_tests(own(chosen["language"]), chosen["answer"], limits=limits)

    yield from in_background(request, run)


@pytest.mark.parametrize(("language", "answer"), cases(RIGHT))
def test_right_answers_pass(language: str, answer: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.passed, outcome


@pytest.mark.parametrize(("language", "answer"), cases(ATTACKS))
def test_hostile_answers_do_not_pass(
    language: str, answer: str, background: Background, request: pytest.FixtureRequest
) -> None:
    outcome, seconds = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
    assert seconds < 60
    # For the reason that is meant: it ran, and the tests found it wrong or were never finished.
    if answer == ATTACKS[language]["exits"]:
        assert "ended" in outcome.message
    if answer == ATTACKS[language]["wrong"]:
        assert "compile" not in outcome.message
        assert "ended" not in outcome.message


def test_reading_of_answers() -> None:
    cpp = own("cpp")
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
    go = own("go")
    inside = "    type pair struct { a int }\n    return nil\n}\n"
    assert inside in go.source(inside + "\nfunc main() {\n}\n")
    assert "main" not in go.source(inside + "\nfunc main() {\n}\n")


@pytest.mark.parametrize("language", PROBLEMS)
def test_signatures(language: str) -> None:
    sign = bridges.signature(language, own(language).head)
    assert sign.name.lower().replace("_", "") == "joinnumbers"
    assert sign.arguments.replace("$", "") == "numbers, start"


def test_signatures_with_brackets_in_types() -> None:
    head = "std::map<std::string,long> f(std::map<std::string,std::vector<long>> a, std::tuple<long, long> b) {\n"
    sign = bridges.signature("cpp", head)
    assert (sign.returns, sign.arguments) == ("std::map<std::string,long>", "a, b")
    sign = bridges.signature("rs", "fn f(a: Vec<(isize, String)>, mut b: f64) -> (f64, Option<isize>) {\n")
    assert (sign.returns, sign.arguments) == ("(f64, Option<isize>)", "a, b")
    sign = bridges.signature("go", "func f(a []interface{}, b map[string]int) []interface{} {\n")
    assert (sign.returns, sign.arguments) == ("[]interface{}", "a, b")


def test_bad_problems() -> None:
    row = {"name": "x", "language": "cpp", **PROBLEMS["cpp"]}
    for missing in ("name", "language", "prompt", "tests"):
        with pytest.raises(DataError, match=f"line 3 has no field '{missing}'"):
            problem(Record("file: line 3", {name: value for name, value in row.items() if name != missing}))
    with pytest.raises(DataError, match="language='cobol' is not one of"):
        problem(Record("file: line 3", {**row, "language": "cobol"}))
    with pytest.raises(DataError, match="does not end with the head of a function"):
        problem(Record("file: line 3", {**row, "prompt": "// nothing\n"}))


def test_languages_by_their_names() -> None:
    assert [language_name(name) for name in ("C++", "go_test.go", "TypeScript", "rs")] == ["cpp", "go", "ts", "rs"]
    with pytest.raises(DataError, match="unknown language"):
        language_name("cobol")


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        reason = languages.LANGUAGES[language].missing()
        assert reason is not None
        assert f"apt install {package}" in reason
        assert own(language).unavailable() == reason
