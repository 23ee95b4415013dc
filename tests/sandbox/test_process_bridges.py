# ruff: noqa: E501 - programs, as they were written
"""Values of every kind between tests and program, in two processes; and signatures that have to share one."""

from __future__ import annotations

from typing import Any

import pytest

from ebft.problems.multipl_e import MultiPLEProblem, multipl_e_problem
from ebft.problems.problem import run_tests
from ebft.problems.records import Record
from ebft.sandbox import bridges
from ebft.sandbox.command import Limits
from ebft.sandbox.process_bridges import separable
from tests.sandbox.sandboxed import needs_language, needs_sandbox

LONG = Limits(seconds=30.0)

# A function that gives back what it was given, in another order.
RICH: dict[str, dict[str, str]] = {
    "cpp": {
        "prompt": "#include<assert.h>\n#include<bits/stdc++.h>\nstd::tuple<std::map<std::string,long>, std::optional<float>, std::vector<std::vector<bool>>, std::string> turn(std::string a, std::vector<std::vector<bool>> b, std::optional<float> c, std::map<std::string,long> d) {\n",
        "right": "    return {d, c, b, a};\n}",
        "wrong": '    return {d, c, b, a + "x"};\n}',
        "tests": '}\nint main() {\n    auto candidate = turn;\n    auto m = std::map<std::string,long>({{"k", -5}, {"", 1L << 62}});\n'
        '    assert(candidate((std::string("a\\0é\\n", 5)), (std::vector<std::vector<bool>>({{true, false}, {}})), 0.5f, m) == std::make_tuple(m, std::optional<float>(0.5f), std::vector<std::vector<bool>>({{true, false}, {}}), std::string("a\\0é\\n", 5)));\n'
        "    assert(candidate(std::string(), {}, std::nullopt, {}) == std::make_tuple(std::map<std::string,long>(), std::optional<float>(), std::vector<std::vector<bool>>(), std::string()));\n}\n",
    },
    "rs": {
        "prompt": "use std::collections::HashMap;\n\nfn turn(a: String, b: Vec<Vec<bool>>, c: Option<f64>, d: HashMap<String, isize>) -> (HashMap<String, isize>, Option<f64>, Vec<Vec<bool>>, String) {\n",
        "right": "    (d, c, b, a)\n}",
        "wrong": '    (d, c, b, a + "x")\n}',
        "tests": '}\n\nfn main() {\n    let candidate = turn;\n    let m = HashMap::from([(String::from("k"), -5isize), (String::new(), 1 << 62)]);\n'
        '    assert_eq!(candidate(String::from("aé\\n"), vec![vec![true, false], vec![]], Some(0.5), m.clone()), (m, Some(0.5), vec![vec![true, false], vec![]], String::from("aé\\n")));\n'
        "    assert_eq!(candidate(String::new(), vec![], None, HashMap::new()), (HashMap::new(), None, vec![], String::new()));\n}\n",
    },
    "go": {
        "prompt": 'package turn_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\nfunc turn(a string, b [][]bool, c map[string]float64, d interface{}, e *int) []interface{} {\n',
        "right": "    if e != nil { return []interface{}{d, a, len(b), c[\"k\"], *e} }\n    return []interface{}{d, a, len(b), c[\"k\"], nil}\n}\n",
        "wrong": "    return []interface{}{d, a, len(b)}\n}\n",
        "tests": "func TestTurn(t *testing.T) {\n  candidate := turn\n\ttype test struct {\n\t\tactual   interface{}\n\t\texpected interface{}\n\t}\n   five := 5\n   tests := []test{\n"
        '     { actual: candidate("aé\\n", [][]bool{{true}, nil}, map[string]float64{"k": -0.5}, []interface{}{1, "x", nil, 2.5, map[string]interface{}{"y": true}}, &five), expected: []interface{}{[]interface{}{1, "x", nil, 2.5, map[string]interface{}{"y": true}}, "aé\\n", 2, -0.5, 5} },\n'
        '     { actual: candidate("", nil, nil, nil, nil), expected: []interface{}{nil, "", 0, 0.0, nil} },\n   }\n\n'
        '\tfor i, tc := range tests {\n\t\tt.Run(fmt.Sprintf("test num % d", i), func(t *testing.T) {\n'
        '\t\t\tif fmt.Sprintf("%v", tc.actual) != fmt.Sprintf("%v", tc.expected) {\n\t\t\t\tt.Errorf("expected")\n\t\t\t}\n\t\t})\n\t}\n}\n',
    },
    "java": {
        "prompt": "import java.util.*;\nimport java.lang.reflect.*;\nimport org.javatuples.*;\nclass Problem {\n    public static Pair<HashMap<String,Long>, Optional<Float>> turn(Optional<Float> a, HashMap<String,Long> b, ArrayList<ArrayList<Boolean>> c, boolean d) {\n",
        "right": "        return Pair.with(b, a);\n    }\n",
        "wrong": "        return Pair.with(new HashMap<String,Long>() { public boolean equals(Object o) { return true; } }, a);\n    }\n",
        "tests": "    }\n    public static void main(String[] args) {\n"
        '    assert(turn(Optional.of(0.5f), (new HashMap<String,Long>(Map.of("aé\\n", -5l))), (new ArrayList<ArrayList<Boolean>>(Arrays.asList((ArrayList<Boolean>)new ArrayList<Boolean>(Arrays.asList((boolean)true))))), (true)).equals((Pair.with(new HashMap<String,Long>(Map.of("aé\\n", -5l)), Optional.of(0.5f)))));\n'
        "    assert(turn(Optional.empty(), (new HashMap<String,Long>(Map.of())), (new ArrayList<ArrayList<Boolean>>(Arrays.asList())), (false)).equals((Pair.with(new HashMap<String,Long>(), Optional.empty()))));\n    }\n\n}\n",
    },
    "cs": {
        "prompt": "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\nclass Problem {\n    public static Tuple<string, long> Turn(Nullable<long> a, Dictionary<string,float> b, List<List<bool>> c, string d) {\n",
        "right": '        return Tuple.Create(d, (a ?? 7) + (long)(2 * b.Values.Sum()) + c.Count);\n    }\n',
        # A tuple of its own that equals everything.
        "wrong": "        return new Same();\n    }\n    class Same : Tuple<string, long> {\n        public Same() : base(\"\", 0) {}\n        public override bool Equals(object other) { return true; }\n        public override int GetHashCode() { return 0; }\n    }\n    static void Unused() {\n",
        "tests": "    }\n    public static void Main(string[] args) {\n"
        '    Debug.Assert(Turn(5L, (new Dictionary<string,float>(){{"x", 1.5f}}), (new List<List<bool>>(new List<bool>[]{new List<bool>(new bool[]{true})})), ("aé\\n")).Equals((Tuple.Create("aé\\n", 9L))));\n'
        '    Debug.Assert(Turn(null, (new Dictionary<string,float>()), (new List<List<bool>>()), ("")).Equals((Tuple.Create("", 7L))));\n    }\n\n}\n',
    },
}  # fmt: skip
STOPS = {"cpp": ["\n}"], "rs": ["\n}"], "go": ["\nfunc"], "java": ["\n    }\n"], "cs": ["\n    }\n}"]}


