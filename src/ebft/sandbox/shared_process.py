"""Compiled languages with tests and program in one process, for signatures whose values cannot cross between two.

The two units share nothing but one signature (`bridges.py`); a pass is exit code 0 and the secret that the unit with
the tests prints at its end. The program's own unit is compiled in a sandbox where neither tests nor secret exist.
C++, Rust and Go programs can neither fork nor run another program (or themselves once more).
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from ebft.sandbox import bridges
from ebft.sandbox.bridges import Signature
from ebft.sandbox.command import Finished, Limits
from ebft.sandbox.compiling import CPP, compile_in_box
from ebft.sandbox.isolated_tests import FAILED, PASSED, Outcome, limit_exceeded, one_line
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import JAVATUPLES, locate
from ebft.sandbox.monitor import Ending
from ebft.sandbox.seccomp import NATIVE


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


def run_cpp(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    script = f"{CPP} -Dmain=ebft_unused_main -c program.cpp -o program.o >&2; cat program.o"
    unit = compile_in_box(sandbox, script, {"program.cpp": bridges.cpp_program(sign, code, 'extern "C"')}, "g++")
    secret = secrets.token_hex(16)
    # Of the program's names only the bridge is left: it cannot put its own `memcmp` or `operator==` in the place of
    # those that the tests use.
    script = (
        f"ld -r --force-group-allocation program.o -o whole.o >&2; objcopy --keep-global-symbol={bridges.BRIDGE} "
        f"whole.o >&2; {CPP} -c tests.cpp -o tests.o >&2; {CPP} tests.o whole.o -o program >&2; cat program"
    )
    files: dict[str, str | bytes] = {"tests.cpp": bridges.cpp_tests(sign, tests, secret), "program.o": unit}
    return _run_binary(compile_in_box(sandbox, script, files, "g++"), secret, sandbox, limits)


def run_rs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    options = "--edition 2021 -A warnings -C debuginfo=0"
    script = f"rustc {options} --crate-type rlib --crate-name candidate program.rs >&2; cat libcandidate.rlib"
    unit = compile_in_box(sandbox, script, {"program.rs": bridges.rs_program(sign, code)}, "rustc")
    script = f"rustc {options} --extern candidate=libcandidate.rlib tests.rs -o program >&2; cat program"
    files: dict[str, str | bytes] = {"tests.rs": bridges.rs_tests(sign, tests, secret), "libcandidate.rlib": unit}
    return _run_binary(compile_in_box(sandbox, script, files, "rustc"), secret, sandbox, limits)


def run_go(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
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
    binary = compile_in_box(sandbox, script, files, "go")
    return _run_binary(binary, secret, sandbox, replace(limits, processes=64, reserves_addresses=True))


def _run_binary(binary: bytes, secret: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    limits = replace(limits, disk_mib=limits.disk_mib + len(binary) // 2**20 + 1)
    finished = sandbox.run(["/box/program"], {"program": binary}, limits, executable=True, calls=NATIVE)
    return _outcome(secret, finished, limits)


def run_java(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    files: dict[str, str | bytes] = {"Problem.java": code, "EbftTests.java": bridges.java_tests(sign, tests, secret)}
    script = (
        f"mkdir out; javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -J-Xmx1g -proc:none -nowarn -encoding UTF-8 "
        f"-cp {JAVATUPLES} -d out Problem.java EbftTests.java >&2; tar -cf - -C out ."
    )
    classes = compile_in_box(sandbox, script, files, "javac")
    heap = max(32, limits.memory_mib // 2)
    command = (
        "mkdir out; tar -xf classes.tar -C out; exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Xmx{heap}m -XX:-UsePerfData -cp out:{JAVATUPLES} EbftTests"
    )
    limits = replace(limits, processes=64, reserves_addresses=True)
    finished = sandbox.run(["sh", "-ec", command], {"classes.tar": classes}, limits, locate("java")[1])
    return _outcome(secret, finished, limits)


def run_cs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
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
    classes = compile_in_box(sandbox, script, files, "mcs")
    command = "mkdir out; tar -xf classes.tar -C out; exec mono --debug=casts out/tests.exe"
    limits = replace(limits, processes=64, reserves_addresses=True)
    environment = {"MONO_GC_PARAMS": f"max-heap-size={max(32, limits.memory_mib // 2)}m"}
    finished = sandbox.run(["sh", "-ec", command], {"classes.tar": classes}, limits, locate("mono")[1], environment)
    return _outcome(secret, finished, limits)
