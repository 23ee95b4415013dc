"""MultiPL-E: HumanEval and MBPP in other languages, with the dataset's own fields and its way to end a completion.

A completion continues the prompt and is cut at the dataset's stop tokens; the tests supply the bracket that the stop
token took away. Only what does not compile so, an answer in fences or one that repeats the function, is taken as a
whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from ebft.sandbox.self_tests import broken_toolchain

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
MOST = 8  # interpretations of an answer; each may be compiled, which takes seconds
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

    def stop_strings(self, style: str = "raw") -> tuple[str, ...]:
        return self.stop_tokens if style == "raw" else ()

    def run(self, interpretations: Sequence[str], sandbox: Sandbox, limits: Limits) -> Outcome:
        sign = bridges.signature(self.language, self.head)
        return language_runners.run_program(self.language, sign, interpretations, self.tests, sandbox, limits)

    def unavailable(self, sandbox: Sandbox | None = None) -> str | None:
        missing = LANGUAGES[self.language].missing()
        return missing if missing is not None or sandbox is None else broken_toolchain(self.language, sandbox)

    def interpretations(self, answer: str) -> Sequence[str]:
        """Each as the program's unit, best first; the first that compiles is run."""
        sign = bridges.signature(self.language, self.head)
        answer = answer.replace("\r\n", "\n")
        found: list[str] = []
        blocks = fenced_blocks(answer)[:MOST]
        for block in [block for block in blocks if _defines(self.language, sign, block)]:
            # Compiling takes seconds: what has as many closing as opening brackets is a whole program more often.
            whole = _wholes(self.language, sign, block)
            in_line = self._continued(block)
            found += [*whole, *in_line] if block.count("{") == block.count("}") else [*in_line, *whole]
        if not blocks and answer.strip().startswith(self.head.strip()):
            found += self._continued(answer.strip()[len(self.head.strip()) :])
        for text in blocks or [answer]:
            found += self._continued(text)
        if not blocks and _defines(self.language, sign, answer):
            found += _wholes(self.language, sign, answer)
        return list(dict.fromkeys(found))[:MOST]

    def _continued(self, answer: str) -> list[str]:
        """Prompt and completion: up to the first stop token, and, should it close its own brackets, as it is."""
        head = self.head if self.head.endswith("\n") or answer.startswith("\n") else self.head + "\n"
        ending = {"cpp": "\n}\n", "rs": "\n}\n", "java": "\n    }\n}\n", "cs": "\n    }\n}\n"}.get(self.language, "\n")
        found = [head + self._cut(answer) + ending]
        if self.language in CLOSED_BY_TESTS:
            uncut = head + answer.rstrip() + "\n"
            still_open = uncut.count("{") - uncut.count("}")
            if still_open in ((0, 1) if self.language in ("java", "cs") else (0,)):
                found.append(uncut + "}\n" * still_open)
        return found

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
    """Whether the code may have the head of the function, not just a call of it. What compiles decides."""
    name = re.escape(sign.name)
    if language in ("js", "ts"):
        return bool(re.search(rf"\bfunction\s+{name}\s*[(<]|\b(?:const|let|var)\s+{name}\s*[=:]", code))
    if language == "php":
        return bool(re.search(rf"\bfunction\s+{name}\s*\(", code))
    if language in ("rs", "go"):
        return bool(re.search(rf"\b{'fn' if language == 'rs' else 'func'}\s+{name}\s*[(<]", code))
    return _definition(language, sign.name, code) is not None


# A definition's head is looked for this far before and after the name: a bound, so that all of it stays linear.
_BEFORE, _AFTER = 400, 4000


def _definition(language: str, name: str, code: str) -> int | None:
    """Where C++, Java or C# code seems to define a function: something like a type before its name, a body after it.

    The return type may stand on a line of its own.
    """
    for found in re.finditer(rf"\b{re.escape(name)}\s*\(", code):
        end = re.compile(r"[;{}]").search(code, found.end(), found.end() + _AFTER)
        if end is None or end[0] != "{" or ")" not in code[found.end() : end.start()]:
            continue
        before = re.split(r"[;{}()=]", code[max(0, found.start() - _BEFORE) : found.start()])[-1]
        if language == "cpp":
            words = before.split()
            typed = bool(words) and before[-1:] in (" ", "\t", "\n", "&", "*", ">")
            if typed and words[0] not in ("return", "else") and (words[0][0].isalpha() or words[0][0] in "_#/"):
                return found.start()
        elif re.search(r"\bstatic\s", before):
            return found.start()
    return None


