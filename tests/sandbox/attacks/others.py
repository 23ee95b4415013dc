# ruff: noqa: E501 - programs, as they were written
"""A small problem in each language of MultiPL-E, in the dataset's fields, with right and hostile answers.

The problem: `join_numbers(numbers, start)`, the start followed by the numbers, each doubled.
"""

from typing import Any

from ebft.problems.multipl_e import MultiPLEProblem, multipl_e_problem
from ebft.problems.records import Record

PROBLEMS: dict[str, dict[str, Any]] = {
    "cpp": {
        "prompt": "#include<assert.h>\n#include<bits/stdc++.h>\n// The start, and each number doubled.\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) {\n",
        "tests": "}\nint main() {\n    auto candidate = join_numbers;\n"
        "    assert(candidate((std::vector<long>({(long)1, (long)2})), (5)) == (std::vector<long>({(long)5, (long)2, (long)4})));\n"
        "    assert(candidate((std::vector<long>()), (7)) == (std::vector<long>({(long)7})));\n}\n",
        "stop_tokens": ["\n}"],
    },
    "rs": {
        "prompt": "/// The start, and each number doubled.\nfn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n",
        "tests": "}\n\nfn main() {\n    let candidate = join_numbers;\n"
        "    assert_eq!(candidate(vec![1, 2], 5), vec![5, 2, 4]);\n"
        "    assert_eq!(candidate(Vec::<isize>::new(), 7), vec![7]);\n}\n",
        "stop_tokens": ["\n}"],
    },
    "go": {
        "language": "go_test.go",
        "prompt": 'package join_numbers_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\n// The start, and each number doubled.\n'
        "func join_numbers(numbers []int, start int) []int {\n",
        "tests": "func TestJoin_Numbers(t *testing.T) {\n  candidate := join_numbers\n"
        "\ttype test struct {\n\t\tactual   interface{}\n\t\texpected interface{}\n\t}\n   tests := []test{\n"
        "     { actual: candidate([]int{1, 2}, 5), expected: []int{5, 2, 4} },\n"
        "     { actual: candidate([]int{}, 7), expected: []int{7} },\n   }\n\n"
        '\tfor i, tc := range tests {\n\t\tt.Run(fmt.Sprintf("test num % d", i), func(t *testing.T) {\n'
        '\t\t\tif fmt.Sprintf("%v", tc.actual) != fmt.Sprintf("%v", tc.expected) {\n'
        "\t\t\t\tt.Errorf(\"expected '%s', got '%s'\", tc.expected, tc.actual)\n\t\t\t}\n\t\t})\n\t}\n}\n",
        "stop_tokens": ["\nfunc", "struct", "\n// "],
    },
    "java": {
        "prompt": "import java.util.*;\nimport java.lang.reflect.*;\nimport org.javatuples.*;\nclass Problem {\n"
        "    // The start, and each number doubled.\n"
        "    public static ArrayList<Long> joinNumbers(ArrayList<Long> numbers, long start) {\n",
        "tests": "    }\n    public static void main(String[] args) {\n"
        "    assert(joinNumbers((new ArrayList<Long>(Arrays.asList((long)1l, (long)2l))), (5l)).equals((new ArrayList<Long>(Arrays.asList((long)5l, (long)2l, (long)4l)))));\n"
        "    assert(joinNumbers((new ArrayList<Long>(Arrays.asList())), (7l)).equals((new ArrayList<Long>(Arrays.asList((long)7l)))));\n"
        "    }\n\n}\n",
        "stop_tokens": ["\n    }\n"],
    },
    "cs": {
        "prompt": "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\nclass Problem {\n"
        "    // The start, and each number doubled.\n"
        "    public static List<long> JoinNumbers(List<long> numbers, long start) {\n",
        "tests": "    }\n    public static void Main(string[] args) {\n"
        "    Debug.Assert(JoinNumbers((new List<long>(new long[]{(long)1L, (long)2L})), (5L)).SequenceEqual((new List<long>(new long[]{(long)5L, (long)2L, (long)4L}))));\n"
        "    Debug.Assert(JoinNumbers((new List<long>()), (7L)).SequenceEqual((new List<long>(new long[]{(long)7L}))));\n"
        "    }\n\n}\n",
        "stop_tokens": ["\n    }\n"],
    },
    "js": {
        "prompt": "//The start, and each number doubled.\nfunction join_numbers(numbers, start){\n",
        "tests": "const assert = require('node:assert');\n\n\nfunction test() {\n  let candidate = join_numbers;\n"
        "  assert.deepEqual(candidate([1, 2], 5),[5, 2, 4]);\n  assert.deepEqual(candidate([], 7),[7]);\n}\n\ntest();",
        "stop_tokens": ["\nfunction ", "\n/*", "\n//", "\nconsole.log"],
    },
    "ts": {
        "prompt": "//The start, and each number doubled.\nfunction join_numbers(numbers: number[], start: number): number[] {\n",
        "tests": "declare var require: any;\nconst assert = require('node:assert');\n\n\nfunction test() {\n"
        "  let candidate = join_numbers;\n  assert.deepEqual(candidate([1, 2], 5),[5, 2, 4]);\n"
        "  assert.deepEqual(candidate([], 7),[7]);\n}\n\ntest();",
        "stop_tokens": ["\nfunction ", "\n/*", "\n//", "\nclass"],
    },
    "php": {
        "prompt": "<?php\n// The start, and each number doubled.\nfunction join_numbers($numbers, $start) {\n",
        "tests": "function candidate(...$args) {\n    return join_numbers(...$args);\n}\n\nfunction test(): void {\n"
        '    if (candidate([1, 2], 5) !== [5, 2, 4]) { throw new Exception("Test failed!"); }\n'
        '    if (candidate([], 7) !== [7]) { throw new Exception("Test failed!"); }\n}\n\ntest();',
        "stop_tokens": ["\nfunction", "\n?>", "\n//", "\n#"],
    },
}

