"""Compiled languages with tests and program in two processes, as for Python; `process_bridges.py` has the sources.

What does not depend on the answer, the process with the tests above all, is compiled once and kept.
"""

from __future__ import annotations

from dataclasses import replace

from ebft.sandbox import bridges, process_bridges
from ebft.sandbox.bridges import Signature
from ebft.sandbox.command import Limits
from ebft.sandbox.compiling import CPP, compile_in_box, compiled_once
from ebft.sandbox.isolated_tests import IsolatedProcess, Outcome, run_isolated_tests
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import JAVATUPLES, locate
from ebft.sandbox.process_bridges import wire
from ebft.sandbox.seccomp import NATIVE

Files = dict[str, str | bytes]


def run_cpp(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    def with_wire(source: str, script: str) -> bytes:
        return compile_in_box(sandbox, script, {"unit.cpp": source, "wire.hpp": wire("wire.hpp")}, "g++")

    script = f"{CPP} -Dmain=ebft_unused_main -c program.cpp -o program.o >&2; cat program.o"
    unit = compile_in_box(sandbox, script, {"program.cpp": bridges.cpp_program(sign, code)}, "g++")
    server = compiled_once(
        ("cpp", sign),
        lambda: with_wire(process_bridges.cpp_server(sign), f"{CPP} -c unit.cpp -o unit.o >&2; cat unit.o"),
    )
    tester = compiled_once(
        ("cpp", sign, tests),
        lambda: with_wire(process_bridges.cpp_tests(sign, tests), f"{CPP} unit.cpp -o unit >&2; cat unit"),
    )
    files: Files = {"program.o": unit, "server.o": server}
    program = compile_in_box(sandbox, f"{CPP} server.o program.o -o program >&2; cat program", files, "g++")
    return _run_binaries(tester, program, sandbox, limits)


def run_rs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    options = "--edition 2021 -A warnings -C debuginfo=0 -C strip=symbols"
    script = f"rustc {options} --crate-type rlib --crate-name candidate program.rs >&2; cat libcandidate.rlib"
    unit = compile_in_box(sandbox, script, {"program.rs": bridges.rs_program(sign, code)}, "rustc")
    script = f"rustc {options} main.rs -o program >&2; cat program"
    files: Files = {"main.rs": process_bridges.rs_tests(sign, tests), "wire.rs": wire("wire.rs")}
    tester = compiled_once(("rs", sign, tests), lambda: compile_in_box(sandbox, script, files, "rustc"))
    files = {"main.rs": process_bridges.rs_server(sign), "wire.rs": wire("wire.rs"), "libcandidate.rlib": unit}
    linked = f"rustc {options} --extern candidate=libcandidate.rlib main.rs -o program >&2; cat program"
    return _run_binaries(tester, compile_in_box(sandbox, linked, files, "rustc"), sandbox, limits)


GO_BUILD = (
    "GOCACHE=/box/cache GOPATH=/box/go GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0 GO111MODULE=on "
    "go build -ldflags '-s -w' -o ../program . >&2; cat ../program"
)
GO_FOLDERS = (
    "mkdir -p src/wire src/candidate; cp wire.go src/wire/; cp main.go src/; printf 'module box\\n' > src/go.mod; "
)


def run_go(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    files: Files = {
        "main.go": process_bridges.go_server(sign),
        "program.go": bridges.go_program(sign, code),
        "wire.go": wire("wire.go.txt"),
    }
    script = f"{GO_FOLDERS}cp program.go src/candidate/; cd src; {GO_BUILD}"
    program = compile_in_box(sandbox, script, files, "go")
    for_tests: Files = {"main.go": process_bridges.go_tests(sign, tests), "wire.go": files["wire.go"]}
    script = f"{GO_FOLDERS}cd src; {GO_BUILD}"
    tester = compiled_once(("go", sign, tests), lambda: compile_in_box(sandbox, script, for_tests, "go"))
    return _run_binaries(tester, program, sandbox, replace(limits, processes=64, reserves_addresses=True))


def _run_binaries(tests: bytes, program: bytes, sandbox: Sandbox, limits: Limits) -> Outcome:
    """Neither can be read, not even by itself, and neither can fork or become another program."""
    return run_isolated_tests(
        sandbox,
        IsolatedProcess(("/box/tests",), files={"tests": tests}, executable=True, calls=NATIVE),
        IsolatedProcess(("/box/program",), files={"program": program}, executable=True, calls=NATIVE),
        replace(limits, disk_mib=limits.disk_mib + max(len(tests), len(program)) // 2**20 + 1),
    )


def run_java(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    def build(files: Files) -> bytes:
        script = (
            "mkdir out; javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -J-Xmx1g -proc:none -nowarn "
            f"-encoding UTF-8 -cp {JAVATUPLES} -d out *.java >&2; jar -cf classes.jar -C out . >&2; cat classes.jar"
        )
        return compile_in_box(sandbox, script, {**files, "EbftWire.java": wire("EbftWire.java")}, "javac", "jar")

    program = build({"Problem.java": code, "EbftServer.java": process_bridges.java_server(sign)})
    tests_source = process_bridges.java_tests(sign, tests)
    tester = compiled_once(("java", sign, tests), lambda: build({"EbftTests.java": tests_source}))
    java, folders = locate("java")
    heap = max(32, limits.memory_mib // 2)
    start = (java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{heap}m", "-XX:-UsePerfData", "-cp")
    return run_isolated_tests(
        sandbox,
        IsolatedProcess(
            (*start, f"/box/tests.jar:{JAVATUPLES}", "EbftTests"),
            folders=folders,
            files={"tests.jar": tester},
            calls=NATIVE,
        ),
        IsolatedProcess(
            (*start, f"/box/program.jar:{JAVATUPLES}", "EbftServer"),
            folders=folders,
            files={"program.jar": program},
            calls=NATIVE,
        ),
        replace(limits, processes=64, reserves_addresses=True),
    )


def run_cs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    def build(main: str, files: Files) -> bytes:
        libraries = "-nowarn:0162,0168,0219,0414 -r:System.Numerics.dll -r:System.Core.dll"
        script = f"mcs {libraries} -main:{main} -out:unit.exe *.cs >&2; cat unit.exe"
        return compile_in_box(sandbox, script, {**files, "wire.cs": wire("wire.cs")}, "mcs")

    program = build("EbftServer", {"Problem.cs": code, "Server.cs": process_bridges.cs_server(sign)})
    tests_source = process_bridges.cs_tests(sign, tests)
    tester = compiled_once(("cs", sign, tests), lambda: build("EbftTests", {"Tests.cs": tests_source}))
    mono, folders = locate("mono")
    environment = (("MONO_GC_PARAMS", f"max-heap-size={max(32, limits.memory_mib // 2)}m"),)
    return run_isolated_tests(
        sandbox,
        IsolatedProcess((mono, "/box/tests.exe"), {}, folders, environment, {"tests.exe": tester}, calls=NATIVE),
        IsolatedProcess((mono, "/box/program.exe"), {}, folders, environment, {"program.exe": program}, calls=NATIVE),
        replace(limits, processes=64, reserves_addresses=True),
    )
