"""MultiPL-E: HumanEval and MBPP in other languages, with the dataset's own fields and its way to end a completion.

A completion continues the prompt and is cut at the dataset's stop tokens; the tests supply the bracket that the stop
token took away. What a chat model puts into a fence is mostly a whole program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ebft.errors import DataError
from ebft.problems.answers import fenced_blocks, unwrapped
from ebft.problems.problem import Problem, Question, Record
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.other_languages import LANGUAGES, run_program
from ebft.sandbox.python_tests import Outcome

ALIASES = {"c++": "cpp", "javascript": "js", "typescript": "ts", "rust": "rs", "c#": "cs", "csharp": "cs"}
ALIASES |= {"golang": "go", "go_test.go": "go"}  # the last is what the dataset calls it
REQUEST = "Complete the following {title} function. Answer with the whole function and what it needs, without tests "
REQUEST += "and without a main program, in one {fence} code block.\n\n{fence}\n{head}\n```"
MOST = 3  # interpretations of an answer; each may be compiled, which takes seconds
# What the tests close, of a completion that was cut at a stop token.
CLOSING = {"cpp": "\n}\n", "rs": "\n}\n", "java": "\n    }\n}\n", "cs": "\n    }\n}\n"}
Program = tuple[str, str]  # a text that defines the function, and the class that this is in


def language_code(name: str) -> str:
    """`cpp` for "C++" and for "cpp"."""
    name = ALIASES.get(name.lower(), name.lower())
    if name not in LANGUAGES:
        raise DataError(f"unknown language {name!r}; there is {', '.join(LANGUAGES)}")
    return name


@dataclass(frozen=True)
class MultiPLEProblem(Problem):
    tests: str
    function: str

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        return run_program(self.language, self.function, self.interpretations(answer), self.tests, sandbox, limits)

    def unavailable(self) -> str | None:
        return LANGUAGES[self.language].missing()

    def interpretations(self, answer: str) -> list[Program]:
        """Best first; the first that compiles is run."""
        answer = unwrapped(answer)
        blocks = sorted(fenced_blocks(answer), key=lambda block: (self.function not in block, "}" not in block))
        found: list[Program] = []
        for text in blocks[:1]:
            whole, continued = [self._whole(text)], self._continued(text)
            # What has as many closing as opening brackets is a whole program more often.
            found = whole + continued if text.count("{") == text.count("}") else continued + whole
        return list(dict.fromkeys([*found, *self._continued(answer), self._whole(answer)]))[:MOST]

    def _before(self, *starts: str) -> list[str]:
        """The prompt's lines before the function that start so, without comments."""
        lines = self.raw.prompt.rstrip().split("\n")[:-1]
        return [line for line in lines if line.startswith(starts or "") and not line.lstrip().startswith("//")]

    def _continued(self, answer: str) -> list[Program]:
        """Prompt and completion: up to the first stop token, and, should it close its own brackets, as it is."""
        if answer.strip().startswith(self.raw.prompt.strip()):
            answer = answer.strip()[len(self.raw.prompt.strip()) :]
        head = self.raw.prompt if self.raw.prompt.endswith("\n") or answer.startswith("\n") else self.raw.prompt + "\n"
        # One that does not start a line, such as Go's `struct`, is for generation only: it would cut whole programs.
        stops = [stop for stop in self.raw.stop if stop.startswith("\n")]
        if self.language in CLOSING and not stops:
            stops = ["\n}"]
        padded = answer if answer.endswith("\n") else answer + "\n"  # the last bracket may have lost its line break
        end = min((at for stop in stops if (at := padded.find(stop)) >= 0), default=len(padded))
        found = [head + padded[:end] + CLOSING.get(self.language, "\n")]
        uncut = head + answer.rstrip() + "\n"
        still_open = uncut.count("{") - uncut.count("}")
        if self.language in CLOSING and still_open in ((0, 1) if self.language in ("java", "cs") else (0,)):
            found.append(uncut + "}\n" * still_open)
        return [(_go(text) if self.language == "go" else text, "Problem") for text in found]

    def _whole(self, code: str) -> Program:
        """A program from an answer that has the whole function, perhaps without the prompt's imports and types."""
        code = re.sub(r"\A\s*#!(?!\[).*", "", code)
        if self.language == "cpp":
            # The types of the prompt come in blocks; either the answer has them or it does not.
            before = "\n".join(self._before())
            types = re.findall(r"^(?:union|struct|class) (\w+)", before, re.MULTILINE)
            if any(re.search(rf"\b(?:union|struct|class) {name}\s*\{{", code) for name in types):
                before = "\n".join(self._before("#include", "using "))
            # Models write for programs that are in the namespace std.
            code = f"{before}\nusing namespace std;\n{code}\n"
        elif self.language == "rs":
            # It may import the same once more: Rust allows that of names that come in with a star.
            uses = "\n".join(f"pub {line}" for line in self._before("use "))
            code = f"{code}\nmod ebft_prelude {{\n{uses}\n}}\nuse ebft_prelude::*;\n"
        elif self.language == "go":
            if not re.search(r"^(package|import)\b", code, re.MULTILINE):
                code = "\n".join([*self._before(), code])
            code = _go(code if re.search(r"^package \w", code, re.MULTILINE) else f"package p\n{code}\n")
        elif self.language in ("java", "cs"):
            return self._with_class(code)
        return code, ""

    def _with_class(self, code: str) -> Program:
        """Java and C#: the function in a class, whatever the answer calls it; in `Problem` if it has none."""
        code = re.sub(r"^[ \t]*(package|namespace)\s+[\w.]+\s*;", "", code, flags=re.MULTILINE)
        if self.language == "java":  # a file has one public class at most, of its own name
            kinds = r"((static|final|sealed|abstract)\s+)*(class|record|enum|interface)\b"
            code = re.sub(rf"\bpublic\s+(?={kinds})", "", code)
        imports = self._before("import ", "using ")
        defined = re.compile(rf"\bstatic\s[^;{{}}()=]{{0,400}}\b{re.escape(self.function)}\s*\(").search(code)
        if place := _scopes(code[: defined.start()]) if defined else "":
            return "\n".join([*imports, code]), place
        is_import = re.compile(r"\s*(import|using)\s+(static\s[^;]*|[\w.]+(\.\*)?(\s*=[^;]*)?)\s*;")
        own = [line for line in code.split("\n") if is_import.match(line)]
        rest = "\n".join(line for line in code.split("\n") if not is_import.match(line))
        if self.language == "java":  # inside another class, one that is not static is tied to its objects
            rest = re.sub(r"^([ \t]*)((?:abstract\s+|final\s+)*class\s)", r"\1static \2", rest, flags=re.MULTILINE)
        return "\n".join([*imports, *own, "class Problem {", rest, "}"]), "Problem"


