# ruff: noqa: E501 - programs, as they were written
"""Right answers to the problems of `tests.sandbox.multipl_e`, written by hand: how many of them pass, by language.

    python -m tests.hard.honest [--languages cpp,go] [--workers 2]

The first answer to a problem continues its prompt, as a base model does; a second is what a chat model puts into a
fence. SHAPES are programs that are right and written in a way that a harness may stumble over.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.box import Limits
from tests.hard import options
from tests.sandbox.multipl_e import own_problem

ANSWERS: dict[str, dict[str, list[str]]] = {
    "cpp": {
        "join_numbers": ["    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}",
            "#include <vector>\nvector<long> join_numbers(const vector<long>& numbers, int start) {\n  vector<long> all{start};\n  for (auto n : numbers) all.push_back(2*n);\n  return all;\n}\nint main() { return 1; }"],
        "even_sum": ["    long sum = 0;\n    for (long n : numbers) sum += n;\n    return sum % 2 == 0;\n}\n\nint main() {\n    std::cout << even_sum({1, 2});\n}\n"],
        "backwards": ["    std::reverse(text.begin(), text.end());\n    return text;\n}"],
        "longest": ["    std::string best;\n    for (const auto& word : words)\n        if (word.size() > best.size()) best = word;\n    return best;\n}"],
        "first_above": ["    for (long n : numbers) {\n        if (n > limit) {\n            return n;\n        }\n    }\n    return std::nullopt;\n}"],
        "mean": ["    float sum = 0;\n    for (float v : values) sum += v;\n    return sum / values.size();\n}"],
        "total": ["    long sum = 0;\n    for (auto& name : names) sum += prices[name];\n    return sum;\n}"],
        "matrix_sum": ["    long sum = 0;\n    for (auto& row : rows)\n        for (auto& x : row)\n            sum += x;\n    return sum;\n}"],
    },
    "rs": {
        "join_numbers": ["    let mut all = vec![start];\n    for n in numbers {\n        all.push(2 * n);\n    }\n    all\n}",
            "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n    std::iter::once(start).chain(numbers.into_iter().map(|n| n * 2)).collect()\n}\nfn main() {}"],
        "even_sum": ["    let sum: isize = numbers.iter().sum();\n    sum % 2 == 0\n}\n\nfn main() {\n    println!(\"{}\", even_sum(vec![1]));\n}\n"],
        "backwards": ["    text.chars().rev().collect()\n}"],
        "longest": ["    let mut best = String::new();\n    for word in words {\n        if word.len() > best.len() {\n            best = word;\n        }\n    }\n    best\n}"],
        "first_above": ["    numbers.into_iter().find(|&n| n > limit)\n}"],
        "mean": ["    values.iter().sum::<f64>() / values.len() as f64\n}"],
        "total": ["    let mut sum = 0;\n    for name in names.iter() {\n        if let Some(price) = prices.get(name) {\n            sum += price;\n        }\n    }\n    sum\n}"],
        "matrix_sum": ["    rows.iter().map(|row| row.iter().sum::<isize>()).sum()\n}"],
    },
    "go": {
        "join_numbers": ["    all := []int{start}\n    for _, n := range numbers {\n        all = append(all, 2 * n)\n    }\n    return all\n}\n",
            "package main\n\nimport \"sort\"\n\nfunc join_numbers(numbers []int, start int) []int {\n\tall := []int{start}\n\tsort.Ints(nil)\n\tfor _, n := range numbers {\n\t\tall = append(all, 2*n)\n\t}\n\treturn all\n}\n\nfunc main() {}"],
        "even_sum": ["    sum := 0\n    for _, n := range numbers {\n        sum += n\n    }\n    return sum%2 == 0\n}\n\nfunc main() {\n    fmt.Println(even_sum([]int{1}))\n}\n"],
        "backwards": ["    runes := []rune(text)\n    for i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {\n        runes[i], runes[j] = runes[j], runes[i]\n    }\n    return string(runes)\n}"],
        "longest": ["    best := \"\"\n    for _, word := range words {\n        if len(word) > len(best) {\n            best = word\n        }\n    }\n    return best\n}"],
        "first_above": ["    for _, n := range numbers {\n        if n > limit {\n            return n\n        }\n    }\n    return nil\n}"],
        "mean": ["    sum := 0.0\n    for _, v := range values {\n        sum += v\n    }\n    return sum / float64(len(values))\n}"],
        "total": ["    sum := 0\n    for _, name := range names {\n        sum += prices[name]\n    }\n    return sum\n}"],
        "matrix_sum": ["    sum := 0\n    for _, row := range rows {\n        for _, x := range row {\n            sum += x\n        }\n    }\n    return sum\n}"],
    },
    "java": {
        "join_numbers": ["        ArrayList<Long> all = new ArrayList<>();\n        all.add(start);\n        for (long n : numbers) {\n            all.add(2 * n);\n        }\n        return all;\n    }\n",
            "import java.util.*;\n\npublic class Solution {\n    public static List<Long> joinNumbers(List<Long> numbers, long start) {\n        List<Long> all = new LinkedList<>(List.of(start));\n        for (Long n : numbers) all.add(2 * n);\n        return all;\n    }\n    public static void main(String[] args) { System.exit(3); }\n}"],
        "even_sum": ["        long sum = 0;\n        for (long n : numbers) {\n            sum += n;\n        }\n        return sum % 2 == 0;\n    }\n\n    public static void main(String[] args) {\n        System.out.println(evenSum(new ArrayList<>()));\n    }\n}\n"],
        "backwards": ["        return new StringBuilder(text).reverse().toString();\n    }\n"],
        "longest": ["        String best = \"\";\n        for (String word : words) {\n            if (word.length() > best.length()) best = word;\n        }\n        return best;\n    }\n"],
        "first_above": ["        for (Long n : numbers) {\n            if (n > limit) {\n                return Optional.of(n);\n            }\n        }\n        return Optional.empty();\n    }\n"],
        "mean": ["        float sum = 0;\n        for (float v : values) sum += v;\n        return sum / values.size();\n    }\n"],
        "total": ["        long sum = 0;\n        for (String name : names) {\n            sum += prices.getOrDefault(name, 0L);\n        }\n        return sum;\n    }\n"],
        "matrix_sum": ["        long sum = 0;\n        for (ArrayList<Long> row : rows)\n            for (long x : row)\n                sum += x;\n        return sum;\n    }\n"],
    },
    "cs": {
        "join_numbers": ["        var all = new List<long> { start };\n        all.AddRange(numbers.Select(n => 2 * n));\n        return all;\n    }\n",
            "public static List<long> JoinNumbers(List<long> numbers, long start) {\n    return new[] { start }.Concat(numbers.Select(n => 2 * n)).ToList();\n}"],
        "even_sum": ["        long sum = 0;\n        foreach (long n in numbers) {\n            sum += n;\n        }\n        return sum % 2 == 0;\n    }\n\n    public static void Main(string[] args) {\n        Console.WriteLine(EvenSum(new List<long>()));\n    }\n}\n"],
        "backwards": ["        var letters = text.ToCharArray();\n        Array.Reverse(letters);\n        return new string(letters);\n    }\n"],
        "longest": ["        string best = \"\";\n        foreach (var word in words) {\n            if (word.Length > best.Length) best = word;\n        }\n        return best;\n    }\n"],
        "first_above": ["        foreach (long n in numbers) {\n            if (n > limit) {\n                return n;\n            }\n        }\n        return null;\n    }\n"],
        "mean": ["        float sum = 0;\n        foreach (var v in values) sum += v;\n        return sum / values.Count;\n    }\n"],
        "total": ["        long sum = 0;\n        foreach (var name in names) {\n            if (prices.ContainsKey(name)) sum += prices[name];\n        }\n        return sum;\n    }\n"],
        "matrix_sum": ["        long sum = 0;\n        foreach (var row in rows)\n            foreach (var x in row)\n                sum += x;\n        return sum;\n    }\n"],
    },
    "js": {
        "join_numbers": ["    return [start, ...numbers.map(n => 2 * n)];\n}\n",
            "const join_numbers = (numbers, start) => [start].concat(numbers.map((n) => n * 2));\nmodule.exports = { join_numbers };\nconsole.log('hello');"],
        "even_sum": ["  let sum = 0;\n  for (const n of numbers) sum += n;\n  return sum % 2 === 0;\n}\n\nconsole.log(even_sum([1, 2]));\n"],
        "backwards": ["  return text.split('').reverse().join('');\n}"],
        "longest": ["  let best = '';\n  words.forEach(word => {\n    if (word.length > best.length) best = word;\n  });\n  return best;\n}"],
        "first_above": ["  return numbers.find(n => n > limit);\n}"],
        "mean": ["  return values.reduce((a, b) => a + b) / values.length;\n}"],
        "total": ["  let sum = 0;\n  for (const name of names) {\n    sum += prices[name] ?? 0;\n  }\n  return sum;\n}"],
        "matrix_sum": ["  return rows.flat().reduce((a, b) => a + b, 0);\n}"],
    },
    "ts": {
        "join_numbers": ["    return [start, ...numbers.map(n => 2 * n)];\n}\n",
            "export function join_numbers(numbers: number[], start: number): number[] {\n  return [start].concat(numbers.map((n: number): number => n * 2));\n}"],
        "even_sum": ["  let sum: number = 0;\n  for (const n of numbers) sum += n;\n  return sum % 2 === 0;\n}\n\nclass Other {}\n"],
        "backwards": ["  return text.split('').reverse().join('');\n}"],
        "longest": ["  let best = '';\n  words.forEach(word => {\n    if (word.length > best.length) best = word;\n  });\n  return best;\n}"],
        "first_above": ["  return numbers.find(n => n > limit);\n}"],
        "mean": ["  return values.reduce((a, b) => a + b) / values.length;\n}"],
        "total": ["  let sum = 0;\n  for (const name of names) {\n    sum += prices[name] ?? 0;\n  }\n  return sum;\n}"],
        "matrix_sum": ["  return rows.flat().reduce((a, b) => a + b, 0);\n}"],
    },
    "php": {
        "join_numbers": ["    return array_merge([$start], array_map(fn($n) => 2 * $n, $numbers));\n}\n",
            "<?php\nfunction join_numbers(array $numbers, int $start): array {\n    $all = [$start];\n    foreach ($numbers as $n) $all[] = 2 * $n;\n    return $all;\n}\n?>"],
        "even_sum": ["    $sum = 0;\n    foreach ($numbers as $n) {\n        $sum += $n;\n    }\n    return $sum % 2 === 0;\n}\n\nfunction helper() {\n    return 1;\n}\n"],
        "backwards": ["    return strrev($text);\n}"],
        "longest": ["    $best = '';\n    foreach ($words as $word) {\n        if (strlen($word) > strlen($best)) $best = $word;\n    }\n    return $best;\n}"],
        "first_above": ["    foreach ($numbers as $n) {\n        if ($n > $limit) {\n            return $n;\n        }\n    }\n    return null;\n}"],
        "mean": ["    return array_sum($values) / count($values);\n}"],
        "total": ["    $sum = 0;\n    foreach ($names as $name) {\n        $sum += $prices[$name] ?? 0;\n    }\n    return $sum;\n}"],
        "matrix_sum": ["    $sum = 0;\n    foreach ($rows as $row) {\n        foreach ($row as $x) {\n            $sum += $x;\n        }\n    }\n    return $sum;\n}"],
    },
}  # fmt: skip

# By language: problem, what is unusual, the answer as it comes.
SHAPES: dict[str, list[tuple[str, str, str]]] = {
    "php": [
        ("even_sum", "declares strict types", "```php\n<?php\ndeclare(strict_types=1);\n\nfunction even_sum(array $numbers): bool {\n    return array_sum($numbers) % 2 === 0;\n}\n```"),
        ("even_sum", "declares strict types after a comment", "```php\n<?php\n\n/** Even sums. */\ndeclare(strict_types=1);\nfunction even_sum(array $numbers): bool { return array_sum($numbers) % 2 === 0; }\n```"),
        ("backwards", "a namespace", "```php\n<?php\n\nnamespace App\\Text;\n\nfunction backwards(string $text): string {\n    return \\strrev($text);\n}\n```"),
        ("mean", "a namespace and strict types", "```php\n<?php\ndeclare(strict_types=1);\n\nnamespace App;\n\nuse InvalidArgumentException;\n\nfunction mean(array $values): float {\n    if (!$values) { throw new InvalidArgumentException(); }\n    return array_sum($values) / count($values);\n}\n```"),
        ("vowels", "a namespace in brackets", "```php\n<?php\nnamespace Letters {\n    function vowels($text) { return preg_match_all('/[aeiou]/i', $text); }\n}\n```"),
        ("divisors", "a function named test", "```php\n<?php\nfunction test() { return divisors(4) === [1, 2, 4]; }\nfunction divisors($n) { return array_values(array_filter(range(1, $n), fn($d) => $n % $d == 0)); }\n```"),
        ("even_sum", "a shebang", "```php\n#!/usr/bin/env php\n<?php\nfunction even_sum($numbers) { return array_sum($numbers) % 2 === 0; }\n```"),
    ],
    "js": [
        ("join_numbers", "its own name in the body", "    let join_numbers = [start];\n    for (const n of numbers) join_numbers.push(2 * n);\n    return join_numbers;\n}\n"),
        ("even_sum", "an export", "```js\nexport function even_sum(numbers) {\n  return numbers.reduce((a, b) => a + b, 0) % 2 === 0;\n}\n```"),
        ("backwards", "a default export", "```js\nexport default function backwards(text) {\n  return [...text].reverse().join('');\n}\n```"),
        ("backwards", "a default export without a name", "```js\nexport default (text) => [...text].reverse().join('');\n```"),
        ("longest", "an import", "```js\nimport assert from 'node:assert';\n\nfunction longest(words) {\n  assert.ok(Array.isArray(words));\n  return words.reduce((a, b) => (b.length > a.length ? b : a), '');\n}\n\nexport { longest };\n```"),
        ("vowels", "an import, no export", "```js\nimport { format } from 'util';\nconst vowels = (text) => Number(format('%d', (text.match(/[aeiou]/gi) || []).length));\n```"),
        ("total", "a list of exports", "```js\nconst total = (prices, names) => names.reduce((s, n) => s + (prices[n] ?? 0), 0);\nexport { total, total as default };\n```"),
        ("divisors", "a shebang", "```js\n#!/usr/bin/env node\nfunction divisors(n) {\n  return [...Array(n).keys()].map((k) => k + 1).filter((d) => n % d === 0);\n}\n```"),
        ("mean", "exports.f = ...", "```js\nexports.mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;\n```"),
        ("mean", "module.exports.f = ...", "```js\nmodule.exports.mean = function (values) {\n  return values.reduce((a, b) => a + b, 0) / values.length;\n};\n```"),
        ("fibonacci", "module.exports = f", "```js\nmodule.exports = function (n) {\n  let [a, b] = [0, 1];\n  while (n--) [a, b] = [b, a + b];\n  return a;\n};\n```"),
        ("fibonacci", "let f; f = ...", "```js\nlet fibonacci;\nfibonacci = (n) => (n < 2 ? n : fast(n)[0]);\nconst fast = (n) => {\n  let [a, b] = [0, 1];\n  while (n--) [a, b] = [b, a + b];\n  return [a, b];\n};\n```"),
        ("matrix_sum", "declares assert and test", "```js\nconst assert = (ok) => { if (!ok) throw new Error('no'); };\nfunction test() { assert(matrix_sum([[1]]) === 1); }\nfunction matrix_sum(rows) { return rows.flat().reduce((a, b) => a + b, 0); }\ntest();\n```"),
        ("first_above", "declares process", "```js\nconst process = require('process');\nconst first_above = (numbers, limit) => (process.argv, numbers.find((n) => n > limit));\n```"),
    ],
    "ts": [
        ("join_numbers", "its own name in the body", "    const join_numbers: number[] = [start];\n    for (const n of numbers) join_numbers.push(2 * n);\n    return join_numbers;\n}\n"),
        ("join_numbers", "require", "```typescript\nconst util = require('util');\nfunction join_numbers(numbers: number[], start: number): number[] {\n    return [start, ...numbers.map(n => 2 * n)];\n}\nmodule.exports = { join_numbers };\n```"),
        ("longest", "an import", "```ts\nimport * as util from 'util';\n\nfunction longest(words: string[]): string {\n  util.format('%s', words);\n  return words.reduce((a, b) => (b.length > a.length ? b : a), '');\n}\n\nexport { longest };\n```"),
        ("fibonacci", "let f; f = ...", "```ts\nlet fibonacci: (n: number) => number;\nfibonacci = (n) => {\n  let [a, b] = [0, 1];\n  while (n--) [a, b] = [b, a + b];\n  return a;\n};\n```"),
        ("first_above", "declares process", "```ts\ndeclare var process: any;\ndeclare function require(name: string): any;\nfunction first_above(numbers: number[], limit: number): number | undefined {\n  return process.argv ? numbers.find((n) => n > limit) : undefined;\n}\n```"),
        ("first_above", "uses process", "```ts\nfunction first_above(numbers: number[], limit: number): number | undefined {\n  process.stdout.write('');\n  return numbers.find((n) => n > limit);\n}\n```"),
    ],
    "go": [
        ("even_sum", "var f = func", "```go\nvar even_sum = func(numbers []int) bool {\n\tsum := 0\n\tfor _, n := range numbers {\n\t\tsum += n\n\t}\n\treturn sum%2 == 0\n}\n```"),
        ("backwards", "var f = func in a package", "```go\npackage main\n\nimport \"strings\"\n\nvar backwards = func(text string) string {\n\tparts := strings.Split(text, \"\")\n\tfor i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {\n\t\tparts[i], parts[j] = parts[j], parts[i]\n\t}\n\treturn strings.Join(parts, \"\")\n}\n\nfunc main() {}\n```"),
    ],
    "cpp": [
        ("join_numbers", "its own name in the body", "std::vector<long> join_numbers(1, start);\nfor (long n : numbers) join_numbers.push_back(2 * n);\nreturn join_numbers;\n}\n"),
        ("join_numbers", "a main after it", "    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}\n\nint main() {\n    return 1;\n}\n"),
        ("join_numbers", "repeated and cut off", "    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}\n\nstd::vector<long> join_numbers(std::vector<long> numbers, long start) {\n    ret"),
        ("join_numbers", "a bracket at the start of a line", "std::vector<long> all = {start};\nfor (long n : numbers) {\nall.push_back(2 * n);\n}\nreturn all;\n}\n"),
        ("join_numbers", "return type on its own line", "```cpp\nstd::vector<long>\njoin_numbers(std::vector<long> numbers, long start)\n{\n    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}\n```"),
        ("even_sum", "[[nodiscard]]", "```cpp\n[[nodiscard]] bool even_sum(const std::vector<long>& numbers) {\n    long sum = 0;\n    for (auto n : numbers) sum += n;\n    return sum % 2 == 0;\n}\n```"),
        ("backwards", "[[nodiscard]] inline", "```cpp\n#include <string>\n\n[[nodiscard]] inline std::string backwards(std::string text) {\n    return std::string(text.rbegin(), text.rend());\n}\n```"),
        ("mean", "prints much", "    float sum = 0;\n    for (float v : values) { sum += v; std::cout << \"adding \" << v << std::endl; }\n    return sum / values.size();\n}"),
    ],
    "java": [
        ("join_numbers", "a main after it", "        ArrayList<Long> all = new ArrayList<>(List.of(start));\n        for (long n : numbers) all.add(2 * n);\n        return all;\n    }\n\n    public static void main(String[] args) {\n        System.exit(3);\n    }\n}\n"),
        ("join_numbers", "imports above a method", "```java\nimport java.util.*;\nimport java.util.stream.Collectors;\n\npublic static ArrayList<Long> joinNumbers(ArrayList<Long> numbers, long start) {\n        ArrayList<Long> all = new ArrayList<>(List.of(start));\n        for (long n : numbers) all.add(2 * n);\n        return all;\n    }\n```"),
        ("join_numbers", "a helper class before", "```java\nimport java.util.*;\n\nclass Helper {\n    static long twice(long n) { return 2 * n; }\n}\n\npublic class Solution {\n    public static ArrayList<Long> joinNumbers(ArrayList<Long> numbers, long start) {\n        ArrayList<Long> all = new ArrayList<>(List.of(start));\n        for (long n : numbers) all.add(Helper.twice(n));\n        return all;\n    }\n}\n```"),
        ("join_numbers", "return type on its own line", "```java\nclass Problem {\n    public static ArrayList<Long>\n    joinNumbers(ArrayList<Long> numbers, long start)\n    {\n        ArrayList<Long> all = new ArrayList<>(List.of(start));\n        for (long n : numbers) all.add(2 * n);\n        return all;\n    }\n}\n```"),
        ("backwards", "quoted", "> Here:\n> ```java\n> public static String backwards(String text) {\n>     return new StringBuilder(text).reverse().toString();\n> }\n> ```\n"),
    ],
    "cs": [
        ("join_numbers", "using above a method", "```csharp\nusing System.Text;\nusing System.Linq;\n\n    public static List<long> JoinNumbers(List<long> numbers, long start) {\n        return new[] { start }.Concat(numbers.Select(n => 2 * n)).ToList();\n    }\n```"),
        ("join_numbers", "a helper class before", "```csharp\nusing System.Linq;\n\nstatic class Helper {\n    public static long Twice(long n) { return 2 * n; }\n}\n\npublic class Solution {\n    public static List<long> JoinNumbers(List<long> numbers, long start) {\n        return new[] { start }.Concat(numbers.Select(n => Helper.Twice(n))).ToList();\n    }\n}\n```"),
        ("join_numbers", "a namespace", "```csharp\nusing System;\nusing System.Linq;\n\nnamespace My.Code\n{\nstatic class Helper {\n    public static long Twice(long n) { return 2 * n; }\n}\npublic class Solution {\n    public static List<long> JoinNumbers(List<long> numbers, long start) {\n        return new[] { start }.Concat(numbers.Select(n => Helper.Twice(n))).ToList();\n    }\n}\n}\n```"),
        ("backwards", "a file-scoped brace style", "```csharp\nusing System;\nclass Problem\n{\n    static void Main() { }\n    internal static string Backwards(string text)\n    {\n        char[] c = text.ToCharArray();\n        Array.Reverse(c);\n        return new String(c);\n    }\n}\n```"),
    ],
    "rs": [
        ("join_numbers", "a function of its name in the body", "    fn join_numbers(n: isize) -> isize {\n        2 * n\n    }\n    std::iter::once(start).chain(numbers.into_iter().map(join_numbers)).collect()\n}\n"),
        ("join_numbers", "a use of the prompt", "```rust\nuse std::collections::{HashMap, HashSet};\nfn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n    let _: (HashMap<u8, u8>, HashSet<u8>) = Default::default();\n    std::iter::once(start).chain(numbers.into_iter().map(|n| 2 * n)).collect()\n}\n```"),
        ("backwards", "attributes of the crate", "```rust\n#![allow(dead_code)]\n\nfn backwards(text: String) -> String {\n    text.chars().rev().collect()\n}\n```"),
        ("even_sum", "a byte order mark", "\ufeff```rust\nfn even_sum(numbers: Vec<isize>) -> bool { numbers.iter().sum::<isize>() % 2 == 0 }\n```"),
    ],
}  # fmt: skip
FENCES = {"cs": "csharp", "rs": "rust", "js": "javascript", "ts": "typescript"}


def attempts(language: str) -> list[Attempt]:
    found = []
    for name, answers in ANSWERS[language].items():
        problem, fence = own_problem(language, name), FENCES.get(language, language)
        for place, code in enumerate(answers):
            answer = f"Here is one way:\n\n```{fence}\n{code}\n```\n\nIt works." if place else code
            found.append(Attempt(problem, answer, (language, f"{name} {place}")))
    for name, shape, answer in SHAPES[language]:
        found.append(Attempt(own_problem(language, name), answer, (f"{language} shapes", f"{name}: {shape}")))
    return found


def main() -> int:
    given = options(languages=",".join(ANSWERS), workers=2)
    counts: dict[str, Counter[bool]] = {}
    print("| language | pass | of |\n|---|---|---|")
    for language in given.languages.split(","):
        if (missing := own_problem(language).unavailable()) is not None:
            print(f"| {language} | *not run* | {missing} |")
            continue
        started = time.monotonic()
        for attempt, outcome in run_many(attempts(language), limits=Limits(seconds=30.0), workers=given.workers):
            kind, name = attempt.tag
            counts.setdefault(kind, Counter())[outcome.passed] += 1
            if not outcome.passed:
                print(f"{kind}: {name}: {outcome}", file=sys.stderr)
        for kind in (language, f"{language} shapes"):
            if kind in counts:
                print(f"| {kind} | {counts[kind][True]} | {counts[kind].total()} |", flush=True)
        print(f"{language}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return int(any(count[False] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
