# ruff: noqa: E501 - programs, as they were written
"""Reading the problems of MultiPL-E and answers to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebft.errors import DataError
from ebft.problems.multipl_e import MultiPLEProblem, language_code, multipl_e_problem
from ebft.problems.problem import run_tests
from ebft.problems.records import Record
from ebft.sandbox.command import Limits
from tests.sandbox.attacks.others import PROBLEMS, own_problem
from tests.sandbox.sandboxed import needs_language, needs_sandbox


def first(problem: MultiPLEProblem, answer: str) -> str:
    return problem.interpretations(answer)[0]


def test_reading_of_answers() -> None:
    cpp = own_problem("cpp")
    body = "    return numbers;\n"
    continued = first(cpp, body + "}\n\nint other() {\n}\n")
    assert continued == cpp.head + "    return numbers;" + "\n}\n"
    assert first(cpp, body.rstrip()) == cpp.head + body + "\n}\n"
    assert first(cpp, cpp.head + body + "}").count("join_numbers") == 1
    fenced = first(cpp, f"```cpp\n{body}}}\n```")
    assert fenced.startswith(cpp.head + "    return numbers;")
    calls_itself = "    return join_numbers(numbers, 1);\n"
    assert first(cpp, calls_itself).startswith(cpp.head), "a call is not a definition"


def test_the_stop_tokens_cut_at_lines_only() -> None:
    go = own_problem("go")
    inside = "    type pair struct { a int }\n    return nil\n}\n"
    assert inside in first(go, inside + "\nfunc main() {\n}\n")
    assert "main" not in first(go, inside + "\nfunc main() {\n}\n")


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


CPP = "    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}\n"
JAVA = (
    "        ArrayList<Long> all = new ArrayList<>(List.of(start));\n        for (long n : numbers) all.add(2 * n);\n"
    "        return all;\n    }\n"
)
JAVA_HEAD = "public static ArrayList<Long> joinNumbers(ArrayList<Long> numbers, long start) {\n"
CS = "        return new[] { start }.Concat(numbers.Select(n => Helper.Twice(n))).ToList();\n    }\n"
CS_HEAD = "    public static List<long> JoinNumbers(List<long> numbers, long start) {\n"
CS_HELPER = "static class Helper {\n    public static long Twice(long n) { return 2 * n; }\n}\n"
BODY = "    for (const n of numbers) {name}.push(2 * n);\n    return {name};\n}\n".replace("{name}", "join_numbers")
ANSWERS = {
    "cpp its own name in the body": "std::vector<long> join_numbers(1, start);\n"
    "for (long n : numbers) join_numbers.push_back(2 * n);\nreturn join_numbers;\n}\n",
    "cpp a main after it": CPP + "\nint main() {\n    return 1;\n}\n",
    "cpp repeated and cut off": CPP
    + "\nstd::vector<long> join_numbers(std::vector<long> numbers, long start) {\n    ret",
    "cpp a bracket at the start of a line": "std::vector<long> all = {start};\nfor (long n : numbers) {\n"
    "all.push_back(2 * n);\n}\nreturn all;\n}\n",
    "cpp return type on its own line": "```cpp\nstd::vector<long>\njoin_numbers(std::vector<long> numbers, long start)\n{\n"
    + CPP
    + "```",
    "js its own name in the body": "    let join_numbers = [start];\n" + BODY,
    "ts its own name in the body": "    const join_numbers: number[] = [start];\n" + BODY,
    "ts require": "```typescript\nconst util = require('util');\nfunction join_numbers(numbers: number[], start: number)"
    ": number[] {\n    return [start, ...numbers.map(n => 2 * n)];\n}\nmodule.exports = { join_numbers };\n```",
    "rs a function of its name in the body": "    fn join_numbers(n: isize) -> isize {\n        2 * n\n    }\n"
    "    std::iter::once(start).chain(numbers.into_iter().map(join_numbers)).collect()\n}\n",
    "rs a use of the prompt": "```rust\nuse std::collections::{HashMap, HashSet};\nfn join_numbers(numbers: Vec<isize>, "
    "start: isize) -> Vec<isize> {\n    let _: (HashMap<u8, u8>, HashSet<u8>) = Default::default();\n"
    "    std::iter::once(start).chain(numbers.into_iter().map(|n| 2 * n)).collect()\n}\n```",
    "java a main after it": JAVA
    + "\n    public static void main(String[] args) {\n        System.exit(3);\n    }\n}\n",
    "java imports above a method": f"```java\nimport java.util.*;\nimport java.util.stream.Collectors;\n\n{JAVA_HEAD}{JAVA}```",
    "java a helper class before": "```java\nimport java.util.*;\n\nclass Helper {\n    static long twice(long n) { return 2 * n; }"
    f"\n}}\n\npublic class Solution {{\n    {JAVA_HEAD}{JAVA.replace('2 * n', 'Helper.twice(n)')}}}\n```",
    "java return type on its own line": "```java\nclass Problem {\n    public static ArrayList<Long>\n"
    f"    joinNumbers(ArrayList<Long> numbers, long start)\n    {{\n{JAVA}}}\n```",
    "cs using above a method": f"```csharp\nusing System.Text;\nusing System.Linq;\n\n{CS_HEAD}"
    + CS.replace("Helper.Twice(n)", "2 * n")
    + "```",
    "cs a helper class before": f"```csharp\nusing System.Linq;\n\n{CS_HELPER}\npublic class Solution {{\n{CS_HEAD}{CS}}}\n```",
    "cs a namespace": "```csharp\nusing System;\nusing System.Linq;\n\nnamespace My.Code\n{\n"
    f"{CS_HELPER}public class Solution {{\n{CS_HEAD}{CS}}}\n}}\n```",
}


@needs_sandbox
@pytest.mark.parametrize(
    ("language", "answer"),
    [pytest.param(k.split()[0], v, id=k, marks=needs_language(k.split()[0])) for k, v in ANSWERS.items()],
)
def test_right_answers_in_unusual_shapes(language: str, answer: str) -> None:
    problem = own_problem(language)
    if "use std" in answer:
        problem = replace(problem, head="use std::collections::HashMap;\n" + problem.head)
    outcome = run_tests(problem, answer, limits=Limits(seconds=30.0))
    assert outcome.passed, outcome
