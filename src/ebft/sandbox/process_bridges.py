"""Sources for compiled languages where tests and program are two processes, each with its own `main`.

The process with the tests has a function with exactly the signature of the prompt, which sends its arguments as plain
data and makes its result from the data that comes back. The other one waits for arguments and calls the program. The
values travel as `inside/wire.*` says for each language, by the types of the signature.

Signatures with types that cannot be told from the bytes (C++'s unions, `any`, Java's and C#'s `Object`) have no such
pair; for them `bridges.py` has tests and program in one process.
"""

from __future__ import annotations

import re

from ebft.sandbox.bridges import BRIDGE, JAVA_IMPORTS, NoSignature, Signature, split_parameters, without_closing
from ebft.sandbox.command import INSIDE

# The words that types may be made of.
_TYPES = {
    "cpp": "std long int short char bool float double unsigned string vector tuple pair map set optional const size_t",
    "rs": "i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool char String Vec Option HashMap HashSet "
    "BTreeMap BTreeSet",
    "go": "int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 float32 float64 bool string map byte rune "
    "interface",
    "java": "long int short byte float double boolean char Long Integer Short Byte Float Double Boolean Character "
    "String ArrayList List HashMap Map HashSet Set Optional Unit Pair Triplet Quartet Quintet",
    "cs": "long int float double bool char string List Dictionary Tuple Nullable",
}
_BOXES = {
    "long": "Long", "int": "Integer", "short": "Short", "byte": "Byte", "float": "Float", "double": "Double",
    "boolean": "Boolean", "char": "Character",
}  # fmt: skip


def separable(language: str, sign: Signature) -> bool:
    """Whether values of all types of the signature can cross between processes."""
    try:
        types = [kind for _, kind in _parameters(language, sign)]
    except NoSignature:
        return False
    words = re.findall(r"\w+", " ".join([*types, sign.returns]))
    several = language == "go" and sign.returns.startswith("(")
    return bool(sign.returns) and not several and set(words) <= set(_TYPES[language].split())


def _parameters(language: str, sign: Signature) -> list[tuple[str, str]]:
    """Name and type of each."""
    found = []
    patterns = {"rs": r"(?:mut\s+)?(?P<name>\w+)\s*:\s*(?P<type>.+)", "go": r"(?P<name>\w+)\s+(?P<type>.+)"}
    pattern = patterns.get(language, r"(?P<type>.+[\s&>\]])(?P<name>\w+)")
    for parameter in split_parameters(sign.parameters):
        match = re.fullmatch(pattern, parameter.strip(), re.DOTALL)
        if match is None:
            raise NoSignature(f"cannot read the parameter {parameter.strip()!r} of {sign.name}")
        found.append((match["name"], match["type"].strip()))
    return found


def wire(name: str) -> str:
    return (INSIDE / name).read_text(encoding="utf-8")


# ---- C++ -----------------------------------------------------------------------------------------------------------


def cpp_tests(sign: Signature, tests: str) -> str:
    body = without_closing(tests).replace("int main()", "static void ebft_tests()", 1)
    call = f"ebft_wire::call<{sign.returns}>({sign.arguments})"
    return f"""{sign.before}
#include "wire.hpp"
static {sign.returns} {sign.name}({sign.parameters}) {{ return {call}; }}
#undef assert
#define assert(...) do {{ if (!(__VA_ARGS__)) ebft_wire::stop("failed", "a test failed"); }} while (0)
{body}
int main(int, char** arguments) {{ ebft_wire::run_tests(arguments, ebft_tests); }}
"""


def cpp_server(sign: Signature) -> str:
    return f"""{sign.before}
#include "wire.hpp"
{sign.returns} {BRIDGE}({sign.parameters});
int main(int, char** arguments) {{ ebft_wire::serve(arguments, {BRIDGE}); }}
"""


# ---- Rust ----------------------------------------------------------------------------------------------------------


