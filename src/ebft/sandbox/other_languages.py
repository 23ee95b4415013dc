"""Programs in the languages of MultiPL-E: how they are compiled and run, and what a pass is.

Program and tests are one process, as MultiPL-E means it, with the tests in a scope of their own. After the last test,
text of ours prints a nonce; a pass is that nonce and exit code 0, so an early exit or a printed text proves nothing.
Compiled programs, which can neither be read nor start a process, hold the nonce in two halves. JavaScript and PHP get
it on their standard input, which is read and closed before the program's text runs. A program that redefines what the
tests compare with, or searches its own memory, can pass all the same: `docs/sandbox.md`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ebft.sandbox.box import Ending, Sandbox
from ebft.sandbox.bubblewrap import Command, Limits
from ebft.sandbox.python_tests import ERROR, FAILED, PASSED, Outcome, limit_exceeded, one_line
from ebft.sandbox.seccomp import NATIVE, TOOLCHAIN

# For one answer, all its interpretations together: so much of one worker's time a bomb costs.
COMPILING = Limits(
    30.0, 3072, processes=128, disk_mib=512, output_kib=96 * 1024, open_files=256, reserves_addresses=True
)
NOT_COMPILED = "does not compile"
PROGRAM = "/box/program"

# What is compiled: the program, the tests, and text of ours. Words between @ are put in by `run_program`.
CPP = """#include <cstdio>
#define main ebft_unused_main
@PROGRAM@
#undef main
#undef assert
static volatile int ebft_failed = 0;
#define assert(...) do { if (!(__VA_ARGS__)) { ebft_failed = 1; __builtin_trap(); } } while (0)
@TESTS@
int main() {
    ebft_tests();
    const volatile unsigned char a[] = {@MASK@}, b[] = {@MASKED@};
    for (int i = 0; i < 16; i++) std::putchar(a[i] ^ b[i]);
    return std::fflush(stdout) + ebft_failed;
}
"""
RUST = """mod program {
@PROGRAM@
pub mod ebft_tests {
    use super::*;
    @TESTS@
}
}
fn main() {
    program::ebft_tests::run();
    let (a, b): ([u8; 16], [u8; 16]) = ([@MASK@], [@MASKED@]);
    let nonce: Vec<u8> = (0..16).map(|i| a[i] ^ b[i]).collect();
    std::io::Write::write_all(&mut std::io::stdout(), &nonce).unwrap();
}
"""
GO = """package main
import ("fmt"; "os")
type ebftT struct{}
func (t *ebftT) Run(name string, test func(*ebftT)) { test(t) }
func (t *ebftT) Errorf(string, ...interface{}) { os.Exit(1) }
@TESTS@
func main() {
    ebftTests(&ebftT{})
    a, b := []byte{@MASK@}, []byte{@MASKED@}
    for i := range a { a[i] ^= b[i] }
    os.Stdout.Write(a)
}
"""
JAVA = """package ebft;
@IMPORTS@
import static ebft.@PLACE@.@NAME@;
final class EbftTests {
    static final java.io.PrintStream out = java.lang.System.out;
    static void check(boolean passed) { if (!passed) java.lang.Runtime.getRuntime().halt(1); }
    public static void main(String[] args) throws java.lang.Throwable {
        tests();
        int[] a = {@MASK@}, b = {@MASKED@};
        for (int i = 0; i < 16; i++) out.write(a[i] ^ b[i]);
        out.flush();
        java.lang.Runtime.getRuntime().halt(0);
    }
    @TESTS@
"""
CSHARP = """@IMPORTS@
namespace EbftTests {
    using static @PLACE@;
    static class Tests {
        static void Check(bool passed) { if (!passed) System.Environment.Exit(1); }
        static void Main() {
            Run();
            byte[] a = {@MASK@}, b = {@MASKED@};
            for (int i = 0; i < 16; i++) a[i] ^= b[i];
            System.Console.Out.Flush();
            System.Console.OpenStandardOutput().Write(a, 0, 16);
            System.Environment.Exit(0);
        }
        @TESTS@
}
"""
NODE = r"""(async () => {
  const fs = require('fs'), vm = require('vm'), assert = require('assert'), write = fs.writeSync;
  const { nonce, name, programs, tests } = JSON.parse(fs.readFileSync(0)), passed = Buffer.from(nonce, 'hex');
  const exit = process.reallyExit.bind(process), own = Object.assign(assert.bind(null), assert);
  fs.closeSync(0);
  fs.openSync('/dev/null');
  const end = (message) => { write(2, String(message)); exit(1); };
  const load = (text) => import('data:text/javascript,' + encodeURIComponent(text));
  let found, wrong;
  for (const text of programs) try {
    const last = `\n;return typeof ${name} === 'undefined' ? module.exports : ${name};`, module = { exports: {} };
    const make = vm.compileFunction(text + last, ['require', 'module', 'exports', '__filename', '__dirname']);
    try { found = make(require, module, module.exports, '/box/program.js', '/box'); } catch (error) { end(error); }
    break;
  } catch (error) {
    wrong ??= error;
    const exporting = `${text}\nexport { ${name} as ebft };`;
    try { found = await load(exporting).catch(() => load(text)); found = found.ebft ?? found; break; } catch {}
  }
  if (!found) end('does not compile: ' + wrong);
  if (typeof found !== 'function') found = found[name] ?? found.default;
  const given = (id) => (/assert$/.test(id) ? own : require(id));
  try { vm.compileFunction("'use strict';" + tests, ['require', name])(given, found); } catch (error) { end(error); }
  for (;;) try { write(1, passed); exit(0); } catch {}
})();
"""
PHP = r"""(static function () {
    extract(json_decode(stream_get_contents(STDIN), true));
    fclose(STDIN);
    $load = static fn ($ebft_code) => static function () use ($ebft_code) {  // its variables are global, as in a file
        preg_match_all('/\$(?!this\b|GLOBALS\b|_)(\w+)/', $ebft_code, $ebft_names);
        foreach ($ebft_names[1] as $ebft_name) global $$ebft_name;
        eval($ebft_code);
    };
    $wrong = null;
    try {
        foreach ($programs as $text) try {
            $load(preg_replace('/^\s*<\?php\b/i', '', $text))();
            $wrong = null;
            break;
        } catch (ParseError $error) {
            $wrong ??= new Exception('does not compile: ' . $error->getMessage());
        }
        if ($wrong) throw $wrong;
        $found = preg_grep('/(^|\\\\)' . $name . '$/i', get_defined_functions()['user']);
        $load('namespace EbftTests; use Exception; use function ' . reset($found) . " as $name;\n$tests")();
    } catch (Throwable $error) {
        fwrite(STDERR, $error->getMessage());
        exit(1);
    }
    fwrite(fopen('php://stdout', 'w'), hex2bin($nonce));
})();
"""


@dataclass(frozen=True)
class Language:
    """One of MultiPL-E's languages.