def _wholes(language: str, sign: Signature, code: str) -> list[str]:
    """Units from an answer that has the whole function, perhaps without the imports and types of the prompt."""
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
        return [f"{includes if repeats else before}\nusing namespace std;\n{code}\n"]
    if language == "php":
        return [code if code.lstrip().startswith("<?") else f"<?php\n{code}\n"]
    if language in ("js", "ts"):
        return [re.sub(r"^export\s+(?:default\s+)?", "", code, flags=re.MULTILINE) + "\n"]
    if language == "go":
        if re.search(r"^package \w+", code, re.MULTILINE):
            return [code + "\n"]
        return [f"{missing}\n{code}\n" if not re.search(r"^import\b", code, re.MULTILINE) else f"package p\n{code}\n"]
    if language == "rs":
        # It may import the same under another spelling, which Rust refuses.
        return [f"{missing}\n{code}\n", f"{code}\n"]
    return [_unit_with_class(language, sign, code, kept)]


def _unit_with_class(language: str, sign: Signature, code: str, before: list[str]) -> str:
    """Java and C#: the function in a class `Problem`, whatever the answer calls its class, if it has one."""
    if language == "cs":
        code = _without_namespaces(code)
    code = re.sub(r"\bpublic\s+((?:static\s+|final\s+|sealed\s+|abstract\s+)*class)\b", r"\1", code)
    is_import = re.compile(r"(import|using)\s+[\w.]+(?:\.\*)?(?:\s*;|\s*=[^;]*;)|(import|using)\s+static\s[^;]*;")
    own = [line.strip() for line in code.split("\n") if is_import.match(line.strip())]
    rest = "\n".join(line for line in code.split("\n") if not is_import.match(line.strip()))
    rest = re.sub(r"^[ \t]*package\s[\w.]+;", "", rest, flags=re.MULTILINE)
    imports = [line for line in before if line.startswith(("import ", "using ")) and line.strip() not in own]
    name = _enclosing_class(language, rest, sign.name)
    if name is None:
        # Inside another class, those of Java are tied to its objects unless they are static.
        classes = r"^([ \t]*)((?:abstract\s+|final\s+)*class\s)"
        rest = re.sub(classes, r"\1static \2", rest, flags=re.MULTILINE) if language == "java" else rest
        rest = f"class Problem {{\n{rest}\n}}"
    elif name != "Problem":
        rest = re.sub(rf"\b{name}\b", "Problem", rest)
    return "\n".join([*imports, *own, rest]) + "\n"


def _enclosing_class(language: str, code: str, function: str) -> str | None:
    """The outermost class around the definition of a static function."""
    place = _definition(language, function, code)
    if place is None:
        return None
    closing = _closing(code)
    for found in re.finditer(r"\b(?:class|struct)\s+(\w+)", code[:place]):
        if closing.get(code.find("{", found.end(), found.end() + _AFTER), 0) > place:
            return found[1]
    return None


def _closing(code: str) -> dict[int, int]:
    """Where each bracket is closed, by where it is opened; the end of the code, if it is not."""
    closed: dict[int, int] = {}
    still_open: list[int] = []
    for place, character in enumerate(code):
        if character == "{":
            still_open.append(place)
        elif character == "}" and still_open:
            closed[still_open.pop()] = place
    return closed | dict.fromkeys(still_open, len(code))


def _without_namespaces(code: str) -> str:
    """What is in them, without the words and brackets around it."""
    code = re.sub(r"^[ \t]*namespace\s+[\w.]+\s*;", "", code, flags=re.MULTILINE)
    closing = _closing(code)
    left_out: list[tuple[int, int]] = []
    for found in re.finditer(r"\bnamespace\s+[\w.]+\s*\{", code):
        end = closing[found.end() - 1]
        left_out += [(found.start(), found.end()), (end, end + 1)]
    kept, at = [], 0
    for start, end in sorted(left_out):
        kept.append(code[at:start])
        at = end
    return "".join([*kept, code[at:]])