def rs_tests(sign: Signature, tests: str) -> str:
    names = [name for name, _ in _parameters("rs", sign)]
    returns = f" -> {sign.returns}" if sign.returns else ""
    body = without_closing(tests).replace("fn main()", "fn ebft_tests()", 1)
    sent = "".join(f"{name}, " for name in names)
    return f"""{sign.before}
mod wire;
static EBFT: std::sync::Mutex<(Option<wire::Channel>, usize)> = std::sync::Mutex::new((None, 0));
fn ebft_report(status: &str, message: &str) -> ! {{
    print!("{{{{\\"status\\": \\"{{status}}\\", \\"message\\": \\"{{message}}\\"}}}}");
    use std::io::Write;
    let _ = std::io::stdout().flush();
    std::process::exit(0)
}}
fn {sign.name}({sign.parameters}){returns} {{
    let mut held = EBFT.lock().unwrap();
    held.1 += 1;
    let channel = held.0.as_mut().unwrap();
    if channel.send(&({sent})) {{
        if let Some(found) = channel.receive() {{ return found; }}
    }}
    ebft_report("failed", "the program has ended")
}}
{body}
fn main() {{
    EBFT.lock().unwrap().0 = Some(wire::Channel::open());
    std::panic::set_hook(Box::new(|_| ebft_report("failed", "a test failed")));
    ebft_tests();
    if EBFT.lock().unwrap().1 == 0 {{ ebft_report("error", "the tests never called the program") }}
    ebft_report("passed", "")
}}
"""


def rs_server(sign: Signature) -> str:
    types = "".join(f"{kind}, " for _, kind in _parameters("rs", sign))
    arguments = ", ".join(f"given.{place}" for place in range(len(_parameters("rs", sign))))
    return f"""{sign.before}
mod wire;
extern crate candidate;
fn main() {{
    let mut channel = wire::Channel::open();
    while let Some(given) = channel.receive::<({types})>() {{
        if !channel.send(&candidate::{BRIDGE}({arguments})) {{ break; }}
    }}
}}
"""


# ---- Go ------------------------------------------------------------------------------------------------------------


def go_tests(sign: Signature, tests: str) -> str:
    name = re.search(r"func (Test\w+)\(t \*testing\.T\)", tests)
    if name is None:
        raise NoSignature("the tests have no function Test...(t *testing.T)")
    sent = ", ".join(f"&{parameter}" for parameter, _ in _parameters("go", sign))
    return f"""package main

import (
    "fmt"
    "os"
    "box/wire"
)

var ebftChannel *wire.Channel
var ebftCalls int

type ebftT struct {{ failed bool }}
func (t *ebftT) Run(name string, test func(*ebftT)) bool {{ test(t); return !t.failed }}
func (t *ebftT) Errorf(format string, values ...interface{{}}) {{ t.failed = true }}
func (t *ebftT) Fatalf(format string, values ...interface{{}}) {{ ebftReport("failed", "a test failed") }}

func ebftReport(status string, message string) {{
    fmt.Printf("{{\\"status\\": \\"%s\\", \\"message\\": \\"%s\\"}}", status, message)
    os.Exit(0)
}}

func {sign.name}({sign.parameters}) {sign.returns} {{
    ebftCalls++
    var ebftFound {sign.returns}
    if !ebftChannel.Send({sent}) || !ebftChannel.Receive(&ebftFound) {{ ebftReport("failed", "the program has ended") }}
    return ebftFound
}}

{tests.replace("*testing.T", "*ebftT")}

func main() {{
    ebftChannel = wire.Open()
    t := &ebftT{{}}
    {name[1]}(t)
    if t.failed {{ ebftReport("failed", "a test failed") }}
    if ebftCalls == 0 {{ ebftReport("error", "the tests never called the program") }}
    ebftReport("passed", "")
    _ = fmt.Sprint
}}
"""


def go_server(sign: Signature) -> str:
    kinds = [kind for _, kind in _parameters("go", sign)]
    declared = "".join(f"        var a{place} {kind}\n" for place, kind in enumerate(kinds))
    places = ", ".join(f"&a{place}" for place in range(len(kinds)))
    given = ", ".join(f"a{place}" for place in range(len(kinds)))
    return f"""package main

import (
    candidate "box/candidate"
    "box/wire"
)

func main() {{
    channel := wire.Open()
    for {{
{declared}        if !channel.Receive({places}) {{ return }}
        found := candidate.EbftBridge({given})
        if !channel.Send(&found) {{ return }}
    }}
}}
"""


# ---- Java ----------------------------------------------------------------------------------------------------------


def _java_cast(kind: str, value: str) -> str:
    return f"({_BOXES[kind]}) {value}" if kind in _BOXES else f"({kind}) {value}"