    Args:
        needs: programs and files that must be installed, and the Debian package of each.
        files: what is compiled, by name.
        compile: a shell script that writes what is run to its standard output.
        run: the command that runs it, or that takes a job with the nonce and all texts from its standard input.
        tests: patterns in the tests, and what to put there.
    """

    title: str
    needs: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    compile: str = ""
    run: tuple[str, ...] = (PROGRAM,)
    tests: tuple[tuple[str, str], ...] = ()

    @property
    def programs(self) -> list[str]:
        return [name for name in self.needs if "/" not in name]

    def missing(self) -> str | None:
        """One line on what is not installed, or None."""
        absent = [name for name in self.needs if not (Path(name).exists() if "/" in name else installed(name))]
        if not absent:
            return None
        names = " and ".join(f"`{name}`" for name in absent)
        packages = " ".join(dict.fromkeys(self.needs[name] for name in absent))
        return f"{self.title} needs {names}, not found here: apt install {packages}"

    def versions(self) -> dict[str, str]:
        said = {name: _first_line((name, "version" if name == "go" else "--version")) for name in self.programs}
        return {name: version for name, version in said.items() if shutil.which(name)}


# Node reserves address space by the gigabyte; its heap has a limit of its own. PHP has no php.ini (-n): what that loads
# and allows is the machine's.
RUN_NODE = ("node", "--max-old-space-size=@HEAP@", "--stack-size=3900", "-e", NODE)
RUN_PHP = ("php", "-n", "-d", "memory_limit=@HEAP@M", "-d", "display_errors=0", "-r", PHP)
JAVATUPLES = "/usr/share/java/javatuples.jar"
JAVAC = "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -J-Xmx1g -proc:none -nowarn -encoding UTF-8"
RUN_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx@HEAP@m", "-XX:-UsePerfData", "-cp")
GO_SETTINGS = "GOCACHE=/box/cache GOPATH=/box/go GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0"
TSC = "tsc --target esnext --module commonjs --esModuleInterop --strict false --skipLibCheck --outDir out"
NODE_TYPES = "declare var require: any, module: any, exports: any, process: any, Buffer: any, @NAME@: any;\n"
LANGUAGES = {
    "cpp": Language(
        "C++",
        {"g++": "g++"},
        {"program.cpp": CPP},
        "g++ -std=c++17 -w -pthread program.cpp -o program >&2; cat program",
        tests=((r"\bint main\(\)", "static void ebft_tests()"),),
    ),
    "js": Language("JavaScript", {"node": "nodejs"}, run=RUN_NODE),
    "ts": Language(
        "TypeScript",
        {"tsc": "node-typescript", "node": "nodejs"},
        # As in MultiPL-E, the types of program and tests together must be right; what runs is the program alone.
        {
            "program.ts": "@PROGRAM@\nexport {};\n",
            "whole.ts": "@PROGRAM@\nfunction ebft_tests() {\n@TESTS@\n}\nexport {};\n",
            "node.d.ts": NODE_TYPES + 'declare module "*";\n',
        },
        f"case $(tsc --version) in *' '[1-5].*) more='';; *) more='--ignoreConfig';; esac; "
        f"{TSC} $more node.d.ts program.ts whole.ts >&2; cat out/program.js",
        RUN_NODE,
        tests=((r"(?m)^declare .*$", ""),),
    ),
    "rs": Language(
        "Rust",
        {"rustc": "rustc", "cc": "gcc"},
        {"program.rs": RUST},
        "rustc --edition 2021 -A warnings -C debuginfo=0 -C strip=symbols program.rs >&2; cat program",
        tests=((r"\bfn main\(\)", "pub fn run()"), (r"\b(assert(_eq|_ne)?!)", r"::std::\1")),
    ),
    "cs": Language(
        "C#",
        {"mcs": "mono-mcs", "mono": "mono-runtime"},
        {"Problem.cs": "@PROGRAM@", "Tests.cs": CSHARP},
        "mcs -warn:0 -r:System.Numerics.dll -r:System.Core.dll -main:EbftTests.Tests -out:p.exe *.cs >&2; cat p.exe",
        ("mono", PROGRAM),
        ((r"public static void Main\(string\[\] args\)", "static void Run()"), (r"\bDebug\.Assert\(", "Check(")),
    ),
    "go": Language(
        "Go",
        {"go": "golang-go"},
        {"program.go": "@PROGRAM@", "tests.go": GO},
        f"{GO_SETTINGS} go build -ldflags '-s -w' -o program program.go tests.go >&2; cat program",
        tests=((r"\*testing\.T\b", "*ebftT"), (r"\bfunc Test\w+\(", "func ebftTests(")),
    ),
    "php": Language("PHP", {"php": "php-cli"}, run=RUN_PHP),
    "java": Language(
        "Java",
        {"javac": "default-jdk-headless", "java": "default-jdk-headless", JAVATUPLES: "libjavatuples-java"},
        {"Problem.java": "package ebft;\n@PROGRAM@", "EbftTests.java": JAVA},
        f"mkdir out; {JAVAC} -cp {JAVATUPLES} -d out *.java >&2; jar -cf program -C out . >&2; cat program",
        (*RUN_JAVA, f"{PROGRAM}:{JAVATUPLES}", "ebft.EbftTests"),
        ((r"public static void main\(String\[\] args\)", "static void tests()"), (r"(?m)^(\s*)assert\(", r"\1check(")),
    ),
}


def run_program(
    language: str,
    name: str,
    programs: Sequence[tuple[str, str]],
    imports: str,
    tests: str,
    sandbox: Sandbox,
    limits: Limits,
) -> Outcome:
    """Whether an answer passes its tests.