def problem(language: str, fields: dict[str, str]) -> MultiPLEProblem:
    row: dict[str, Any] = {**fields, "name": "turn", "language": language, "stop_tokens": STOPS[language]}
    return multipl_e_problem(Record("own", row))


@needs_sandbox
@pytest.mark.parametrize("language", [pytest.param(name, marks=needs_language(name)) for name in RICH])
def test_values_cross_the_boundary_as_they_are(language: str) -> None:
    rich = problem(language, RICH[language])
    assert separable(language, bridges.signature(language, rich.head))
    outcome = run_tests(rich, RICH[language]["right"], limits=LONG)
    assert outcome.passed, outcome
    outcome = run_tests(rich, RICH[language]["wrong"], limits=LONG)
    assert (outcome.status, outcome.message) == ("failed", "a test failed"), outcome


# A union has no tag: which of its members is set cannot be told from outside.
UNION = {
    "prompt": "#include<assert.h>\n#include<bits/stdc++.h>\nunion Union_long_bool{\n    long f0;\n    bool f1;\n"
    "    Union_long_bool(long _f0) : f0(_f0) {}\n    bool operator==(long f) { return f0 == f; }\n};\n"
    "Union_long_bool turn(long a) {\n",
    "tests": "}\nint main() {\n    auto candidate = turn;\n    assert(candidate((3)) == 6);\n    assert(candidate((4)) == 8);\n}\n",
}
HEAD = "#include <sys/wait.h>\n#include <unistd.h>\nUnion_long_bool turn(long a) {\n"
IN_ONE_PROCESS = {
    "right": (HEAD + "    std::vector<long> kept = {2, 4};\n    return a * kept[0];\n}", "passed"),
    "wrong": (HEAD + "    return a;\n}", "failed"),
    "forks and tries": (
        HEAD + "    for (long guess : {6, 8}) {\n        int status;\n        pid_t child = fork();\n"
        "        if (child == 0) return guess;\n        waitpid(child, &status, 0);\n"
        "        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) _exit(0);\n    }\n    return a;\n}",
        "failed",
    ),
    "runs itself again": (
        HEAD + '    const char* next[] = {"program", "8", nullptr};\n'
        '    execv("/proc/self/exe", (char* const*)next);\n    return a;\n}',
        "failed",
    ),
    "a failing test does nothing": (
        'extern "C" void _exit(int) { for (;;) {} }\nextern "C" int memcmp(const void*, const void*, size_t) { return 0; }\n'
        "Union_long_bool turn(long a) { return a; }",
        "failed",
    ),
}


