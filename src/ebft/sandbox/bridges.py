"""Signatures, and sources for compiled languages where the program and its tests are two units of one process.

That is the second choice, for signatures whose values cannot cross between processes (`process_bridges.py`).

MultiPL-E puts prompt, completion and tests into one file, where a program can redefine what the tests are made of:
macros, classes, `==`. Here the program is compiled on its own. The tests are compiled on their own too, against a
function with exactly the signature that the prompt gives (the bridge), so that what they compare is of the types that
the problem names. When all tests have passed, and only then, the unit with the tests prints a secret, which is not in
the text that the program's unit is compiled from. An exit before that prints nothing.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

BRIDGE = "ebft_bridge"


class NoSignature(ValueError):
    """The prompt does not end with the head of a function."""


@dataclass(frozen=True)
class Signature:
    name: str
    returns: str
    parameters: str
    arguments: str
    before: str  # the prompt up to the signature: imports, types, comments
    line: str


# What stands before the parameters and between them and the opening bracket.
_HEADS = {
    "cpp": (r"(?P<returns>\S.*?)\s+(?P<name>\w+)", r""),
    "java": (r"public static (?P<returns>.+) (?P<name>\w+)", r""),
    "cs": (r"public static (?P<returns>.+) (?P<name>\w+)", r""),
    "rs": (r"fn (?P<name>\w+)", r"(?:->\s*(?P<returns>.+))?"),
    "go": (r"func (?P<name>\w+)", r"(?P<returns>.*)"),
    "js": (r"function (?P<name>\w+)", r""),
    "ts": (r"function (?P<name>\w+)", r".*"),
    "php": (r"function (?P<name>\w+)", r""),
}


def signature(language: str, prompt: str) -> Signature:
    """What the last line of a prompt declares."""
    before, _, line = prompt.rstrip().rpartition("\n")
    start, _, rest = line.strip().partition("(")
    place = _closing(rest)
    parameters, after = rest[:place], rest[place + 1 :].strip()
    heads = [re.fullmatch(head, text) for head, text in zip(_HEADS[language], (start, after[:-1].strip()), strict=True)]
    if place < 0 or not after.endswith("{") or None in heads:
        raise NoSignature(f"the prompt does not end with the head of a function: {line.strip()[:100]!r}")
    found = {name: text or "" for head in heads if head is not None for name, text in head.groupdict().items()}
    names = []
    for parameter in split_parameters(parameters):
        first = language in ("rs", "go", "ts")  # the name stands before its type
        word = re.search(r"^(?:mut\s+)?(\w+)" if first else r"(\w+)$", parameter.strip())
        if word is None:
            raise NoSignature(f"cannot read the parameter {parameter.strip()!r} of {found['name']}")
        names.append(word[1])
    return Signature(found["name"], found.get("returns", ""), parameters, ", ".join(names), before + "\n", line)


def _closing(text: str) -> int:
    """Where the bracket is closed that was opened before the text."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    return -1


def split_parameters(parameters: str) -> list[str]:
    """At the commas that are not inside brackets."""
    parts, depth, current = [], 0, ""
    for character in parameters:
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current] if current.strip() else parts


def masked(secret: str) -> tuple[list[int], list[int]]:
    """Two lists whose exclusive or is the secret: a search of the program's memory for text does not find it."""
    mask = secrets.token_bytes(len(secret))
    return list(mask), [a ^ b for a, b in zip(mask, secret.encode("ascii"), strict=True)]


def cpp_program(sign: Signature, code: str, linkage: str = "") -> str:
    return f"{code}\n{linkage} {sign.returns} {BRIDGE}({sign.parameters}) {{ return {sign.name}({sign.arguments}); }}\n"


def cpp_tests(sign: Signature, tests: str, secret: str) -> str:
    mask, rest = masked(secret)
    body = without_closing(tests).replace("int main()", "static void ebft_tests()", 1)
    return f"""{sign.before}
#include <unistd.h>
extern "C" {sign.returns} {BRIDGE}({sign.parameters});
static {sign.returns} {sign.name}({sign.parameters}) {{ return {BRIDGE}({sign.arguments}); }}
static volatile int ebft_failed = 0;
#undef assert
#define assert(...) do {{ if (!(__VA_ARGS__)) {{ ebft_failed = 1; __builtin_trap(); }} }} while (0)
{body}
int main() {{
    ebft_tests();
    static const volatile unsigned char a[] = {{{", ".join(map(str, mask))}}};
    static const volatile unsigned char b[] = {{{", ".join(map(str, rest))}}};
    unsigned char secret[sizeof(a)];
    for (unsigned i = 0; i < sizeof(a); i++) secret[i] = a[i] ^ b[i];
    fflush(stdout);
    if (!ebft_failed && write(1, secret, sizeof(a)) < 0) return 1;
    return ebft_failed;
}}
"""