def _java_imports(sign: Signature) -> str:
    """By name: before classes of the program."""
    named = "".join(f"import {name};\n" for name in JAVA_IMPORTS)
    return named + "".join(line + "\n" for line in sign.before.split("\n") if line.startswith("import "))


def java_tests(sign: Signature, tests: str) -> str:
    body = re.sub(r"^([ \t]*)assert\(", r"\1check(", without_closing(tests), flags=re.MULTILINE)
    body = body.rstrip().removesuffix("}").replace("public static void main(String[] args)", "static void tests()", 1)
    call = _java_cast(sign.returns, f"EbftWire.call({sign.arguments})")
    return f"""{_java_imports(sign)}
@SuppressWarnings("unchecked")
final class EbftTests {{
    private static void check(boolean passed) {{ if (!passed) EbftWire.report("failed", "a test failed"); }}
    private static {sign.returns} {sign.name}({sign.parameters}) {{ return {call}; }}
    {body}
    public static void main(String[] arguments) throws java.lang.Throwable {{
        EbftWire.open(arguments);
        try {{
            tests();
        }} catch (java.lang.Throwable error) {{
            EbftWire.report("failed", error.getClass().getName().replaceAll("[^\\\\w.]", ""));
        }}
        boolean called = EbftWire.calls > 0;
        EbftWire.report(called ? "passed" : "error", called ? "" : "the tests never called the program");
    }}
}}
"""


def java_server(sign: Signature) -> str:
    kinds = [kind for _, kind in _parameters("java", sign)]
    given = ", ".join(_java_cast(kind, f"given.get({place})") for place, kind in enumerate(kinds))
    return f"""{_java_imports(sign)}
@SuppressWarnings("unchecked")
final class EbftServer {{
    public static void main(String[] arguments) throws java.lang.Throwable {{
        EbftWire.open(arguments);
        while (true) {{
            List<Object> given = (List<Object>) EbftWire.receive();
            EbftWire.send(Problem.{sign.name}({given}));
        }}
    }}
}}
"""


# ---- C# ------------------------------------------------------------------------------------------------------------


def _cs_using(sign: Signature) -> str:
    return "".join(line + "\n" for line in sign.before.split("\n") if line.startswith("using "))


def _cs_types(sign: Signature) -> str:
    return f"new Type[] {{ {', '.join(f'typeof({kind})' for _, kind in _parameters('cs', sign))} }}"


def cs_tests(sign: Signature, tests: str) -> str:
    body = without_closing(tests).replace("Debug.Assert(", "Check(").rstrip().removesuffix("}")
    body = body.replace("public static void Main(string[] args)", "static void Tests()", 1)
    given = "".join(f", {name}" for name, _ in _parameters("cs", sign))
    call = f"({sign.returns}) EbftWire.Wire.Call(typeof({sign.returns}), {_cs_types(sign)}{given})"
    return f"""{_cs_using(sign)}
static class EbftTests {{
    static void Check(bool passed) {{ if (!passed) EbftWire.Wire.Report("failed", "a test failed"); }}
    static {sign.returns} {sign.name}({sign.parameters}) {{ return {call}; }}
    {body}
    public static void Main(string[] arguments) {{
        EbftWire.Wire.Open(arguments);
        try {{
            Tests();
        }} catch (Exception error) {{
            EbftWire.Wire.Report("failed", error.GetType().Name);
        }}
        bool called = EbftWire.Wire.calls > 0;
        EbftWire.Wire.Report(called ? "passed" : "error", called ? "" : "the tests never called the program");
    }}
}}
"""


def cs_server(sign: Signature) -> str:
    kinds = [kind for _, kind in _parameters("cs", sign)]
    given = ", ".join(f"({kind}) given[{place}]" for place, kind in enumerate(kinds))
    returns = f"new Type[] {{ typeof({sign.returns}) }}"
    return f"""{_cs_using(sign)}
static class EbftServer {{
    public static void Main(string[] arguments) {{
        EbftWire.Wire.Open(arguments);
        while (true) {{
            object[] given = EbftWire.Wire.Receive({_cs_types(sign)});
            EbftWire.Wire.Send({returns}, Problem.{sign.name}({given}));
        }}
    }}
}}
"""
