# ruff: noqa: E501 - programs, as they were written
"""Small problems of our own in the form of MultiPL-E: a prompt that ends with the head of a function, and tests."""

from __future__ import annotations

import json
from typing import Any

from ebft.problems.multipl_e import MultiPLEProblem, multipl_e_problem
from ebft.problems.problem import Record

# Parameters, the type of the result, and cases. A type in brackets is a list, in braces a map from strings, with a
# question mark one that may be missing.
Cases = list[tuple[list[Any], Any]]
PROBLEMS: dict[str, tuple[dict[str, str], str, Cases]] = {
    "join_numbers": ({"numbers": "[int]", "start": "int"}, "[int]", [([[1, 2], 5], [5, 2, 4]), ([[], 7], [7])]),
    "even_sum": ({"numbers": "[int]"}, "bool", [([[1, 2, 3]], True), ([[]], True), ([[-1]], False)]),
    "backwards": ({"text": "str"}, "str", [(["abc"], "cba"), ([""], ""), (["a b"], "b a")]),
    "fibonacci": ({"n": "int"}, "int", [([0], 0), ([1], 1), ([10], 55), ([50], 12586269025)]),
    "divisors": ({"n": "int"}, "[int]", [([1], [1]), ([12], [1, 2, 3, 4, 6, 12]), ([7], [1, 7])]),
    "longest": ({"words": "[str]"}, "str", [([["a", "bcd", "efg"]], "bcd"), ([[]], "")]),
    "first_above": ({"numbers": "[int]", "limit": "int"}, "int?", [([[1, 5, 7], 4], 5), ([[1, 2], 4], None)]),
    "mean": ({"values": "[float]"}, "float", [([[1.0, 2.0]], 1.5), ([[0.5]], 0.5)]),
    "total": ({"prices": "{int}", "names": "[str]"}, "int", [([{"tea": 3, "pie": 5}, ["tea", "x", "tea"]], 6)]),
    "matrix_sum": ({"rows": "[[int]]"}, "int", [([[[1, 2], [3]]], 6), ([[]], 0), ([[[]]], 0)]),
    "vowels": ({"text": "str"}, "int", [(["Hello World"], 3), (["xyz"], 0), (["AEIOU"], 5)]),
}
# The names of types (int, float, str, bool, list, map, missing) in each language.
TYPES = {
    "cpp": "long;float;std::string;bool;std::vector<{}>;std::map<std::string,{}>;std::optional<{}>",
    "rs": "isize;f64;String;bool;Vec<{}>;HashMap<String, {}>;Option<{}>",
    "go": "int;float64;string;bool;[]{};map[string]{};interface{{}}",
    "java": "long;float;String;boolean;ArrayList<{}>;HashMap<String,{}>;Optional<{}>",
    "cs": "long;float;string;bool;List<{}>;Dictionary<string,{}>;Nullable<{}>",
    "ts": "number;number;string;boolean;{}[];{{[key: string]: {}}};{} | undefined",
    "js": ";;;;;;",
    "php": ";;;;;;",
}
BOXED = {"long": "Long", "float": "Float", "boolean": "Boolean"}
STOPS = {
    "cpp": ["\n}"],
    "rs": ["\n}"],
    "go": ["\nfunc", "struct", "\n// "],
    "java": ["\n    }\n"],
    "cs": ["\n    }\n"],
    "js": ["\nfunction ", "\n/*", "\n//", "\nconsole.log"],
    "ts": ["\nfunction ", "\n/*", "\n//", "\nclass"],
    "php": ["\nfunction", "\n?>", "\n//", "\n#"],
}


def type_in(language: str, kind: str) -> str:
    names = TYPES[language].split(";")
    if kind in ("int", "float", "str", "bool"):
        return names[("int", "float", "str", "bool").index(kind)]
    inner = type_in(language, kind[:-1] if kind.endswith("?") else kind[1:-1])
    inner = BOXED.get(inner, inner) if language == "java" else inner
    return names[6 if kind.endswith("?") else 4 if kind[0] == "[" else 5].format(inner)