def rs_program(sign: Signature, code: str) -> str:
    returns = f" -> {sign.returns}" if sign.returns else ""
    return f"{code}\npub fn {BRIDGE}({sign.parameters}){returns} {{ {sign.name}({sign.arguments}) }}\n"


def rs_tests(sign: Signature, tests: str, secret: str) -> str:
    mask, rest = masked(secret)
    returns = f" -> {sign.returns}" if sign.returns else ""
    body = without_closing(tests).replace("fn main()", "fn ebft_tests()", 1)
    return f"""{sign.before}
extern crate candidate;
fn {sign.name}({sign.parameters}){returns} {{ candidate::{BRIDGE}({sign.arguments}) }}
{body}
fn main() {{
    ebft_tests();
    let a: [u8; {len(mask)}] = {mask};
    let b: [u8; {len(mask)}] = {rest};
    let secret: Vec<u8> = a.iter().zip(b.iter()).map(|(x, y)| x ^ y).collect();
    println!("\\n{{}}", String::from_utf8(secret).unwrap());
}}
"""


_JAVA_NAMES = {
    "java.util": "ArrayList List HashMap Map Optional Arrays Collections HashSet Set",
    "java.lang": "String Long Object Float Double Boolean Integer Math System AssertionError Byte Character",
    "org.javatuples": "Tuple Unit Pair Triplet Quartet Quintet",
}
JAVA_IMPORTS = [f"{package}.{name}" for package, names in _JAVA_NAMES.items() for name in names.split()]
_JAVA_PRIMITIVES = ("long", "int", "boolean", "float", "double", "char", "byte", "short")


def java_tests(sign: Signature, tests: str, secret: str) -> str:
    mask, rest = masked(secret)
    imports = "".join(f"import {name};\n" for name in JAVA_IMPORTS)  # by name: before classes of the program
    imports += "".join(line + "\n" for line in sign.before.split("\n") if line.startswith("import "))
    call = f"Problem.{sign.name}({sign.arguments})"
    if sign.returns not in _JAVA_PRIMITIVES:
        call = f"({sign.returns}) plain({call})"
    body = re.sub(r"^(\s*)assert\(", r"\1check(", without_closing(tests), flags=re.MULTILINE)
    body = body.rstrip().removesuffix("}").replace("public static void main(String[] args)", "static void tests()", 1)
    return f"""{imports}
@SuppressWarnings("unchecked")
final class EbftTests {{
    private static boolean failed = false;
    private static void check(boolean passed) {{
        if (!passed) {{ failed = true; throw new AssertionError(); }}
    }}
    // A subclass of a list could claim to equal anything; what is compared is made here.
    private static Object plain(Object value) {{
        if (value instanceof List) {{
            ArrayList<Object> copy = new ArrayList<Object>();
            for (Object item : ((List<Object>) value).toArray()) copy.add(plain(item));
            return copy;
        }}
        if (value instanceof Map) {{
            HashMap<Object, Object> copy = new HashMap<Object, Object>();
            for (Map.Entry<Object, Object> e : ((Map<Object, Object>) value).entrySet())
                copy.put(plain(e.getKey()), plain(e.getValue()));
            return copy;
        }}
        if (value instanceof Optional) {{
            Optional<Object> found = (Optional<Object>) value;
            return found.isPresent() ? Optional.of(plain(found.get())) : found;
        }}
        if (value instanceof Pair) {{
            Pair<Object, Object> pair = (Pair<Object, Object>) value;
            return Pair.with(plain(pair.getValue0()), plain(pair.getValue1()));
        }}
        if (value instanceof Triplet) {{
            Triplet<Object, Object, Object> three = (Triplet<Object, Object, Object>) value;
            return Triplet.with(plain(three.getValue0()), plain(three.getValue1()), plain(three.getValue2()));
        }}
        if (value != null && !value.getClass().getName().startsWith("java.lang.")) throw new AssertionError();
        return value;
    }}
    private static {sign.returns} {sign.name}({sign.parameters}) {{ return {call}; }}
    {body}
    public static void main(String[] args) throws java.lang.Throwable {{
        tests();
        int[] a = {{{", ".join(map(str, mask))}}};
        int[] b = {{{", ".join(map(str, rest))}}};
        byte[] secret = new byte[a.length];
        for (int i = 0; i < a.length; i++) secret[i] = (byte) (a[i] ^ b[i]);
        if (failed) System.exit(1);
        System.out.flush();
        new java.io.FileOutputStream(java.io.FileDescriptor.out).write(secret);
        java.lang.Runtime.getRuntime().halt(0);
    }}
}}
"""