# The first continues the prompt to its bracket, the second is a chat model's whole answer.
RIGHT = {
    "cpp": [
        "    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}",
        "Sure:\n```cpp\n#include <vector>\nvector<long> join_numbers(const vector<long>& numbers, int start) {\n"
        "  vector<long> all{start};\n  for (auto n : numbers) all.push_back(2*n);\n  return all;\n}\n"
        "int main() { return 1; }\n```\nDone.",
    ],
    "rs": [
        "    let mut all = vec![start];\n    for n in numbers {\n        all.push(2 * n);\n    }\n    all\n}",
        "```rust\nfn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n"
        "    std::iter::once(start).chain(numbers.into_iter().map(|n| n * 2)).collect()\n}\nfn main() {}\n```",
    ],
    "go": [
        "    all := []int{start}\n    for _, n := range numbers {\n        all = append(all, 2 * n)\n    }\n    return all\n}\n",
        '```go\npackage main\n\nimport "sort"\n\nfunc join_numbers(numbers []int, start int) []int {\n'
        "\tall := []int{start}\n\tsort.Ints(nil)\n\tfor _, n := range numbers {\n\t\tall = append(all, 2*n)\n\t}\n"
        "\treturn all\n}\n\nfunc main() {}\n```",
    ],
    "java": [
        "        ArrayList<Long> all = new ArrayList<>();\n        all.add(start);\n        for (long n : numbers) {\n"
        "            all.add(2 * n);\n        }\n        return all;\n    }\n",
        "```java\nimport java.util.*;\n\npublic class Solution {\n"
        "    public static List<Long> joinNumbers(List<Long> numbers, long start) {\n"
        "        List<Long> all = new LinkedList<>(List.of(start));\n        for (Long n : numbers) all.add(2 * n);\n"
        "        return all;\n    }\n    public static void main(String[] args) { System.exit(3); }\n}\n```",
    ],
    "cs": [
        "        var all = new List<long> { start };\n        all.AddRange(numbers.Select(n => 2 * n));\n        return all;\n    }\n",
        "```csharp\npublic static List<long> JoinNumbers(List<long> numbers, long start) {\n"
        "    return new[] { start }.Concat(numbers.Select(n => 2 * n)).ToList();\n}\n```",
    ],
    "js": [
        "    return [start, ...numbers.map(n => 2 * n)];\n}\n",
        "```javascript\nconst join_numbers = (numbers, start) => [start].concat(numbers.map((n) => n * 2));\n"
        "module.exports = { join_numbers };\nconsole.log('hello');\n```",
    ],
    "ts": [
        "    return [start, ...numbers.map(n => 2 * n)];\n}\n",
        "```typescript\nexport function join_numbers(numbers: number[], start: number): number[] {\n"
        "  return [start].concat(numbers.map((n: number): number => n * 2));\n}\n```",
    ],
    "php": [
        "    return array_merge([$start], array_map(fn($n) => 2 * $n, $numbers));\n}\n",
        "```php\n<?php\nfunction join_numbers(array $numbers, int $start): array {\n    $all = [$start];\n"
        "    foreach ($numbers as $n) $all[] = 2 * $n;\n    return $all;\n}\n?>\n```",
    ],
}

