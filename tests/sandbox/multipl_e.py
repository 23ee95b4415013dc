# ruff: noqa: E501 - programs, as they were written
"""Small problems of our own in the form of MultiPL-E: a prompt that ends with the head of a function, and tests."""

import json
from typing import Any, NamedTuple

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


class Form(NamedTuple):
    """How MultiPL-E writes a problem in a language, with its many brackets and casts."""

    types: str  # int; float; str; bool; list; map; missing
    stops: list[str]
    prompt: str
    check: str  # of one case
    tests: str
    parameter: str = "{kind} {name}"
    int_ends: str = ""
    float_ends: str = ""
    text: str = "{}"
    items: str = "[{}]"
    empty: str = ""  # a list, where that is written in another way
    typed: bool = False  # items have casts, and arguments are in brackets
    pair: str = "{}: {}"
    pairs: str = "{{{}}}"
    some: str = "{}"
    none: str = "undefined"


NODE = "const assert = require('node:assert');\n\n\nfunction test() {{\n  let candidate = {called};\n{checks}\n}}\n\ntest();"
GO = (
    "func Test{title}(t *testing.T) {{\n  candidate := {called}\n\ttype test struct {{\n\t\tactual   interface{{}}\n"
    "\t\texpected interface{{}}\n\t}}\n   tests := []test{{\n{checks}\n   }}\n\n\tfor i, tc := range tests {{\n"
    '\t\tt.Run(fmt.Sprintf("test num % d", i), func(t *testing.T) {{\n'
    '\t\t\tif fmt.Sprintf("%v", tc.actual) != fmt.Sprintf("%v", tc.expected) {{\n'
    "\t\t\t\tt.Errorf(\"expected '%s', got '%s'\", tc.expected, tc.actual)\n\t\t\t}}\n\t\t}})\n\t}}\n}}\n"
)
FORMS = {
    "cpp": Form(
        "long;float;std::string;bool;std::vector<{}>;std::map<std::string,{}>;std::optional<{}>", ["\n}"],
        "#include<assert.h>\n#include<bits/stdc++.h>\n// {words}: see the tests.\n{returns} {called}({parameters}) {{\n",
        "    assert(candidate{call} == ({right}));",
        "}}\nint main() {{\n    auto candidate = {called};\n{checks}\n}}\n",
        float_ends="f", text="({})", items="({type}({{{}}}))", typed=True,
        pair="{{{}, {}}}", pairs="({type}({{{}}}))", none="std::nullopt",
    ),
    "rs": Form(
        "isize;f64;String;bool;Vec<{}>;HashMap<String, {}>;Option<{}>", ["\n}"],
        "use std::collections::HashMap;\n\n/// {words}: see the tests.\nfn {called}({parameters}) -> {returns} {{\n",
        "    assert_eq!(candidate{call}, {right});",
        "}}\n\nfn main() {{\n    let candidate = {called};\n{checks}\n}}\n",
        "{name}: {kind}", text="String::from({})", items="vec![{}]", empty="Vec::<{inner}>::new()",
        pair="({}, {})", pairs="HashMap::from([{}])", some="Some({})", none="None",
    ),
    "go": Form(
        "int;float64;string;bool;[]{};map[string]{};interface{{}}", ["\nfunc", "struct", "\n// "],
        'package {name}_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\n// {words}: see the tests.\nfunc {called}({parameters}) {returns} {{\n',
        "     {{ actual: candidate{call}, expected: {right} }},", GO,
        "{name} {kind}", items="{type}{{{}}}", pairs="{type}{{{}}}", none="nil",
    ),
    "java": Form(
        "long;float;String;boolean;ArrayList<{}>;HashMap<String,{}>;Optional<{}>", ["\n    }\n"],
        "import java.util.*;\nimport java.lang.reflect.*;\nimport org.javatuples.*;\nimport java.util.stream.*;\n"
        "class Problem {{\n    // {words}: see the tests.\n    public static {returns} {called}({parameters}) {{\n",
        "    assert({called}{call}{equal});",
        "    }}\n    public static void main(String[] args) {{\n{checks}\n    }}\n\n}}\n",
        int_ends="l", float_ends="f", text="({})", items="(new {type}(Arrays.asList({})))", typed=True,
        pair="{}, {}", pairs="(new {type}(Map.of({})))", some="Optional.of({})", none="Optional.empty()",
    ),
    "cs": Form(
        "long;float;string;bool;List<{}>;Dictionary<string,{}>;Nullable<{}>", ["\n    }\n"],
        "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\nusing System.Text;\n"
        "class Problem {{\n    // {words}: see the tests.\n    public static {returns} {called}({parameters}) {{\n",
        "    Debug.Assert({called}{call}{equal});",
        "    }}\n    public static void Main(string[] args) {{\n{checks}\n    }}\n\n}}\n",
        int_ends="L", float_ends="f", text="({})", items="(new {type}(new {inner}[]{{{}}}))", empty="(new {type}())", typed=True,
        pair="{{{}, {}}}", pairs="(new {type}(){{{}}})", none="null",
    ),
    "js": Form(
        ";;;;;;", ["\nfunction ", "\n/*", "\n//", "\nconsole.log"], "//{name}\nfunction {called}({parameters}){{\n",
        "  assert.deepEqual(candidate{call},{right});", NODE, "{name}",
    ),
    "ts": Form(
        "number;number;string;boolean;{}[];{{[key: string]: {}}};{} | undefined", ["\nfunction ", "\n/*", "\n//", "\nclass"],
        "//{name}\nfunction {called}({parameters}): {returns} {{\n",
        "  assert.deepEqual(candidate{call},{right});", f"declare var require: any;\n{NODE}", "{name}: {kind}",
    ),
    "php": Form(
        ";;;;;;", ["\nfunction", "\n?>", "\n//", "\n#"], "<?php\n// {words}: see the tests.\nfunction {called}({parameters}) {{\n",
        '    if (candidate{call} !== {right}) {{ throw new Exception("Test failed!"); }}',
        "function candidate(...$args) {{\n    return {called}(...$args);\n}}\n\nfunction test(): void {{\n{checks}\n}}\n\ntest();",
        "${name}", pair="{} => {}", pairs="array({})", none="null",
    ),
}  # fmt: skip
BOXED = {"long": "Long", "float": "Float", "boolean": "Boolean"}


