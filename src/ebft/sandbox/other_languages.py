"""Programs in the languages of MultiPL-E: how they are compiled and run, and what a pass is.

Program and tests are one process, as MultiPL-E means it, with the tests in a scope of their own. After the last test,
text of ours prints a nonce; a pass is that nonce and exit code 0, so an early exit or a printed text proves nothing.
Compiled programs hold the nonce byte by byte, and can neither be read nor start a process. JavaScript and PHP get it on
their standard input, read and closed before the program's text runs. `docs/sandbox.md` says what still passes.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Command, Limits
from ebft.sandbox.python_tests import ERROR, FAILED, PASSED, Outcome, limit_exceeded, one_line
from ebft.sandbox.seccomp import NATIVE, TOOLCHAIN

COMPILING = Limits(30.0, 3072, 128, disk_mib=512, output_kib=96 * 1024, open_files=256, reserves_addresses=True)
NOT_COMPILED = "does not compile"
PROGRAM = "/box/program"

# What is compiled: the program, the tests, and text of ours that prints the nonce. It is kept as numbers, not as the
# bytes that are looked for, which a program could print by printing all of its memory. @WORDS@ are put in by `_filled`.
CPP = """#include <cstdio>
#define main ebft_unused_main
@PROGRAM@
#undef main
#undef assert
#define assert(...) ((__VA_ARGS__) ? void() : __builtin_trap())
@TESTS@
int main() {
    ebft_tests();
    const int nonce[] = {@NONCE@};
    for (int value : nonce) std::putchar(value);
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
    for value in [@NONCE@] { ::std::print!("{}", value as u8 as char); }
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
    for _, value := range []int{@NONCE@} { os.Stdout.Write([]byte{byte(value)}) }
}
"""
JAVA = """package ebft;
import static ebft.@PLACE@.@NAME@;
@PROGRAM@
final class EbftTests {
    static void check(boolean passed) { if (!passed) java.lang.Runtime.getRuntime().halt(1); }
    public static void main(String[] args) throws java.lang.Throwable {
        tests();
        for (int value : new int[] {@NONCE@}) java.lang.System.out.write(value);
        java.lang.System.out.flush();
        java.lang.Runtime.getRuntime().halt(0);
    }
    @TESTS@
"""
CSHARP = """@PROGRAM@
namespace EbftTests {
    using static @PLACE@;
    static class Tests {
        static void Check(bool passed) { if (!passed) System.Environment.Exit(1); }
        static void Main() {
            Run();
            var output = System.Console.OpenStandardOutput();
            foreach (int value in new int[] {@NONCE@}) output.WriteByte((byte) value);
            System.Environment.Exit(0);
        }
        @TESTS@
}
"""
NODE = r"""(async () => {
  const fs = require('fs'), vm = require('vm'), assert = require('assert'), write = fs.writeSync;
  const { nonce, name, program, tests } = JSON.parse(fs.readFileSync(0));
  const exit = process.reallyExit.bind(process), own = Object.assign(assert.bind(null), assert);
  fs.closeSync(0);
  fs.openSync('/dev/null');
  const given = (id) => (/assert$/.test(id) ? own : require(id)), module = { exports: {} };
  const last = `\n;return typeof ${name} === 'undefined' ? module.exports : ${name};`;
  const load = (text) => import('data:text/javascript,' + encodeURIComponent(text));
  let make, found;
  try {
    try {
      make = vm.compileFunction(program + last, ['require', 'module', 'exports', '__filename', '__dirname']);
    } catch (error) {  // a module of ECMAScript, or wrong
      found = await load(`${program}\nexport { ${name} as ebft };`).catch(() => load(program)).catch(() => {
        throw 'does not compile: ' + error;
      });
    }
    found = make ? make(require, module, module.exports, '/box/program.js', '/box') : found.ebft ?? found;
    if (typeof found !== 'function') found = found[name] ?? found.default;
    vm.compileFunction("'use strict';" + tests, ['require', name])(given, found);
  } catch (error) { write(2, String(error)); exit(1); }
  for (;;) try { write(1, nonce); exit(0); } catch {}
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
    try {
        $load(preg_replace('/^\s*<\?php\b/i', '', $program))();
        $found = preg_grep('/(^|\\\\)' . $name . '$/i', get_defined_functions()['user']);
        $load('namespace EbftTests; use Exception; use function ' . reset($found) . " as $name;\n$tests")();
    } catch (Throwable $error) {
        fwrite(STDERR, ($error instanceof ParseError ? 'does not compile: ' : '') . $error->getMessage());
        exit(1);
    }
    fwrite(fopen('php://stdout', 'w'), $nonce);
})();
"""


@dataclass(frozen=True)
class Language:
    """One of MultiPL-E's languages."""