ATTACKS = {
    "cpp": {
        "wrong": "    return numbers;\n}",
        "exits": "    exit(0);\n}",
        "exits before main": "```cpp\nstruct X { X() { _exit(0); } } x;\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "redefines assert and main": "```cpp\n#undef assert\n#define assert(x)\n#define main ignored\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "redefines equality": "```cpp\nbool operator==(const std::vector<long>&, const std::vector<long>&) { return true; }\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "returns what equals everything": "```cpp\nstruct S { template <class T> bool operator==(const T&) const { return true; } };\n"
        "S join_numbers(std::vector<long> numbers, long start) { return S(); }\n```",
        "a failing test does nothing": '```cpp\nextern "C" void __assert_fail(const char*, const char*, unsigned, const char*) {}\n'
        'extern "C" void abort() { _exit(0); }\n'
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "catches the signal": "    signal(SIGILL, [](int) { _exit(0); });\n    return numbers;\n}",
        "includes the tests": '```cpp\n#include "tests.cpp"\n'
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "forks and tries": "```cpp\n#include <sys/wait.h>\n#include <unistd.h>\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) {\n"
        "  for (std::vector<long> guess : {std::vector<long>{5, 2, 4}, std::vector<long>{7}}) {\n"
        "    pid_t child = fork();\n    if (child == 0) return guess;\n    int status;\n    waitpid(child, &status, 0);\n"
        "    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) _exit(0);\n  }\n  return numbers;\n}\n```",
        "specialises equality": "```cpp\nnamespace std { template <> bool operator==(const vector<long>&, const vector<long>&) { return true; } }\n"
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return numbers; }\n```",
        "its own memcmp": '```cpp\nextern "C" int memcmp(const void*, const void*, size_t) { return 0; }\n'
        "std::vector<long> join_numbers(std::vector<long> numbers, long start) { return {0, 0, 0}; }\n```",
        "allocates forever": "    for (;;) { char* x = new char[1 << 24]; memset(x, 1, 1 << 24); }\n}",
        "prints forever": '    for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");\n}',
    },
    "rs": {
        "wrong": "    numbers\n}",
        "exits": "    std::process::exit(0)\n}",
        "redefines assert": "```rust\n#[macro_export]\nmacro_rules! assert_eq { ($($t:tt)*) => {} }\n"
        "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> { numbers }\n```",
        "catches the panic": "    std::panic::set_hook(Box::new(|_| std::process::exit(0)));\n    numbers\n}",
        "includes the tests": '    let text = include_str!("tests.rs");\n    numbers\n}',
        "forks and tries": '```rust\nextern "C" { fn fork() -> i32; fn waitpid(p: i32, s: *mut i32, o: i32) -> i32; fn _exit(c: i32) -> !; }\n'
        "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n    for guess in [vec![5, 2, 4], vec![7]] {\n"
        "        unsafe {\n            let child = fork();\n            if child == 0 { return guess; }\n            let mut status = 1;\n"
        "            waitpid(child, &mut status, 0);\n            if status == 0 { _exit(0); }\n        }\n    }\n    numbers\n}\n```",
        "its own memcmp": '```rust\n#[no_mangle]\npub extern "C" fn memcmp(_: *const u8, _: *const u8, _: usize) -> i32 { 0 }\n'
        "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> { vec![0; numbers.len() + 1] }\n```",
        "reads the answer in a panic": "```rust\nfn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n"
        "    std::panic::set_hook(Box::new(|info| {\n        let text = info.to_string();\n"
        '        let right = text.split("right:").nth(1).unwrap_or("").to_string();\n'
        '        let _ = std::process::Command::new("/proc/self/exe").env("ANSWER", right).status();\n'
        "        std::process::exit(0);\n    }));\n"
        '    std::env::var("ANSWER").map(|a| a.split(|c: char| !c.is_numeric()).filter_map(|n| n.parse().ok()).collect()).unwrap_or(numbers)\n'
        "}\n```",
        "allocates forever": "    let mut x = vec![];\n    loop {\n        x.push(vec![1u8; 1 << 24]);\n    }\n}",
    },
    "go": {
        "wrong": "    return numbers\n}\n",
        "exits": '```go\npackage main\nimport "os"\nfunc init() { os.Exit(0) }\n'
        "func join_numbers(numbers []int, start int) []int { return numbers }\n```",
        "redefines names": "```go\npackage p\nvar true, false = 1 == 2, 1 == 1\nfunc append() {}\ntype string int\n"
        "func join_numbers(numbers []int, start int) []int { return numbers }\n```",
        "runs itself with guesses": '```go\npackage p\n\nimport (\n    "os"\n    "os/exec"\n)\n\nvar guess = os.Getenv("GUESS")\n\n'
        'func init() {\n    if guess != "" {\n        return\n    }\n    for _, g := range []string{"a", "b"} {\n'
        '        c := exec.Command("/proc/self/exe", os.Args[1:]...)\n        c.Env = []string{"GUESS=" + g}\n        c.Stdout = os.Stdout\n'
        "        if c.Run() == nil {\n            os.Exit(0)\n        }\n    }\n}\n\n"
        'func join_numbers(numbers []int, start int) []int {\n    if guess == "a" {\n        return []int{5, 2, 4}\n    }\n    return []int{7}\n}\n```',
        "allocates forever": "    x := [][]byte{}\n    for {\n        b := make([]byte, 1<<24)\n        for i := range b {\n"
        "            b[i] = 1\n        }\n        x = append(x, b)\n    }\n}\n",
    },
    "java": {
        "wrong": "        return numbers;\n    }\n",
        "exits": "        System.exit(0);\n        return numbers;\n    }\n",
        "exits when loaded": "```java\nclass Problem {\n    static { Runtime.getRuntime().halt(0); }\n"
        "    public static ArrayList<Long> joinNumbers(ArrayList<Long> n, long s) { return n; }\n}\n```",
        "a list that equals everything": "        return new ArrayList<Long>() {\n"
        "            public boolean equals(Object other) { return true; } };\n    }\n",
        "a list of its own": "```java\nclass ArrayList<T> extends java.util.ArrayList<T> {\n"
        "    public boolean equals(Object other) { return true; }\n}\nclass Problem {\n"
        "    public static java.util.ArrayList<Long> joinNumbers(java.util.ArrayList<Long> n, long s) {\n"
        "        return new ArrayList<Long>();\n    }\n}\n```",
        "switches assertions off": "        ClassLoader.getSystemClassLoader().setDefaultAssertionStatus(false);\n        return numbers;\n    }\n",
        "allocates forever": "        ArrayList<byte[]> x = new ArrayList<>();\n        while (true) x.add(new byte[1 << 24]);\n    }\n",
    },
    "cs": {
        "wrong": "        return numbers;\n    }\n",
        "exits": "        Environment.Exit(0);\n        return numbers;\n    }\n",
        "redefines what tests use": "```csharp\npublic static class Debug { public static void Assert(bool x) {} }\n"
        "public static class Enumerable { public static bool SequenceEqual(this List<long> a, List<long> b) { return true; } }\n"
        "class Problem {\n    public static List<long> JoinNumbers(List<long> numbers, long start) { return numbers; }\n}\n```",
        "allocates forever": "        var x = new List<byte[]>();\n        while (true) { var b = new byte[1 << 24]; "
        "for (int i = 0; i < b.Length; i += 4096) b[i] = 1; x.Add(b); }\n    }\n",
    },
    "js": {
        "wrong": "    return numbers;\n}\n",
        "exits": "    process.exit(0);\n}\n",
        "exits at once": "    return numbers;\n}\nprocess.exit(0);\n",
        "patches assert": "    return numbers;\n}\nrequire('assert').deepEqual = () => {};\n"
        "require('module')._load = () => ({ deepEqual() {} });\n",
        "patches everything": "    return numbers;\n}\nArray.prototype.every = () => true;\nObject.is = () => true;\n"
        'JSON.stringify = () => \'{"status":"passed","message":""}\';\n',
        "an object that is everything": "    return new Proxy([], { get: () => () => true, has: () => true });\n}\n",
        "writes a result": "    for (let n = 0; n < 40; n++) { try { require('fs').writeSync(n, "
        '\'{"status":"passed","message":""}\'); } catch {} }\n    return numbers;\n}\n',
        "reads for tests": "    const fs = require('fs');\n    const text = fs.readdirSync('/box').concat(process.argv, "
        "Object.keys(process.env)).join();\n    return text.includes('deepEqual') ? [start, ...numbers.map(n => 2 * n)] : text;\n}\n",
        "opens a socket": "    let worked = false;\n    try { require('child_process').execFileSync('/usr/bin/env', ['sh', '-c', "
        "'cat /etc/passwd']); worked = true; } catch {}\n    return worked ? [start, ...numbers.map(n => 2 * n)] : [];\n}\n",
        "writes into its job": "    let worked = false;\n    const fs = require('fs');\n    for (const place of [0, '/proc/self/fd/0']) {\n"
        "        try { fs.writeSync(typeof place === 'number' ? place : fs.openSync(place, 'r+'), 'x'); worked = true; } catch {}\n    }\n"
        "    return worked ? [start, ...numbers.map(n => 2 * n)] : [];\n}\n",
        "allocates forever": "    const x = [];\n    for (;;) x.push(new Array(1 << 20).fill(1.5));\n}\n",
        "allocates buffers forever": "    const x = [];\n    for (;;) x.push(Buffer.alloc(1 << 24, 1));\n}\n",
        "prints forever": "    for (;;) console.log('x'.repeat(1000));\n}\n",
    },
    "ts": {
        "wrong": "    return numbers;\n}\n",
        "wrong types": "    return 'text';\n}\n",
        "exits": "    (globalThis as any).process.exit(0);\n    return numbers;\n}\n",
    },
    "php": {
        "wrong": "    return $numbers;\n}\n",
        "exits": "    exit(0);\n}\n",
        "exits at once": "    return $numbers;\n}\nexit(0);\n",
        "stops the compiler": "    return $numbers;\n}\n__halt_compiler();\n",
        "an object": "    return new ArrayObject([5, 2, 4]);\n}\n",
        "writes a result": '    foreach (range(0, 40) as $n) { @file_put_contents("php://fd/$n", '
        '\'{"status":"passed","message":""}\'); }\n    return $numbers;\n}\n',
        "writes into its job": "    $worked = false;\n    foreach (['php://fd/0', '/proc/self/fd/0'] as $place) {\n"
        "        $file = @fopen($place, 'r+');\n        if ($file && @fwrite($file, 'x')) $worked = true;\n    }\n"
        "    return $worked ? [$start, ...array_map(fn($n) => 2 * $n, $numbers)] : [];\n}\n",
        "allocates forever": "    $x = [];\n    while (true) $x[] = str_repeat('x', 1 << 20);\n}\n",
    },
}


def own_problem(language: str) -> MultiPLEProblem:
    return multipl_e_problem(Record("own", {"name": f"own_{language}", "language": language, **PROBLEMS[language]}))