def literal(language: str, kind: str, value: Any) -> str:
    """As MultiPL-E writes values, with its many brackets and casts."""
    if kind.endswith("?"):
        none = {"cpp": "std::nullopt", "rs": "None", "go": "nil", "java": "Optional.empty()", "js": "undefined"}
        if value is None:
            return none.get(language, "undefined" if language == "ts" else "null")
        inner = literal(language, kind[:-1], value)
        return {"rs": f"Some({inner})", "java": f"Optional.of({inner})"}.get(language, inner)
    name = type_in(language, kind)
    if isinstance(value, list):
        inner = type_in(language, kind[1:-1])
        items = [literal(language, kind[1:-1], item) for item in value]
        if language in ("cpp", "java", "cs"):
            cast = BOXED.get(inner, inner) if language == "java" and inner not in BOXED else inner
            items = [f"({cast}){item}" for item in items]
        all_of = ", ".join(items)
        return {
            "cpp": f"({name}({{{all_of}}}))",
            "rs": f"vec![{all_of}]" if items else f"Vec::<{inner}>::new()",
            "go": f"{name}{{{all_of}}}",
            "java": f"(new {name}(Arrays.asList({all_of})))",
            "cs": f"(new {name}(new {inner}[]{{{all_of}}}))" if items else f"(new {name}())",
        }.get(language, f"[{all_of}]")
    if isinstance(value, dict):
        pairs = [(literal(language, "str", k), literal(language, kind[1:-1], v)) for k, v in value.items()]
        return {
            "cpp": f"({name}({{{', '.join(f'{{{k}, {v}}}' for k, v in pairs)}}}))",
            "rs": f"HashMap::from([{', '.join(f'({k}, {v})' for k, v in pairs)}])",
            "go": f"{name}{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}",
            "java": f"(new {name}(Map.of({', '.join(f'{k}, {v}' for k, v in pairs)})))",
            "cs": f"(new {name}(){{{', '.join(f'{{{k}, {v}}}' for k, v in pairs)}}})",
            "php": f"array({', '.join(f'{k} => {v}' for k, v in pairs)})",
        }.get(language, f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}")
    text = json.dumps(value)
    if isinstance(value, str):
        return (
            f"String::from({text})" if language == "rs" else f"({text})" if language in ("cpp", "java", "cs") else text
        )
    suffix = {"java": {"int": "l", "float": "f"}, "cs": {"int": "L", "float": "f"}, "cpp": {"float": "f"}}
    return text + suffix.get(language, {}).get(kind, "")


def function_name(language: str, name: str) -> str:
    parts = name.split("_")
    camel = parts[0] + "".join(part.title() for part in parts[1:])
    return {"java": camel, "cs": camel[0].upper() + camel[1:]}.get(language, name)


def prompt_of(language: str, name: str) -> str:
    parameters, result, _ = PROBLEMS[name]
    kinds = {parameter: type_in(language, kind) for parameter, kind in parameters.items()}
    called, returns = function_name(language, name), type_in(language, result)
    first = ", ".join(f"{kind} {parameter}" for parameter, kind in kinds.items())
    after = ", ".join(f"{parameter}: {kind}" for parameter, kind in kinds.items())
    go = ", ".join(f"{parameter} {kind}" for parameter, kind in kinds.items())
    comment = f"// {name.replace('_', ' ')}: see the tests."
    return {
        "cpp": f"#include<assert.h>\n#include<bits/stdc++.h>\n{comment}\n{returns} {called}({first}) {{\n",
        "rs": f"use std::collections::HashMap;\n\n/{comment}\nfn {called}({after}) -> {returns} {{\n",
        "go": f'package {name}_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\n{comment}\nfunc {called}({go}) {returns} {{\n',
        "java": "import java.util.*;\nimport java.lang.reflect.*;\nimport org.javatuples.*;\nimport java.util.stream.*;\n"
        f"class Problem {{\n    {comment}\n    public static {returns} {called}({first}) {{\n",
        "cs": "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\nusing System.Text;\n"
        f"class Problem {{\n    {comment}\n    public static {returns} {called}({first}) {{\n",
        "js": f"//{name}\nfunction {called}({', '.join(parameters)}){{\n",
        "ts": f"//{name}\nfunction {called}({after}): {returns} {{\n",
        "php": f"<?php\n{comment}\nfunction {called}({', '.join(f'${parameter}' for parameter in parameters)}) {{\n",
    }[language]


