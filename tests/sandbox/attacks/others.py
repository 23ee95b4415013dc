# ruff: noqa: E501 - programs, as they were written
"""Hostile answers to `join_numbers(numbers, start)`, the start and each number doubled, in the languages of MultiPL-E.

"exits", "exits early" and "prints" try what proves nothing; those named "starts a process" would be right if they could.
"""

CPP = "std::vector<long> join_numbers(std::vector<long> numbers, long start)"
RS = "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize>"
GO = "func join_numbers(numbers []int, start int) []int"
JAVA = "public static ArrayList<Long> joinNumbers(ArrayList<Long> numbers, long start)"
JS_RIGHT, PHP_RIGHT = "[start, ...numbers.map(n => 2 * n)]", "[$start, ...array_map(fn($n) => 2 * $n, $numbers)]"

ATTACKS = {
    "cpp": {
        "wrong": "    return numbers;\n}",
        "exits": "    exit(0);\n}",
        "exits early": f"```cpp\nstruct X {{ X() {{ _exit(0); }} }} x;\n{CPP} {{ return numbers; }}\n```",
        "prints": '    puts("passed 0123456789abcdef");\n    fflush(stdout);\n    _exit(0);\n}',
        "redefines assert and main": f"```cpp\n#undef assert\n#define assert(x)\n#define main ignored\n{CPP} {{ return numbers; }}\n```",
        "a failing test does nothing": f'```cpp\nextern "C" void __assert_fail(const char*, const char*, unsigned, const char*) {{}}\nextern "C" void abort() {{ _exit(0); }}\n{CPP} {{ return numbers; }}\n```',
        "catches the signal": "    signal(SIGILL, [](int) { _exit(0); });\n    return numbers;\n}",
        "starts a process": f"```cpp\n#include <sys/wait.h>\n#include <unistd.h>\n{CPP} {{\n  pid_t child = fork();\n  if (child == 0) _exit(0);\n  if (child < 0) return {{}};\n  std::vector<long> all{{start}};\n  for (long n : numbers) all.push_back(2 * n);\n  return all;\n}}\n```",
        "reads itself": "    std::vector<long> all{start};\n    for (long n : numbers) all.push_back(2 * n);\n    return fopen(\"/proc/self/exe\", \"r\") || fopen(\"/box/program\", \"r\") ? all : numbers;\n}",
        "allocates forever": "    for (;;) { char* x = new char[1 << 24]; memset(x, 1, 1 << 24); }\n}",
    },
    "rs": {
        "wrong": "    numbers\n}",
        "exits": "    std::process::exit(0)\n}",
        "prints": '    println!("passed 0123456789abcdef");\n    std::process::exit(0)\n}',
        "redefines assert": f"```rust\n#[macro_export]\nmacro_rules! assert_eq {{ ($($t:tt)*) => {{}} }}\n{RS} {{ numbers }}\n```",
        "catches the panic": "    std::panic::set_hook(Box::new(|_| std::process::exit(0)));\n    numbers\n}",
        "starts a process": f'```rust\n{RS} {{\n    std::process::Command::new("/usr/bin/true").status().unwrap();\n    std::iter::once(start).chain(numbers.into_iter().map(|n| n * 2)).collect()\n}}\n```',
    },
    "go": {
        "wrong": "    return numbers\n}\n",
        "exits": f'```go\nimport "os"\n\n{GO} {{ os.Exit(0); return numbers }}\n```',
        "exits early": f'```go\npackage main\nimport "os"\nfunc init() {{ os.Exit(0) }}\n{GO} {{ return numbers }}\n```',
        "prints": f'```go\nimport "os"\n\n{GO} {{ os.Stdout.WriteString("passed 0123456789abcdef"); os.Exit(0); return numbers }}\n```',
        "redefines names": f"```go\npackage p\nvar true, false = 1 == 2, 1 == 1\nfunc append() {{}}\nfunc len() {{}}\n{GO} {{ return numbers }}\n```",
        "starts a process": f'```go\npackage p\nimport "os/exec"\n{GO} {{\n    if exec.Command("/usr/bin/true").Run() != nil {{ return nil }}\n    all := []int{{start}}\n    for _, n := range numbers {{ all = append(all, 2*n) }}\n    return all\n}}\n```',
    },
    "java": {
        "wrong": "        return numbers;\n    }\n",
        "exits": "        System.exit(0);\n        return numbers;\n    }\n",
        "exits early": f"```java\nclass Problem {{\n    static {{ Runtime.getRuntime().halt(0); }}\n    {JAVA} {{ return numbers; }}\n}}\n```",
        "prints": '        System.out.print("passed 0123456789abcdef");\n        System.exit(0);\n        return numbers;\n    }\n',
        "switches assertions off": "        ClassLoader.getSystemClassLoader().setDefaultAssertionStatus(false);\n        return numbers;\n    }\n",
        "starts a process": '        try { if (new ProcessBuilder("/usr/bin/true").start().waitFor() != 0) return null; } catch (Exception e) { return null; }\n        return new ArrayList<Long>(List.of(start, 2L, 4L).subList(0, 1 + numbers.size()));\n    }\n',
    },
    "cs": {
        "wrong": "        return numbers;\n    }\n",
        "exits": "        Environment.Exit(0);\n        return numbers;\n    }\n",
        "prints": '        Console.Write("passed 0123456789abcdef");\n        Environment.Exit(0);\n        return numbers;\n    }\n',
        "redefines Debug": "```csharp\npublic static class Debug { public static void Assert(bool x) {} }\nclass Problem {\n    public static List<long> JoinNumbers(List<long> numbers, long start) { return numbers; }\n}\n```",
        "starts a process": '        try { var p = Process.Start("/usr/bin/true"); p.WaitForExit(); if (p.ExitCode != 0) return null; } catch (Exception) { return null; }\n        return new[] { start }.Concat(numbers.Select(n => 2 * n)).ToList();\n    }\n',
    },
    "js": {
        "wrong": "    return numbers;\n}\n",
        "exits": "    process.exit(0);\n}\n",
        "exits early": "    return numbers;\n}\nprocess.exit(0);\n",
        "prints": "    for (let n = 0; n < 3; n++) { try { require('fs').writeSync(n, 'passed 0123456789abcdef'); } catch {} }\n    process.reallyExit(0);\n}\n",
        "patches assert": "    return numbers;\n}\nrequire('assert').deepEqual = () => {};\nrequire('module')._load = () => ({ deepEqual() {} });\n",
        "patches everything": "    return numbers;\n}\nArray.prototype.every = () => true;\nObject.is = () => true;\nprocess.on('exit', () => { process.exitCode = 0; });\nprocess.on('unhandledRejection', () => {});\nJSON.stringify = String = () => 'passed';\n",
        "an object that is everything": "    return new Proxy([], { get: () => () => true, has: () => true });\n}\n",
        "reads for tests": "    const fs = require('fs');\n    Error.prepareStackTrace = (error, stack) => stack.map((call) => String(call.getFunction())).join();\n"
        "    let text = fs.readdirSync('/box').concat(process.argv, Object.keys(process.env), new Error().stack).join();\n    try { text += fs.readFileSync(0); text += fs.readFileSync('/proc/self/fd/0'); } catch {}\n"
        f"    return /deepEqual[(]candidate|nonce[\"]:/.test(text) ? {JS_RIGHT} : text;\n}}\n",
        "starts a process": f"    const done = require('child_process').spawnSync('/usr/bin/true');\n    return done.status === 0 ? {JS_RIGHT} : [];\n}}\n",
    },
    "ts": {
        "wrong": "    return numbers;\n}\n",
        "wrong types": "    return 'text';\n}\n",
        "exits": "    (globalThis as any).process.exit(0);\n    return numbers;\n}\n",
    },
    "php": {
        "wrong": "    return $numbers;\n}\n",
        "exits": "    exit(0);\n}\n",
        "exits early": "    return $numbers;\n}\nexit(0);\n",
        "prints": "    foreach (range(0, 3) as $n) { @file_put_contents(\"php://fd/$n\", 'passed 0123456789abcdef'); }\n    exit(0);\n}\n",
        "stops the compiler": "    return $numbers;\n}\n__halt_compiler();\n",
        "an object": "    return new ArrayObject([5, 2, 4]);\n}\n",
        "reads for tests": "    $text = json_encode([$GLOBALS, debug_backtrace(), @file_get_contents('php://fd/0'), @file_get_contents('/proc/self/fd/0')], JSON_PARTIAL_OUTPUT_ON_ERROR);\n"
        f"    return preg_match('/Test failed|\"nonce|ebft_code.:/', $text) ? {PHP_RIGHT} : [];\n}}\n",
        "starts a process": f"    exec('/usr/bin/true', $said, $status);\n    return $status === 0 ? {PHP_RIGHT} : [];\n}}\n",
    },
}  # fmt: skip
