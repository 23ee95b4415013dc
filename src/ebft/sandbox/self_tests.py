"""Whether a toolchain works at all: one small program that is right must pass, or the language cannot be scored here.

A compiler that is there but fails on everything (half of an installation, a version that has changed its options)
would otherwise count as failed answers of the model.
"""

from __future__ import annotations

import threading

from ebft.sandbox import bridges
from ebft.sandbox.command import Limits
from ebft.sandbox.isolated_tests import TIMEOUT
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.language_runners import run_program
from ebft.sandbox.languages import LANGUAGES

_LIMITS = Limits(seconds=60.0)
_ASSERT = "const assert = require('node:assert');\nfunction test() {\n  assert.deepEqual(same(1), 1);\n}\ntest();\n"
# The head of a function, its body, and tests, in the form of MultiPL-E's.
_PROGRAMS = {
    "cpp": (
        "#include<assert.h>\n#include<bits/stdc++.h>\nlong same(long n) {\n",
        "    return n;\n}\n",
        "}\nint main() {\n    assert(same((1)) == (1));\n}\n",
    ),
    "rs": ("fn same(n: isize) -> isize {\n", "    n\n}\n", "}\n\nfn main() {\n    assert_eq!(same(1), 1);\n}\n"),
    "go": (
        'package same_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\nfunc same(n int) int {\n',
        "    return n\n}\n",
        'func TestSame(t *testing.T) {\n    if same(1) != 1 {\n        t.Errorf(fmt.Sprintf("wrong"))\n    }\n}\n',
    ),
    "java": (
        "import java.util.*;\nimport org.javatuples.*;\nclass Problem {\n    public static long same(long n) {\n",
        "        return n;\n    }\n}\n",
        "    }\n    public static void main(String[] args) {\n    assert(same((1l)) == (1l));\n    }\n\n}\n",
    ),
    "cs": (
        "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\n"
        "class Problem {\n    public static long Same(long n) {\n",
        "        return n;\n    }\n}\n",
        "    }\n    public static void Main(string[] args) {\n    Debug.Assert(Same((1L)) == (1L));\n    }\n\n}\n",
    ),
    "js": ("function same(n){\n", "    return n;\n}\n", _ASSERT),
    "ts": ("function same(n: number): number {\n", "    return n;\n}\n", f"declare var require: any;\n{_ASSERT}"),
    "php": (
        "<?php\nfunction same($n) {\n",
        "    return $n;\n}\n",
        'function test(): void {\n    if (same(1) !== 1) { throw new Exception("Test failed!"); }\n}\n\ntest();\n',
    ),
}

_found: dict[tuple[str, bool], str | None] = {}
_lock = threading.Lock()


def broken_toolchain(language: str, sandbox: Sandbox) -> str | None:
    """Why no program in this language can pass here, although its toolchain is installed; None if one does.

    Asked once in a process for each language. A machine that is too busy to finish is not a broken toolchain.
    """
    if language not in _PROGRAMS:
        return None
    with _lock:
        key = (language, sandbox.unsafe)
        if key not in _found:
            head, body, tests = _PROGRAMS[language]
            signature = bridges.signature(language, head)
            outcome = run_program(language, signature, [head + body], tests, sandbox, _LIMITS)
            works = outcome.passed or outcome.status == TIMEOUT
            _found[key] = None if works else _reason(language, outcome.message)
        return _found[key]


def _reason(language: str, message: str) -> str:
    versions = ", ".join(LANGUAGES[language].versions().values())
    return (
        f"{LANGUAGES[language].title} ({versions}) fails on a program that is right ({message}); repair its "
        "installation, or install another version"
    )
