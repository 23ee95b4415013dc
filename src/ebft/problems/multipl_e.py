"""MultiPL-E: HumanEval and MBPP in other languages, with the dataset's own fields and its way to end a completion.

A completion continues the prompt and is cut at the dataset's stop tokens; the tests supply the bracket that the stop
token took away. An answer in fences, or one that repeats the function, is taken as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ebft.errors import DataError
from ebft.problems.answers import fenced_blocks
from ebft.problems.problem import Problem
from ebft.problems.records import Record
from ebft.sandbox import bridges, language_runners
from ebft.sandbox.bridges import Signature
from ebft.sandbox.command import Limits
from ebft.sandbox.isolated_tests import Outcome
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import LANGUAGES

ALIASES = {
    "c++": "cpp",
    "javascript": "js",
    "typescript": "ts",
    "rust": "rs",
    "c#": "cs",
    "csharp": "cs",
    "golang": "go",
    "go_test.go": "go",  # what the dataset calls it
}
CLOSED_BY_TESTS = ("cpp", "rs", "java", "cs")  # their tests begin with the function's closing bracket


def language_code(name: str) -> str:
    """`cpp` for "C++" and for "cpp"."""
    name = ALIASES.get(name.lower(), name.lower())
    if name not in LANGUAGES:
        raise DataError(f"unknown language {name!r}; there is {', '.join(LANGUAGES)}")
    return name


@dataclass(frozen=True)
class MultiPLEProblem(Problem):
    head: str = ""
    tests: str = ""
    stop_tokens: tuple[str, ...] = ()

    def prompt(self, style: str = "raw") -> str:
        if style == "raw":
            return self.head
        title = LANGUAGES[self.language].title
        return (
            f"Complete the following {title} function. Answer with the whole function and what it needs, without "
            f"tests and without a main program, in one ```{self.language} code block.\n\n"
            f"```{self.language}\n{self.head.strip()}\n```"
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.stop_tokens

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        sign = bridges.signature(self.language, self.head)
        return language_runners.run_program(self.language, sign, self.source(answer), self.tests, sandbox, limits)

    def unavailable(self) -> str | None:
        return LANGUAGES[self.language].missing()

    def source(self, answer: str) -> str:
        """The program's unit."""
        sign = bridges.signature(self.language, self.head)
        answer = answer.replace("\r\n", "\n")
        blocks = fenced_blocks(answer)
        for block in blocks:
            if _defines(self.language, sign, block):
                return _whole(self.language, sign, block)
        if blocks:
            answer = blocks[0]
        elif answer.strip().startswith(self.head.strip()):
            answer = answer.strip()[len(self.head.strip()) :]
        elif _defines(self.language, sign, answer):
            return _whole(self.language, sign, answer)
        head = self.head if self.head.endswith("\n") or answer.startswith("\n") else self.head + "\n"
        ending = {"cpp": "\n}\n", "rs": "\n}\n", "java": "\n    }\n}\n", "cs": "\n    }\n}\n"}.get(self.language, "\n")
        return head + self._cut(answer) + ending

    def _cut(self, answer: str) -> str:
        """Up to the first stop token, as the dataset means it.

        A token that is no start of a line, such as Go's `struct`, is for generation only: a program that is whole is
        not made better by cutting it in the middle of a line.
        """
        stops = [stop for stop in self.stop_tokens if stop.startswith("\n")]
        if self.language in CLOSED_BY_TESTS and not stops:
            stops = ["\n}"]
        # The last bracket may have been stripped of the line break after it.
        padded = answer if answer.endswith("\n") else answer + "\n"
        return padded[: min((at for stop in stops if (at := padded.find(stop)) >= 0), default=len(padded))]


def multipl_e_problem(record: Record) -> MultiPLEProblem:
    name = record.text("name" if "name" in record.row or "task_id" not in record.row else "task_id")
    language = record.text("language")
    if ALIASES.get(language.lower(), language.lower()) not in LANGUAGES:
        raise DataError(f"{record.where}: language={language!r} is not one of {', '.join(LANGUAGES)}")
    head, tests = record.text("prompt"), record.text("tests")
    found = MultiPLEProblem(name, language_code(language), head, tests, tuple(record.texts("stop_tokens")))
    try:
        bridges.signature(found.language, head)
    except bridges.NoSignature as error:
        raise DataError(f"{record.where}: {error}") from None
    return found


def _defines(language: str, sign: Signature, code: str) -> bool:
    """Whether the code has the head of the function, not just a call of it."""
    name = re.escape(sign.name)
    if language in ("js", "ts"):
        return bool(re.search(rf"\bfunction\s+{name}\s*[(<]|\b(?:const|let|var)\s+{name}\s*[=:]", code))
    if language == "php":
        return bool(re.search(rf"\bfunction\s+{name}\s*\(", code))
    if language in ("rs", "go"):
        return bool(re.search(rf"\b{'fn' if language == 'rs' else 'func'}\s+{name}\s*[(<]", code))
    for line in code.split("\n"):
        before, found, _ = line.partition(sign.name + "(")
        if not found:
            before, found, _ = line.partition(sign.name + " (")
        if found and language in ("java", "cs") and re.search(r"\bstatic\b", before):
            return True
        if found and language == "cpp" and re.match(r"[A-Za-z_]", line) and not before.startswith(("return", "else")):
            return bool(before.strip())
    return False


def _whole(language: str, sign: Signature, code: str) -> str:
    """A unit from an answer that has the whole function, perhaps without the imports and types of the prompt."""
    lines = {line.strip() for line in code.split("\n")}
    kept = [line for line in sign.before.split("\n") if not line.lstrip().startswith(("//", "///"))]
    missing = "\n".join(line for line in kept if line.strip() and line.strip() not in lines)
    if language == "cpp":
        # The types of the prompt come in blocks; either the answer has them or it does not.
        before = "\n".join(kept)
        includes = "\n".join(line for line in kept if line.startswith(("#include", "using ")))
        types = re.findall(r"^(?:union|struct|class) (\w+)", before, re.MULTILINE)
        repeats = any(re.search(rf"\b(?:union|struct|class) {name}\s*\{{", code) for name in types)
        # Models write for programs that are in the namespace std.
        return f"{includes if repeats else before}\nusing namespace std;\n{code}\n"
    if language == "php":
        return code if code.lstrip().startswith("<?") else f"<?php\n{code}\n"
    if language in ("js", "ts"):
        return re.sub(r"^export\s+(?:default\s+)?", "", code, flags=re.MULTILINE) + "\n"
    if language == "go":
        if re.search(r"^package \w+", code, re.MULTILINE):
            return code + "\n"
        return f"{missing}\n{code}\n" if not re.search(r"^import\b", code, re.MULTILINE) else f"package p\n{code}\n"
    if language == "rs":
        return f"{missing}\n{code}\n"
    imports = "\n".join(line for line in kept if line.startswith(("import ", "using ")) and line.strip() not in lines)
    code = re.sub(r"\bpublic\s+((?:static\s+|final\s+)*class)\b", r"\1", code)
    if not re.search(r"\bclass\s+Problem\b", code):
        named = re.search(r"^\s*(?:static |final |abstract )*class\s+(\w+)", code, re.MULTILINE)
        if named is not None and code.find(sign.name) > named.start():
            code = re.sub(rf"\b{named[1]}\b", "Problem", code)
        else:
            code = f"class Problem {{\n{code}\n}}"
    return f"{imports}\n{code}\n"