def cs_tests(sign: Signature, tests: str, secret: str) -> str:
    mask, rest = masked(secret)
    using = "".join(line + "\n" for line in sign.before.split("\n") if line.startswith("using "))
    call = f"ebft::Problem.{sign.name}({sign.arguments})"
    if re.match(r"(List|Dictionary)<", sign.returns):
        call = f"Plain({call})"
    body = without_closing(tests).replace("Debug.Assert(", "Check(").rstrip().removesuffix("}")
    body = body.replace("public static void Main(string[] args)", "static void Tests()", 1)
    return f"""extern alias ebft;
{using}
static class EbftTests {{
    static bool failed = false;
    static void Check(bool passed) {{ if (!passed) {{ failed = true; throw new Exception("a test failed"); }} }}
    // A subclass could claim to equal anything; what is compared is made here.
    static List<T> Plain<T>(List<T> value) {{ return value == null ? null : new List<T>(value.ToArray()); }}
    static Dictionary<K, V> Plain<K, V>(Dictionary<K, V> value) {{
        return value == null ? null : new Dictionary<K, V>(value);
    }}
    static {sign.returns} {sign.name}({sign.parameters}) {{ return {call}; }}
    {body}
    public static void Main() {{
        Tests();
        int[] a = {{{", ".join(map(str, mask))}}};
        int[] b = {{{", ".join(map(str, rest))}}};
        byte[] secret = new byte[a.Length];
        for (int i = 0; i < a.Length; i++) secret[i] = (byte) (a[i] ^ b[i]);
        if (failed) Environment.Exit(1);
        var output = Console.OpenStandardOutput();
        output.Write(secret, 0, secret.Length);
        output.Flush();
    }}
}}
"""


def go_program(sign: Signature, code: str) -> str:
    """The program's file; imports that the prompt has for the tests' sake are used here, or Go would refuse them."""
    code = re.sub(r"^package \w+", "package candidate", code, count=1, flags=re.MULTILINE)
    uses = {"testing": "var _ testing.TB", "fmt": "var _ = fmt.Sprint"}
    used = "".join(
        f"{use}\n" for name, use in uses.items() if re.search(rf'^\s*(import\s+)?"{name}"', code, re.MULTILINE)
    )
    call = f"{sign.name}({sign.arguments})"
    gives = "return " if sign.returns else ""
    return f"{code}\n{used}func EbftBridge({sign.parameters}) {sign.returns} {{ {gives}{call} }}\n"


def go_tests(sign: Signature, tests: str, secret: str) -> str:
    mask, rest = masked(secret)
    name = re.search(r"func (Test\w+)\(t \*testing\.T\)", tests)
    if name is None:
        raise NoSignature("the tests have no function Test...(t *testing.T)")
    gives = "return " if sign.returns else ""
    numbers = [", ".join(map(str, part)) for part in (mask, rest)]
    return f"""package main

import (
    "fmt"
    "os"
    candidate "box/candidate"
)

type ebftT struct {{ failed bool }}
func (t *ebftT) Run(name string, test func(*ebftT)) bool {{ test(t); return !t.failed }}
func (t *ebftT) Errorf(format string, values ...interface{{}}) {{ t.failed = true }}
func (t *ebftT) Fatalf(format string, values ...interface{{}}) {{ t.failed = true; os.Exit(1) }}

func {sign.name}({sign.parameters}) {sign.returns} {{ {gives}candidate.EbftBridge({sign.arguments}) }}

{tests.replace("*testing.T", "*ebftT")}

func main() {{
    t := &ebftT{{}}
    {name[1]}(t)
    if t.failed {{ os.Exit(1) }}
    a, b := []byte{{{numbers[0]}}}, []byte{{{numbers[1]}}}
    for i := range a {{ a[i] ^= b[i] }}
    os.Stdout.Write(a)
    _ = fmt.Sprint
}}
"""


def without_closing(tests: str) -> str:
    """Tests that close the function of the prompt begin with its bracket."""
    return tests.lstrip().removeprefix("}")