def type_in(language: str, kind: str) -> str:
    names = FORMS[language].types.split(";")
    if kind in ("int", "float", "str", "bool"):
        return names[("int", "float", "str", "bool").index(kind)]
    inner = type_in(language, kind[:-1] if kind.endswith("?") else kind[1:-1])
    inner = BOXED.get(inner, inner) if language == "java" else inner
    return names[6 if kind.endswith("?") else 4 if kind[0] == "[" else 5].format(inner)


def literal(language: str, kind: str, value: Any) -> str:
    form = FORMS[language]
    if kind.endswith("?"):
        return form.none if value is None else form.some.format(literal(language, kind[:-1], value))
    if isinstance(value, (list, dict)):
        names = {"type": type_in(language, kind), "inner": type_in(language, kind[1:-1])}
        items = [literal(language, kind[1:-1], item) for item in (value if isinstance(value, list) else value.values())]
        if isinstance(value, dict):
            keys = [literal(language, "str", key) for key in value]
            return form.pairs.format(", ".join(map(form.pair.format, keys, items)), **names)
        items = [f"({names['inner']}){item}" if form.typed else item for item in items]
        return (form.items if items else form.empty or form.items).format(", ".join(items), **names)
    ends = {"int": form.int_ends, "float": form.float_ends}.get(kind, "")
    return (form.text if kind == "str" else "{}").format(json.dumps(value)) + ends


def function_name(language: str, name: str) -> str:
    parts = name.split("_")
    camel = parts[0] + "".join(part.title() for part in parts[1:])
    return {"java": camel, "cs": camel[0].upper() + camel[1:]}.get(language, name)


def prompt_of(language: str, name: str) -> str:
    form, (kinds, result, _) = FORMS[language], PROBLEMS[name]
    parameters = [form.parameter.format(name=n, kind=type_in(language, kind)) for n, kind in kinds.items()]
    words = {"name": name, "words": name.replace("_", " "), "called": function_name(language, name)}
    return form.prompt.format(**words, returns=type_in(language, result), parameters=", ".join(parameters))


def checks_of(language: str, name: str) -> str:
    form, (kinds, result, cases) = FORMS[language], PROBLEMS[name]
    called, checks = function_name(language, name), []
    method = {"java": "equals", "cs": "SequenceEqual" if result[0] == "[" else "Equals"}.get(language)
    for arguments, expected in cases:
        given = [literal(language, k, v) for k, v in zip(kinds.values(), arguments, strict=True)]
        call = f"({', '.join(f'({g})' if form.typed else g for g in given)})"
        right = literal(language, result, expected)
        equal = f" == ({right})" if result in ("int", "float", "bool") else f".{method}(({right}))"
        checks.append(form.check.format(called=called, call=call, right=right, equal=equal))
    return form.tests.format(title=name.title(), called=called, checks="\n".join(checks))


def own_problem(language: str, name: str = "join_numbers") -> MultiPLEProblem:
    row = {"name": f"own_{language}_{name}", "language": language, "stop_tokens": FORMS[language].stops}
    row |= {"prompt": prompt_of(language, name), "tests": checks_of(language, name)}
    return multipl_e_problem(Record("own", row))