def checks_of(language: str, name: str) -> str:
    parameters, result, cases = PROBLEMS[name]
    called, lines = function_name(language, name), []
    for arguments, expected in cases:
        given = [literal(language, k, v) for k, v in zip(parameters.values(), arguments, strict=True)]
        brackets = language in ("cpp", "java", "cs")
        call = f"({', '.join(f'({g})' if brackets else g for g in given)})"
        right = literal(language, result, expected)
        equal = f" == ({right})" if result in ("int", "float", "bool") else f".equals(({right}))"
        if language == "cs" and equal.startswith(".e"):
            equal = f".{'SequenceEqual' if result[0] == '[' else 'Equals'}(({right}))"
        lines.append(
            {
                "cpp": f"    assert(candidate{call} == ({right}));",
                "rs": f"    assert_eq!(candidate{call}, {right});",
                "go": f"     {{ actual: candidate{call}, expected: {right} }},",
                "java": f"    assert({called}{call}{equal});",
                "cs": f"    Debug.Assert({called}{call}{equal});",
                "php": f'    if (candidate{call} !== {right}) {{ throw new Exception("Test failed!"); }}',
            }.get(language, f"  assert.deepEqual(candidate{call},{right});")
        )
    body = "\n".join(lines)
    js = f"const assert = require('node:assert');\n\n\nfunction test() {{\n  let candidate = {called};\n{body}\n}}\n\ntest();"
    return {
        "cpp": f"}}\nint main() {{\n    auto candidate = {called};\n{body}\n}}\n",
        "rs": f"}}\n\nfn main() {{\n    let candidate = {called};\n{body}\n}}\n",
        "go": f"func Test{name.title()}(t *testing.T) {{\n  candidate := {called}\n\ttype test struct {{\n\t\tactual   interface{{}}\n"
        f"\t\texpected interface{{}}\n\t}}\n   tests := []test{{\n{body}\n   }}\n\n\tfor i, tc := range tests {{\n"
        '\t\tt.Run(fmt.Sprintf("test num % d", i), func(t *testing.T) {\n'
        '\t\t\tif fmt.Sprintf("%v", tc.actual) != fmt.Sprintf("%v", tc.expected) {\n'
        "\t\t\t\tt.Errorf(\"expected '%s', got '%s'\", tc.expected, tc.actual)\n\t\t\t}\n\t\t})\n\t}\n}\n",
        "java": f"    }}\n    public static void main(String[] args) {{\n{body}\n    }}\n\n}}\n",
        "cs": f"    }}\n    public static void Main(string[] args) {{\n{body}\n    }}\n\n}}\n",
        "ts": f"declare var require: any;\n{js}",
        "js": js,
        "php": f"function candidate(...$args) {{\n    return {called}(...$args);\n}}\n\nfunction test(): void {{\n{body}\n}}\n\ntest();",
    }[language]


def own_problem(language: str, name: str = "join_numbers") -> MultiPLEProblem:
    row = {"name": f"own_{language}_{name}", "language": language, "stop_tokens": STOPS[language]}
    return multipl_e_problem(
        Record("own", row | {"prompt": prompt_of(language, name), "tests": checks_of(language, name)})
    )