    title: str
    needs: dict[str, str]  # programs and files, and the Debian package of each
    files: dict[str, str] = field(default_factory=dict)  # what is compiled, by name
    compile: str = ""  # a shell script that writes what is run to its standard output
    run: tuple[str, ...] = (PROGRAM,)  # node and php take program, tests and nonce from their standard input
    tests: tuple[tuple[str, str], ...] = ()  # patterns in the tests, and what to put there

    def missing(self) -> str | None:
        """One line on what is not installed, or None."""
        absent = {name: of for name, of in self.needs.items() if not (shutil.which(name) or Path(name).is_file())}
        packages, names = " ".join(dict.fromkeys(absent.values())), " and ".join(f"`{name}`" for name in absent)
        return f"{self.title} needs {names}, not found here: apt install {packages}" if absent else None

    def versions(self) -> dict[str, str]:
        found = [name for name in self.needs if shutil.which(name)]
        return {name: _first_line(name, "version" if name == "go" else "--version") for name in found}


JAVATUPLES = "/usr/share/java/javatuples.jar"
JAVAC = "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -J-Xmx1g -proc:none -nowarn -encoding UTF-8"
# Node reserves address space by the gigabyte; its heap has a limit of its own. PHP has no php.ini (-n), since what that
# loads and allows is the machine's, but the usual extensions that only compute, where they are not built in.
RUN_NODE = ("node", "--max-old-space-size=@HEAP@", "--stack-size=3900", "-e", NODE)
PHP_SETTINGS = "memory_limit=@HEAP@M log_errors=0 display_errors=stderr display_startup_errors=0"
PHP_EXTENSIONS = "ctype mbstring iconv bcmath gmp calendar tokenizer"
PHP_SETTINGS += "".join(f" extension={name}" for name in PHP_EXTENSIONS.split())
RUN_PHP = ("php", "-n", *(f"-d{setting}" for setting in PHP_SETTINGS.split()), "-r", PHP)
RUN_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx@HEAP@m", "-XX:-UsePerfData", "-cp")
# As in MultiPL-E, the types of program and tests together must be right; what runs is the program alone.
TYPESCRIPT = {
    "program.ts": "@PROGRAM@\nexport {};\n",
    "whole.ts": "@PROGRAM@\nfunction ebft_tests() {\n@TESTS@\n}\nexport {};\n",
    "node.d.ts": "declare var require: any, module: any, exports: any, process: any, Buffer: any, @NAME@: any;\n"
    'declare module "*";\n',
    "tsconfig.json": '{"compilerOptions": {"target": "esnext", "module": "commonjs", "esModuleInterop": true, '
    '"strict": false, "skipLibCheck": true, "outDir": "out"}}',
}
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
        TYPESCRIPT,
        "tsc >&2; cat out/program.js",
        RUN_NODE,
        ((r"(?m)^declare .*$", ""),),
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
        {"program.cs": CSHARP},
        "mcs -warn:0 -r:System.Numerics.dll -r:System.Core.dll -main:EbftTests.Tests program.cs >&2; cat program.exe",
        ("mono", PROGRAM),
        ((r"public static void Main\(string\[\] args\)", "static void Run()"), (r"\bDebug\.Assert\(", "Check(")),
    ),
    "go": Language(
        "Go",
        {"go": "golang-go"},
        {"program.go": "@PROGRAM@", "tests.go": GO},
        "GOCACHE=/box/cache GOPATH=/box/go GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0 "
        "go build -ldflags '-s -w' -o program program.go tests.go >&2; cat program",
        tests=((r"\*testing\.T\b", "*ebftT"), (r"\bfunc Test\w+\(", "func ebftTests(")),
    ),
    "php": Language("PHP", {"php": "php-cli"}, run=RUN_PHP),
    "java": Language(
        "Java",
        {"javac": "default-jdk-headless", "java": "default-jdk-headless", JAVATUPLES: "libjavatuples-java"},
        {"Problem.java": JAVA},
        f"mkdir out; {JAVAC} -cp {JAVATUPLES} -d out Problem.java >&2; jar -cf program -C out . >&2; cat program",
        (*RUN_JAVA, f"{PROGRAM}:{JAVATUPLES}", "ebft.EbftTests"),
        ((r"public static void main\(String\[\] args\)", "static void tests()"), (r"(?m)^(\s*)assert\(", r"\1check(")),
    ),
}