@needs_sandbox
@needs_language("cpp")
@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_signatures_that_share_a_process(name: str) -> None:
    answer, status = IN_ONE_PROCESS[name]
    one = problem("cpp", UNION)
    assert not separable("cpp", bridges.signature("cpp", one.head))
    outcome = run_tests(one, f"```cpp\n{answer}\n```", limits=LONG)
    assert outcome.status == status, outcome


JAVA = "import java.util.*;\nimport org.javatuples.*;\nclass Problem {\n    public static Object turn(long a) {\n"
JAVA_TESTS = "    }\n    public static void main(String[] args) {\n    assert(turn(3l).equals(6l));\n    }\n\n}\n"
CS = "using System;\nusing System.Diagnostics;\nusing System.Collections.Generic;\nusing System.Linq;\nclass Problem {\n    public static object Turn(long a) {\n"
CS_TESTS = "    }\n    public static void Main(string[] args) {\n    Debug.Assert(Turn(3L).Equals(6L));\n    }\n\n}\n"
RS = "fn turn(a: isize) -> Result<isize, String> {\n"
RS_TESTS = '}\n\nfn main() {\n    let candidate = turn;\n    assert_eq!(candidate(3), Ok(6));\n    assert_eq!("same".to_string(), ["sa", "me"].concat());\n}\n'
# Each answers rightly only if what it tries succeeds.
SHARED: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "java": {
        "right": (JAVA, JAVA_TESTS, "        return 2 * a;\n    }\n", "passed"),
        "wrong": (JAVA, JAVA_TESTS, "        return a;\n    }\n", "failed"),
        "threads": (JAVA, JAVA_TESTS, "        long[] x = new long[1];\n        Thread t = new Thread(() -> x[0] = 2 * a);\n        t.start();\n        try { t.join(); } catch (InterruptedException e) {}\n        return x[0];\n    }\n", "passed"),
        "a process": (JAVA, JAVA_TESTS, "        try { return new ProcessBuilder(\"/usr/bin/true\").start().waitFor() == 0 ? 2 * a : a; } catch (Exception e) { return a; }\n    }\n", "failed"),
    },
    "cs": {
        "right": (CS, CS_TESTS, "        return 2 * a;\n    }\n", "passed"),
        "wrong": (CS, CS_TESTS, "        return a;\n    }\n", "failed"),
        "threads": (CS, CS_TESTS, "        long x = 0;\n        var t = new System.Threading.Thread(() => x = 2 * a);\n        t.Start();\n        t.Join();\n        return x;\n    }\n", "passed"),
        "a process": (CS, CS_TESTS, "        try { var p = Process.Start(\"/usr/bin/true\"); p.WaitForExit(); return p.ExitCode == 0 ? 2 * a : a; } catch (Exception) { return a; }\n    }\n", "failed"),
        "a fork": (CS, CS_TESTS, "        return fork() > 0 ? 2 * a : a;\n    }\n    [System.Runtime.InteropServices.DllImport(\"libc\")] static extern int fork();\n    static void Unused() {\n    }\n", "failed"),
    },
    "rs": {
        "right": (RS, RS_TESTS, "    Ok(2 * a)\n}", "passed"),
        "wrong": (RS, RS_TESTS, "    Ok(a)\n}", "failed"),
        "a memcmp of its own": (RS, RS_TESTS, f"```rust\n#[no_mangle]\npub extern \"C\" fn memcmp(_: *const u8, _: *const u8, _: usize) -> i32 {{ 0 }}\n{RS}    Ok(2 * a)\n}}\n```", "failed"),
    },
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize(
    ("language", "name"),
    [pytest.param(language, name, marks=needs_language(language)) for language in SHARED for name in SHARED[language]],
)
def test_sharing_a_process_starts_no_other(language: str, name: str) -> None:
    prompt, tests, answer, status = SHARED[language][name]
    one = problem(language, {"prompt": prompt, "tests": tests})
    assert not separable(language, bridges.signature(language, one.head))
    outcome = run_tests(one, answer, limits=LONG)
    assert outcome.status == status, outcome
    if name != "a memcmp of its own":
        assert "compile" not in outcome.message
