"""Programs in other languages than Python: compiling, running, and what counts as a pass.

JavaScript, TypeScript and PHP run in two processes, as Python does (`isolated_tests.py`). C++, Rust, Go, Java and C#
are compiled as two units (`bridges.py`); a pass is exit code 0 and the secret that the unit with the tests prints at
its end. The program's own unit is compiled in a sandbox where neither tests nor secret exist.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ebft.sandbox import bridges
from ebft.sandbox.bridges import Signature
from ebft.sandbox.command import Finished, Limits
from ebft.sandbox.isolated_tests import (
    ERROR,
    FAILED,
    PASSED,
    IsolatedProcess,
    Outcome,
    limit_exceeded,
    one_line,
    run_isolated_tests,
)
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import JAVATUPLES, locate, php_extensions, typescript
from ebft.sandbox.monitor import Ending
from ebft.sandbox.seccomp import NATIVE, TOOLCHAIN

COMPILING = Limits(
    seconds=60.0,
    memory_mib=3072,
    processes=128,
    disk_mib=512,
    output_kib=96 * 1024,
    open_files=256,
    reserves_addresses=True,
)


class CompileFailure(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


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
        for code in codes:
            try:
                return _COMPILED[language](sign, code, tests, sandbox, limits)
            except CompileFailure as failure:
                first = first or failure.outcome
        return first or Outcome(ERROR, "there is nothing to compile")
    except bridges.NoSignature as error:
        return Outcome(ERROR, str(error))


def _compile(sandbox: Sandbox, script: str, files: dict[str, str | bytes], *programs: str) -> bytes:
    """What a shell script in a box with these files writes to its standard output."""
    folders: tuple[str, ...] = ()
    places: list[str] = []
    for program in programs:
        found, needed = locate(program)
        folders += needed
        places += [str(Path(found).parent)] if needed else []
    contents = {
        name: content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        for name, content in files.items()
    }
    path = ":".join([*places, "/usr/local/bin", "/usr/bin", "/bin"])
    finished = sandbox.run(["sh", "-ec", script], contents, COMPILING, folders, {"PATH": path}, calls=TOOLCHAIN)
    if finished.ending == Ending.TIMEOUT:
        raise CompileFailure(Outcome(FAILED, f"compiling was not finished after {COMPILING.seconds:g} s"))
    if finished.ending != Ending.EXITED:
        raise CompileFailure(Outcome(FAILED, f"compiling used too much {finished.ending}"))
    if finished.returncode != 0:
        said = finished.stderr[: 64 * 1024].decode("utf-8", "replace")
        raise CompileFailure(Outcome(FAILED, one_line(f"does not compile: {_first_error(said)}")))
    return finished.stdout


def _first_error(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if not line.startswith("#")]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")


def _outcome(secret: str, finished: Finished, limits: Limits) -> Outcome:
    if (exceeded := limit_exceeded(finished.ending, limits)) is not None:
        return exceeded
    if finished.ending == Ending.OUTPUT:
        return Outcome(FAILED, f"wrote more than {limits.output_kib} KiB")
    if finished.returncode != 0:
        said = (finished.stderr or finished.stdout)[: 64 * 1024].decode("utf-8", "replace").strip().splitlines()
        return Outcome(FAILED, one_line(f"exit code {finished.returncode}: {said[0] if said else 'a test failed'}"))
    if secret.encode("ascii") not in finished.stdout:
        return Outcome(FAILED, "the program ended before the tests did")
    return Outcome(PASSED)


CPP = "g++ -std=c++17 -w"


def _cpp(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    script = f"{CPP} -Dmain=ebft_unused_main -c program.cpp -o program.o >&2; cat program.o"
    unit = _compile(sandbox, script, {"program.cpp": bridges.cpp_program(sign, code)}, "g++")
    secret, compiled_tests = _cpp_tests(sign, tests, sandbox)
    files: dict[str, str | bytes] = {"tests.o": compiled_tests, "program.o": unit}
    # The tests come first: of a template that both have instantiated, the linker takes theirs.
    binary = _compile(sandbox, f"{CPP} tests.o program.o -o program >&2; cat program", files, "g++")
    return _run_binary(binary, secret, sandbox, limits)


_cpp_units: OrderedDict[tuple[Signature, str], tuple[str, bytes]] = OrderedDict()
_cpp_lock = threading.Lock()


def _cpp_tests(sign: Signature, tests: str, sandbox: Sandbox) -> tuple[str, bytes]:
    """The unit with the tests, and its secret. Half of all time went into it, so it is kept for the next samples."""
    with _cpp_lock:
        if (sign, tests) in _cpp_units:
            _cpp_units.move_to_end((sign, tests))
            return _cpp_units[sign, tests]
    secret = secrets.token_hex(16)
    script = f"{CPP} -c tests.cpp -o tests.o >&2; cat tests.o"
    unit = _compile(sandbox, script, {"tests.cpp": bridges.cpp_tests(sign, tests, secret)}, "g++")
    with _cpp_lock:
        _cpp_units[sign, tests] = (secret, unit)
        while len(_cpp_units) > 64:
            _cpp_units.popitem(last=False)
    return secret, unit


def _rs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    options = "--edition 2021 -A warnings -C debuginfo=0"
    script = f"rustc {options} --crate-type rlib --crate-name candidate program.rs >&2; cat libcandidate.rlib"
    unit = _compile(sandbox, script, {"program.rs": bridges.rs_program(sign, code)}, "rustc")
    script = f"rustc {options} --extern candidate=libcandidate.rlib tests.rs -o program >&2; cat program"
    files: dict[str, str | bytes] = {"tests.rs": bridges.rs_tests(sign, tests, secret), "libcandidate.rlib": unit}
    return _run_binary(_compile(sandbox, script, files, "rustc"), secret, sandbox, limits)


def _go(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    script = (
        "mkdir -p src/candidate; cp program.go src/candidate/; cp tests.go src/; printf 'module box\\n' > src/go.mod; "
        "cd src; GOCACHE=/box/cache GOPATH=/box/go GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0 "
        "GO111MODULE=on go build -ldflags '-s -w' -o ../program . >&2; cat ../program"
    )
    files: dict[str, str | bytes] = {
        "program.go": bridges.go_program(sign, code),
        "tests.go": bridges.go_tests(sign, tests, secret),
    }
    binary = _compile(sandbox, script, files, "go")
    return _run_binary(binary, secret, sandbox, replace(limits, processes=64, reserves_addresses=True))


def _run_binary(binary: bytes, secret: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    limits = replace(limits, disk_mib=limits.disk_mib + len(binary) // 2**20 + 1)
    finished = sandbox.run(["/box/program"], {"program": binary}, limits, executable=True, calls=NATIVE)
    return _outcome(secret, finished, limits)


def _java(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    files: dict[str, str | bytes] = {"Problem.java": code, "EbftTests.java": bridges.java_tests(sign, tests, secret)}
    script = (
        f"mkdir out; javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -J-Xmx1g -proc:none -nowarn -encoding UTF-8 "
        f"-cp {JAVATUPLES} -d out Problem.java EbftTests.java >&2; tar -cf - -C out ."
    )
    classes = _compile(sandbox, script, files, "javac")
    heap = max(32, limits.memory_mib // 2)
    command = (
        "mkdir out; tar -xf classes.tar -C out; exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Xmx{heap}m -XX:-UsePerfData -cp out:{JAVATUPLES} EbftTests"
    )
    limits = replace(limits, processes=64, reserves_addresses=True)
    finished = sandbox.run(["sh", "-ec", command], {"classes.tar": classes}, limits, locate("java")[1])
    return _outcome(secret, finished, limits)


def _cs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    files: dict[str, str | bytes] = {
        "Problem.cs": code,
        "Visible.cs": '[assembly: System.Runtime.CompilerServices.InternalsVisibleTo("tests")]\n',
        "Tests.cs": bridges.cs_tests(sign, tests, secret),
    }
    libraries = "-nowarn:0162,0168,0219,0414 -r:System.Numerics.dll -r:System.Core.dll"
    script = (
        f"mkdir out; mcs {libraries} -target:library -out:out/candidate.dll Problem.cs Visible.cs >&2; "
        f"mcs {libraries} -out:out/tests.exe -r:ebft=out/candidate.dll Tests.cs >&2; tar -cf - -C out ."
    )
    classes = _compile(sandbox, script, files, "mcs")
    command = "mkdir out; tar -xf classes.tar -C out; exec mono --debug=casts out/tests.exe"
    limits = replace(limits, processes=64, reserves_addresses=True)
    environment = {"MONO_GC_PARAMS": f"max-heap-size={max(32, limits.memory_mib // 2)}m"}
    finished = sandbox.run(["sh", "-ec", command], {"classes.tar": classes}, limits, locate("mono")[1], environment)
    return _outcome(secret, finished, limits)


def _js(sign: Signature, codes: Sequence[str], tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    node, folders = locate("node")
    # Node reserves address space by the gigabyte; its heap has a limit of its own.
    start = (node, f"--max-old-space-size={max(32, limits.memory_mib // 2)}", "--stack-size=3900")
    limits = replace(limits, processes=64, reserves_addresses=True)
    return run_isolated_tests(
        sandbox,
        IsolatedProcess((*start, f"{sandbox.scripts}/driver.js"), {"tests": tests, "name": sign.name}, folders),
        IsolatedProcess((*start, f"{sandbox.scripts}/candidate.js"), {"sources": codes, "name": sign.name}, folders),
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
        emitted = _compile(sandbox, script, files, "tsc", "node")
    else:
        script = (
            'node -e \'process.stdout.write(require("module").stripTypeScriptTypes('
            'require("fs").readFileSync("program.ts", "utf8"), {mode: "transform"}))\''
        )
        emitted = _compile(sandbox, script, {"program.ts": code}, "node")
    return _js(sign, [emitted.decode("utf-8", "replace")], tests_js, sandbox, limits)


def _php(sign: Signature, codes: Sequence[str], tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    php, folders = locate("php")
    start = (php, "-n", "-d", f"memory_limit={max(32, limits.memory_mib // 2)}M", "-d", "display_errors=0")
    # No php.ini (-n): what it loads and allows is the machine's. Debian has even ctype in a file of its own.
    loads = tuple(part for name in php_extensions() for part in ("-d", f"extension={name}"))
    return run_isolated_tests(
        sandbox,
        IsolatedProcess((*start, f"{sandbox.scripts}/driver.php"), {"tests": tests, "name": sign.name}, folders),
        IsolatedProcess(
            (*start, *loads, f"{sandbox.scripts}/candidate.php"), {"sources": codes, "name": sign.name}, folders
        ),
        limits,
    )


_COMPILED: dict[str, Callable[[Signature, str, str, Sandbox, Limits], Outcome]] = {
    "cpp": _cpp,
    "rs": _rs,
    "go": _go,
    "java": _java,
    "cs": _cs,
    "ts": _ts,
}
_PARSED_INSIDE: dict[str, Callable[[Signature, Sequence[str], str, Sandbox, Limits], Outcome]] = {
    "js": _js,
    "php": _php,
}