def run_program(
    language: str, name: str, programs: Sequence[tuple[str, str]], tests: str, sandbox: Sandbox, limits: Limits
) -> Outcome:
    """Whether an answer passes its tests, which call the function `name`. `programs` are its interpretations, best
    first, each a text and the class that the function is in, if any. The first that compiles is run."""
    row, nonce, outcome = LANGUAGES[language], secrets.token_hex(16), Outcome(ERROR, "there is nothing to run")
    for pattern, new in ((r"\A\s*\}", ""), *row.tests):  # the first bracket closes the prompt's function
        tests = re.sub(pattern, new, tests)
    words = {"NAME": name, "TESTS": tests, "NONCE": ", ".join(str(ord(digit)) for digit in nonce)}
    for text, place in programs:
        program = text.encode("utf-8", "replace")
        if row.compile:
            compiled = sandbox.run(_compiler(row, words | {"PROGRAM": text, "PLACE": place}))
            if not compiled.succeeded:
                lines = _lines(compiled.stderr) or [compiled.ending]
                said = next((line for line in lines if "error" in line.lower()), lines[-1])
                outcome = Outcome(FAILED, one_line(f"{NOT_COMPILED}: {said}"))
                continue
            program = compiled.stdout
        job = {"nonce": nonce, "name": name, "program": program.decode("utf-8", "replace"), "tests": tests}
        done = sandbox.run(_start(row, program, job, limits))
        if (exceeded := limit_exceeded(done.ending, limits)) is not None:
            return exceeded
        if done.succeeded:
            passed = nonce.encode() in done.stdout
            return Outcome(PASSED) if passed else Outcome(FAILED, "the program ended before the tests did")
        said = (_lines(done.stderr or done.stdout) or ["a test failed"])[0]
        if not said.startswith(NOT_COMPILED):
            return Outcome(FAILED, one_line(f"exit code {done.returncode}: {said}"))
        outcome = Outcome(FAILED, one_line(said))
    return outcome


def _compiler(row: Language, words: dict[str, str]) -> Command:
    found = [locate(name) for name in row.needs if shutil.which(name)]
    path = ":".join([*(str(Path(place).parent) for place, needed in found if needed), "/usr/local/bin:/usr/bin:/bin"])
    files = {name: _filled(of, words).encode("utf-8", "replace") for name, of in row.files.items()}
    folders = [folder for _, needed in found for folder in needed]
    return Command(["sh", "-ec", row.compile], COMPILING, files, b"", folders, {"PATH": path}, calls=TOOLCHAIN)


def _start(row: Language, program: bytes, job: dict[str, str], limits: Limits) -> Command:
    first, folders = locate(row.run[0])
    heap = str(max(32, limits.memory_mib // 2))
    arguments = [first, *(_filled(word, {"HEAP": heap}) for word in row.run[1:])]
    disk = limits.disk_mib + len(program) // 2**20 + 1
    limits = replace(limits, disk_mib=disk, processes=64, reserves_addresses=True)
    environment = {"MONO_GC_PARAMS": f"max-heap-size={heap}m"}
    told = json.dumps(job).encode("ascii") if row.run in (RUN_NODE, RUN_PHP) else b""
    files = {} if told else {"program": program}
    return Command(arguments, limits, files, told, folders, environment, first == PROGRAM, NATIVE)


def _filled(template: str, words: dict[str, str]) -> str:
    return re.sub("@([A-Z]+)@", lambda found: words[found[1]], template)


def _lines(written: bytes) -> list[str]:
    return written[: 64 * 1024].decode("utf-8", "replace").strip().splitlines()


@cache
def _first_line(*command: str) -> str:
    asked = subprocess.run(command, capture_output=True, check=False)
    return next(iter(_lines(asked.stdout + asked.stderr)), "unknown")


def locate(program: str) -> tuple[str, tuple[str, ...]]:
    """The real path of a program, and the folder outside /usr that it needs."""
    found = shutil.which(program)
    if found is None:
        return program, ()
    if program == "rustc":
        # rustup puts a proxy on the path, which looks for the compiler, if there is one, in the user's home.
        root = _first_line(found, "--print", "sysroot")
        return f"{root}/bin/rustc", () if root.startswith("/usr") else (root,)
    real = Path(found).resolve()
    if real.parts[1] in ("usr", "bin", "lib"):
        return str(real), ()
    beside = [folder for folder in real.parents if folder.name == "node_modules"]  # packages find each other there
    return str(real), (str(beside[-1] if beside else real.parent.parent),)
