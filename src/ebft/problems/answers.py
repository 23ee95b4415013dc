"""From what a model wrote to source code: fenced code, prose around it, a repeated prompt, a body only.

For Python there are several interpretations, best first, and the first that compiles and defines the function is used.
They are compiled inside the sandbox, never here: compiling a hostile text can crash an interpreter. The first one is
prompt and completion as they are, so a completion that works in other harnesses means the same here; but of an answer
that defines the function anew, the definition.
"""

from __future__ import annotations

import re
import textwrap

LONGEST = 200_000  # characters of an answer; more is no attempt at a function

# Where a completion of a function has left it, for those whose generation did not stop there.
FUNCTION_STOPS = ("\nclass ", "\ndef ", "\n#", "\n@", "\nif ", "\nprint(", "\nassert ", "\n```", '\n"""')
FENCE = "```|~~~"
_CODE_STARTS = ("def ", "class ", "import ", "from ", "@", "async def ")
_CODE_LINE = re.compile(
    r"(def |class |import |from |@|async |#|if |for |while |try:|with |[)\]}]|[A-Za-z_][\w.]*\s*[=\[(+])"
)


def unwrapped(answer: str) -> str:
    """Without what a chat or an editor puts around a text: a byte order mark, Windows' line ends, `> ` of a quote."""
    answer = re.sub(r"^\ufeff", "", answer.replace("\r\n", "\n"), flags=re.MULTILINE)
    quoted = re.search(rf"\A>|^> ?({FENCE}|def |class |import |from )", answer, re.MULTILINE)
    return re.sub(r"^> ?", "", answer, flags=re.MULTILINE) if quoted else answer


# A line that only code has: a statement of Python; in the other languages, the end of one or of a block.
_PYTHON_STATEMENT = re.compile(
    r"^[ \t]*(?:(?:async )?def |class \w|import \w|from \S{1,80} import |@\w|return\b|yield\b|raise\b|try:|else:"
    r"|print\(|for .{1,80} in .{1,200}:|(?:el)?if .{1,200}:|while .{1,200}:|with .{1,200}:"
    r"|[A-Za-z_][\w.,\[\]'\" ]{0,80}[-+*/|&%]?=[^=])",
    re.MULTILINE,
)
_END_OF_STATEMENT = re.compile(r"[;{}][ \t]*$", re.MULTILINE)


def has_code(answer: str, language: str = "python") -> bool:
    """Whether any line looks like code. A wrong program has code; a refusal, a question or a description has none."""
    return bool((_PYTHON_STATEMENT if language == "python" else _END_OF_STATEMENT).search(unwrapped(answer[:LONGEST])))


def fenced_blocks(text: str) -> list[str]:
    """The contents of ``` blocks, in order. A block that is never closed ends with the text.

    If there is a single fence, the code may also be before it: a model that continues an open block closes it.
    """
    blocks: list[str] = []
    current: list[str] | None = None
    before: list[str] = []
    fences = 0
    for line in text.split("\n"):
        mark = line.strip()
        if mark.startswith(("```", "~~~")) and "`" not in mark.lstrip("`"):
            fences += 1
            if current is None:
                current = []
            else:
                blocks.append(textwrap.dedent("\n".join(current)) if _indented(current) else "\n".join(current))
                current = None
        elif current is not None:
            current.append(line)
        elif not fences:
            before.append(line)
    if current is not None:
        blocks.append("\n".join(current))
        if fences == 1 and any(line.strip() for line in before):
            blocks.append("\n".join(before))
    return [block for block in blocks if block.strip()]


def _indented(lines: list[str]) -> bool:
    """Whether the whole block is inside a list or quote: its definitions are indented too."""
    first = next((line for line in lines if line.strip()), "")
    return first != first.lstrip() and first.lstrip().startswith(_CODE_STARTS)


def python_variants(prompt: str, answer: str, name: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Interpretations of an answer to `prompt` (a function's head; empty where the answer is the whole program)."""
    answer = unwrapped(answer)
    if "[BEGIN]" in answer or "[DONE]" in answer:  # the marks of MBPP's own prompts
        answer = answer.split("[BEGIN]")[-1].split("[DONE]")[0]
    # The head as a function of its own, for its imports and helpers when the answer repeats only the function.
    head = f"{prompt.rstrip()}\n    pass\n" if prompt.strip() else ""
    variants: list[tuple[str, ...]] = []

    def is_new(code: str) -> bool:
        """Whether it is no body of the prompt's function, but defines that function itself."""
        begins = code.lstrip("\n")[:1] not in (" ", "\t")
        return begins and bool(name and re.search(rf"^(?:async )?def {re.escape(name)}\b", code, re.MULTILINE))

    if not (head and is_new(answer)):
        variants.append((prompt + answer,))

    def whole(code: str) -> None:
        if head:
            variants.append((head, code))
        variants.append((code,))

    def body(code: str) -> None:
        if not head or is_new(code):
            return
        start = prompt if prompt.endswith("\n") else prompt + "\n"
        variants.append((start + code,))
        variants.append((f"{start}    {code.lstrip()}",))  # the first line has lost its indentation
        variants.append((start + textwrap.indent(textwrap.dedent(code), "    "),))

    blocks = fenced_blocks(answer)
    blocks.sort(key=lambda block: 0 if name is None or re.search(rf"\bdef\s+{re.escape(name)}\b", block) else 1)
    for block in blocks[:8]:
        whole(block)
        body(block)
    whole(answer)
    cut = min((place for stop in FUNCTION_STOPS if (place := answer.find(stop, 1)) > 0), default=len(answer))
    if not is_new(answer):
        body(answer)
        body(answer[:cut])
        body(_indented_part(answer))
    if (code := _without_prose(answer)) is not None:
        whole(code)
    return tuple(dict.fromkeys(variants))


def _indented_part(text: str) -> str:
    """Up to the first line after the first that is not indented."""
    first, *rest = text.split("\n")
    end = next((n for n, line in enumerate(rest) if line.strip() and not line[0].isspace()), len(rest))
    return "\n".join([first, *rest[:end]]) + "\n"


def _without_prose(text: str) -> str | None:
    """From the first line that begins a definition to the last line of code after it."""
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith(_CODE_STARTS)), None)
    if start is None:
        return None
    kept: list[str] = []
    for line in lines[start:]:
        if line.strip() and not line[0].isspace() and not _CODE_LINE.match(line):
            break
        kept.append(line)
    return "\n".join(kept) + "\n"