    Args:
        name: the function that the tests call.
        programs: interpretations of the answer, best first, each a text that defines the function, and the class that
            it is in, for languages with classes. The first that compiles is run.
        imports: those of the prompt, which the tests may need.
    """
    row = LANGUAGES[language]
    tests = re.sub(r"\A\s*\}", "", tests)  # they begin with the bracket that closes the prompt's function
    for pattern, new in row.tests:
        tests = re.sub(pattern, new, tests)
    nonce, mask, heap = secrets.token_bytes(16), secrets.token_bytes(16), max(32, limits.memory_mib // 2)
    masked = ", ".join(str(a ^ b) for a, b in zip(mask, nonce, strict=True))
    words = {"NAME": name, "TESTS": tests, "IMPORTS": imports, "HEAP": str(heap)}
    words |= {"MASK": ", ".join(map(str, mask)), "MASKED": masked}
    texts, files = [text for text, _ in programs], {}
    if row.compile:
        compiled = _compiled(row, programs, words, sandbox)
        if isinstance(compiled, Outcome):
            return compiled
        texts, files = [compiled.decode("utf-8", "replace")], {"program": compiled}
    stdin = b""
    if row.run[0] in ("node", "php"):
        job, files = {"nonce": nonce.hex(), "name": name, "programs": texts, "tests": tests}, {}
        stdin = json.dumps(job).encode("ascii")
    program, folders = (PROGRAM, ()) if row.run[0] == PROGRAM else locate(row.run[0])
    start = [program, *(php_extensions() if language == "php" else ()), *(_filled(word, words) for word in row.run[1:])]
    disk = limits.disk_mib + sum(map(len, files.values())) // 2**20 + 1
    limits = replace(limits, disk_mib=disk, processes=64, reserves_addresses=True)
    environment = {"MONO_GC_PARAMS": f"max-heap-size={heap}m"}
    done = sandbox.run(Command(start, limits, files, stdin, folders, environment, program == PROGRAM, NATIVE))
    if (exceeded := limit_exceeded(done.ending, limits)) is not None:
        return exceeded
    if done.returncode != 0:
        said = one_line(next(iter(_text(done.stderr or done.stdout).strip().splitlines()), "a test failed"))
        return Outcome(FAILED, said if said.startswith(NOT_COMPILED) else f"exit code {done.returncode}: {said}")
    return Outcome(PASSED) if nonce in done.stdout else Outcome(FAILED, "the program ended before the tests did")


def _compiled(
    row: Language, programs: Sequence[tuple[str, str]], words: dict[str, str], sandbox: Sandbox
) -> bytes | Outcome:
    """What the first interpretation that compiles becomes, in a box of its own; or why the first does not compile."""
    found = [locate(program) for program in row.programs]
    path = ":".join([*(str(Path(place).parent) for place, needed in found if needed), "/usr/local/bin:/usr/bin:/bin"])
    folders = [folder for _, needed in found for folder in needed]
    deadline, first = time.monotonic() + COMPILING.seconds, None
    for text, place in programs:
        limits = replace(COMPILING, seconds=max(0.1, deadline - time.monotonic()))
        filled = {name: _filled(of, words | {"PROGRAM": text, "PLACE": place}) for name, of in row.files.items()}
        files = {name: content.encode("utf-8", "replace") for name, content in filled.items()}
        command = Command(["sh", "-ec", row.compile], limits, files, b"", folders, {"PATH": path}, calls=TOOLCHAIN)
        done = sandbox.run(command)
        if done.succeeded:
            return done.stdout
        if done.ending == Ending.TIMEOUT:
            return Outcome(FAILED, f"{NOT_COMPILED} within {COMPILING.seconds:g} s")
        lines = [line for line in _text(done.stderr).strip().splitlines() if not line.startswith("#")]
        said = next((line for line in lines if "error" in line.lower()), lines[0] if lines else done.ending)
        first = first or Outcome(FAILED, one_line(f"{NOT_COMPILED}: {said}"))
    return first or Outcome(ERROR, "there is nothing to compile")


def _filled(template: str, words: dict[str, str]) -> str:
    return re.sub("@([A-Z]+)@", lambda found: words[found[1]], template)


def _text(written: bytes) -> str:
    return written[: 64 * 1024].decode("utf-8", "replace")


@cache
def _first_line(command: tuple[str, ...]) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(iter((asked.stdout + asked.stderr).strip().splitlines()), "unknown")


def installed(program: str) -> bool:
    """rustup may have put its proxy on the path, without a compiler behind it."""
    return shutil.which(program) is not None and Path(locate(program)[0]).exists()


@cache
def locate(program: str) -> tuple[str, tuple[str, ...]]:
    """The real path of a program, and the folders outside /usr that it needs."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(program)
    if program == "rustc":
        # rustup puts a proxy on the path, which looks for the compiler in the user's home.
        root = _first_line((found, "--print", "sysroot"))
        return f"{root}/bin/rustc", () if root.startswith("/usr") else (root,)
    real = os.path.realpath(found)
    if real.startswith(("/usr/", "/bin/", "/lib/")):
        return found if found.startswith(("/usr/", "/bin/")) else real, ()
    parts = Path(real).parts
    if "node_modules" in parts:  # in a project's folder, packages find each other side by side
        return real, (str(Path(*parts[: parts.index("node_modules") + 1])),)
    return real, (str(Path(real).parent.parent),)


@cache
def php_extensions() -> tuple[str, ...]:
    """Options that load extensions which only compute, where a distribution has them in files of their own."""
    folder = _first_line(("php", "-n", "-r", 'echo ini_get("extension_dir");'))
    names = ("ctype", "mbstring", "iconv", "bcmath", "gmp", "calendar", "tokenizer")
    return tuple(word for name in names if Path(folder, f"{name}.so").is_file() for word in ("-d", f"extension={name}"))
