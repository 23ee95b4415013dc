"""Compiled languages with tests and program in one process, for signatures whose values cannot cross between two.

The two units share nothing but one signature (`bridges.py`); a pass is exit code 0 and the secret that the unit with
the tests prints at its end. The program's own unit is compiled in a sandbox where neither tests nor secret exist.
No program can fork or run another one (or itself once more): the filter of system calls lets it make threads only.
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
    # No unsafe code, which in Rust includes names for the linker: else the program could put its own `memcmp` in the
    # place of the one that the tests use, look for the secret in memory, or change the tests.
    kind = "-F unsafe_code --crate-type rlib --crate-name candidate"
    script = f"rustc {options} {kind} program.rs >&2; cat libcandidate.rlib"
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
        f"-cp {JAVATUPLES} -d out Problem.java EbftTests.java >&2; jar -cf classes.jar -C out . >&2; cat classes.jar"
    )
    classes = compile_in_box(sandbox, script, files, "javac", "jar")
    java, folders = locate("java")
    heap = max(32, limits.memory_mib // 2)
    start = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{heap}m", "-XX:-UsePerfData"]
    limits = replace(limits, processes=64, reserves_addresses=True)
    command = [*start, "-cp", f"/box/classes.jar:{JAVATUPLES}", "EbftTests"]
    finished = sandbox.run(command, {"classes.jar": classes}, limits, folders, calls=NATIVE)
    return _outcome(secret, finished, limits)


def run_cs(sign: Signature, code: str, tests: str, sandbox: Sandbox, limits: Limits) -> Outcome:
    secret = secrets.token_hex(16)
    libraries = "-nowarn:0162,0168,0219,0414 -r:System.Numerics.dll -r:System.Core.dll"
    files: dict[str, str | bytes] = {
        "Problem.cs": code,
        "Visible.cs": '[assembly: System.Runtime.CompilerServices.InternalsVisibleTo("tests")]\n',
    }
    script = f"mcs {libraries} -target:library -out:candidate.dll Problem.cs Visible.cs >&2; cat candidate.dll"
    unit = compile_in_box(sandbox, script, files, "mcs")
    files = {"Tests.cs": bridges.cs_tests(sign, tests, secret), "candidate.dll": unit}
    script = f"mcs {libraries} -out:tests.exe -r:ebft=candidate.dll Tests.cs >&2; cat tests.exe"
    tester = compile_in_box(sandbox, script, files, "mcs")
    mono, folders = locate("mono")
    environment = {"MONO_GC_PARAMS": f"max-heap-size={max(32, limits.memory_mib // 2)}m"}
    limits = replace(limits, processes=64, reserves_addresses=True)
    units = {"tests.exe": tester, "candidate.dll": unit}
    command = [mono, "--debug=casts", "/box/tests.exe"]
    finished = sandbox.run(command, units, limits, folders, environment, calls=NATIVE)
    return _outcome(secret, finished, limits)
