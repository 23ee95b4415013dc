"""From what a model wrote to source code: fenced code, prose around it, a repeated prompt, a body only.

For Python there are several interpretations, best first, and the first that compiles and defines the function is used:
inside the sandbox, since compiling a hostile text can crash an interpreter. The first one is prompt and completion as
they are, as in other harnesses, but of an answer that defines the function anew, the definition.
"""

from __future__ import annotations

import re
import textwrap

LONGEST = 200_000  # characters of an answer; more is no attempt at a function
_CODE_STARTS = r"(?:async )?def |class |import |from |@"
# A line that only code has: a statement of Python; in the other languages, the end of one or of a block.
_PYTHON_STATEMENT = re.compile(
    r"^[ \t]*(?:(?:async )?def |class \w|import \w|from \S{1,80} import |@\w|return\b|yield\b|raise\b|try:|else:"
    r"|print\(|for .{1,80} in .{1,200}:|(?:el)?if .{1,200}:|while .{1,200}:|with .{1,200}:"
    r"|[A-Za-z_][\w.,\[\]'\" ]{0,80}[-+*/|&%]?=[^=])",
    re.MULTILINE,
)
_END_OF_STATEMENT = re.compile(r"[;{}][ \t]*$", re.MULTILINE)


def unwrapped(answer: str) -> str:
    """Without what a chat or an editor puts around a text: a byte order mark, Windows' line ends, `> ` of a quote."""
    answer = re.sub(r"^\ufeff", "", answer.replace("\r\n", "\n"), flags=re.MULTILINE)
    quoted = re.search(r"\A>|^> ?(```|~~~|def |class |import |from )", answer, re.MULTILINE)
    return re.sub(r"^> ?", "", answer, flags=re.MULTILINE) if quoted else answer


def has_code(answer: str, language: str = "python") -> bool:
    """Whether any line looks like code. A wrong program has code; a refusal, a question or a description has none."""
    return bool((_PYTHON_STATEMENT if language == "python" else _END_OF_STATEMENT).search(unwrapped(answer[:LONGEST])))


def fenced_blocks(text: str) -> list[str]:
    """The contents of ``` blocks, in order. A block that is never closed ends with the text.

    If there is a single fence, the code may also be before it: a model that continues an open block closes it.
    """
    parts: list[list[str]] = [[]]  # outside of a block, inside, outside, ...
    for line in text.split("\n"):
        mark = line.strip()
        if mark.startswith(("```", "~~~")) and "`" not in mark.lstrip("`"):
            parts.append([])
        else:
            parts[-1].append(line)
    blocks = ["\n".join(lines) for lines in parts[1::2] + parts[: len(parts) == 2]]
    # In a list or a quote, a whole block is indented.
    blocks = [textwrap.dedent(block) if re.match(rf"\s*[ \t](?:{_CODE_STARTS})", block) else block for block in blocks]
    return [block for block in blocks if block.strip()]


def python_variants(prompt: str, answer: str, name: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Interpretations of an answer to `prompt` (a function's head; empty where the answer is the whole program)."""
    answer = unwrapped(answer)
    if "[BEGIN]" in answer or "[DONE]" in answer:  # the marks of MBPP's own prompts
        answer = answer.split("[BEGIN]")[-1].split("[DONE]")[0]
    # The head as a function of its own, for its imports and helpers when the answer repeats only the function.
    head = f"{prompt.rstrip()}\n    pass\n" if prompt.strip() else ""
    start = prompt if prompt.endswith("\n") else f"{prompt}\n"
    of_that_name = re.escape(name) if name else r"\w+"

    def is_new(code: str) -> bool:
        """Whether it is no body of the prompt's function, but defines that function itself."""
        begins = code.lstrip("\n")[:1] not in (" ", "\t")
        return begins and bool(name and re.search(rf"^(?:async )?def {of_that_name}\b", code, re.MULTILINE))

    variants: list[tuple[str, ...]] = [] if head and is_new(answer) else [(prompt + answer,)]
    blocks = sorted(fenced_blocks(answer), key=lambda block: re.search(rf"\bdef\s+{of_that_name}\b", block) is None)
    for code in [*blocks[:8], answer]:
        variants += [(head, code), (code,)] if head else [(code,)]
        if head and not is_new(code):
            variants.append((start + code,))
            variants.append((f"{start}    {code.lstrip()}",))  # the first line has lost its indentation
            variants.append((start + textwrap.indent(textwrap.dedent(code), "    "),))
    if after_prose := re.search(rf"^(?:{_CODE_STARTS})", answer, re.MULTILINE):
        code = answer[after_prose.start() :]
        variants += [(head, code), (code,)] if head else [(code,)]
    return tuple(dict.fromkeys(variants))