def multipl_e_problem(record: Record) -> MultiPLEProblem:
    name = record.text("name" if "name" in record.row or "task_id" not in record.row else "task_id")
    head, line = record.text("prompt"), record.text("prompt").rstrip().rpartition("\n")[2]
    function = re.search(r"(\w+)\s*\(", line)
    if function is None or not line.endswith("{"):
        raise DataError(f"{record.where}: the prompt does not end with the head of a function: {line.strip()[:100]!r}")
    language = language_code(record.text("language"))
    raw = Question(head, tuple(record.texts("stop_tokens")))
    chat = Question(REQUEST.format(title=LANGUAGES[language].title, fence=f"```{language}", head=head.strip()))
    return MultiPLEProblem(name, language, raw, chat, record.text("tests"), function[1])


def _go(code: str) -> str:
    """A file of the tests' package. What it imports for the tests' sake is used here, or Go would refuse it."""
    code = re.sub(r"^package \w+", "package main", code, count=1, flags=re.MULTILINE)
    code = re.sub(r"^func main\(", "func ebft_main(", code, flags=re.MULTILINE)
    uses = {"testing": "var _ testing.TB", "fmt": "var _ = fmt.Sprint"}
    imported = [name for name in uses if re.search(rf'^\s*(import\s+)?"{name}"', code, re.MULTILINE)]
    return "\n".join([code, *(uses[name] for name in imported), ""])


# Strings and comments, the head of a namespace or a class, other brackets.
_SCOPE = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*(?:[^*]|\*(?!/))*'
    r"|\b(?:namespace|class|struct|record|interface|enum)\s+([\w.]+)[^{};]{0,400}\{|[{}]"
)


def _scopes(code: str) -> str:
    """The namespaces and classes that are still open at the end of a text, such as `Tools.Text.Words`."""
    still_open: list[str] = []
    for found in _SCOPE.finditer(code):
        if found[0] == "}":
            del still_open[-1:]
        elif found[0].endswith("{") and found[0][0] not in "\"'/":
            still_open.append(found[1] or "")
    return ".".join(filter(None, still_open))
