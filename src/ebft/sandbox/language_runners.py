"""Programs in other languages than Python: compiling, running, and what counts as a pass.

All run in two processes, as Python does (`isolated_tests.py`): the scripting languages here, the compiled ones in
`separate_processes.py`, but for signatures whose values cannot cross (`shared_process.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ebft.sandbox import bridges, process_bridges, separate_processes, shared_process
from ebft.sandbox.bridges import Signature
from ebft.sandbox.command import Limits
from ebft.sandbox.compiling import CompileFailure, compile_in_box
from ebft.sandbox.isolated_tests import ERROR, IsolatedProcess, Outcome, run_isolated_tests
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import locate, php_extensions, typescript
from ebft.sandbox.seccomp import NATIVE


def run_program(
    language: str, sign: Signature, codes: Sequence[str], tests: str, sandbox: Sandbox, limits: Limits
) -> Outcome:
    """Whether an answer passes its tests.

    Args:
        codes: interpretations of the answer, best first, each a whole program unit that defines `sign.name`. The first
            that compiles is run.
    """
    try:
        if language in _PARSED_INSIDE:
            return _PARSED_INSIDE[language](sign, codes, tests, sandbox, limits)
        first: Outcome | None = None
        run = _ts if language == "ts" else _compiled(language, sign)
        for code in codes:
            try:
                return run(sign, code, tests, sandbox, limits)
            except CompileFailure as failure:
                first = first or failure.outcome
        return first or Outcome(ERROR, "there is nothing to compile")
    except bridges.NoSignature as error:
        return Outcome(ERROR, str(error))


def _js(sign: Signature, codes: Sequence[str], tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    node, folders = locate("node")
    # Node reserves address space by the gigabyte; its heap has a limit of its own.
    start = (node, f"--max-old-space-size={max(32, limits.memory_mib // 2)}", "--stack-size=3900")
    limits = replace(limits, processes=64, reserves_addresses=True)
    return run_isolated_tests(
        sandbox,
        IsolatedProcess(
            (*start, f"{sandbox.scripts}/driver.js"), {"tests": tests, "name": sign.name}, folders, calls=NATIVE
        ),
        IsolatedProcess(
            (*start, f"{sandbox.scripts}/candidate.js"), {"sources": codes, "name": sign.name}, folders, calls=NATIVE
        ),
        limits,
    )


# What Node's modules have, for programs that use it; the tests declare `require` for themselves.
NODE_TYPES = "declare var require: any;\ndeclare var module: any;\ndeclare var exports: any;\n"


def _ts(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    tests_js = "\n".join(line for line in tests.split("\n") if not line.startswith("declare "))
    if typescript() == "tsc":
        # As in MultiPL-E, the types of program and tests together must be right; what runs is the program alone.
        whole = f"{code}\n{tests}\nexport {{}};\n"
        script = (
            "case $(tsc --version) in *' '[1-5].*) more='';; *) more='--ignoreConfig';; esac; "
            "tsc --target esnext --module commonjs --strict false --skipLibCheck $more --outDir out node.d.ts "
            "program.ts whole.ts >&2; cat out/program.js"
        )
        files: dict[str, str | bytes] = {"program.ts": code, "whole.ts": whole, "node.d.ts": NODE_TYPES}
        emitted = compile_in_box(sandbox, script, files, "tsc", "node")
    else:
        script = (
            'node -e \'process.stdout.write(require("module").stripTypeScriptTypes('
            'require("fs").readFileSync("program.ts", "utf8"), {mode: "transform"}))\''
        )
        emitted = compile_in_box(sandbox, script, {"program.ts": code}, "node")
    return _js(sign, [emitted.decode("utf-8", "replace")], tests_js, sandbox, limits)


def _php(sign: Signature, codes: Sequence[str], tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    php, folders = locate("php")
    start = (php, "-n", "-d", f"memory_limit={max(32, limits.memory_mib // 2)}M", "-d", "display_errors=0")
    # No php.ini (-n): what it loads and allows is the machine's. Debian has even ctype in a file of its own.
    loads = tuple(part for name in php_extensions() for part in ("-d", f"extension={name}"))
    return run_isolated_tests(
        sandbox,
        IsolatedProcess(
            (*start, f"{sandbox.scripts}/driver.php"), {"tests": tests, "name": sign.name}, folders, calls=NATIVE
        ),
        IsolatedProcess(
            (*start, *loads, f"{sandbox.scripts}/candidate.php"),
            {"sources": codes, "name": sign.name},
            folders,
            calls=NATIVE,
        ),
        limits,
    )


def _compiled(language: str, sign: Signature) -> Callable[[Signature, str, str, Sandbox, Limits], Outcome]:
    place = separate_processes if process_bridges.separable(language, sign) else shared_process
    return getattr(place, f"run_{language}")


_PARSED_INSIDE: dict[str, Callable[[Signature, Sequence[str], str, Sandbox, Limits], Outcome]] = {
    "js": _js,
    "php": _php,
}
