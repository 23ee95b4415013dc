# ruff: noqa: E501 - programs, as they were written
"""Right answers to the problems of `tests.sandbox.multipl_e`, written by hand: how many of them pass, by language.

    python -m tests.hard.honest [--languages cpp,go] [--workers 2]

Of each three, the first continues the prompt, as a base model does; the others are what a chat model puts into a fence.
SHAPES are programs that are right and written in a way that a harness may stumble over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.box import Limits
from tests.sandbox.multipl_e import own_problem

ANSWERS: dict[str, dict[str, list[str]]] = {
    "cpp": {
        "join_numbers": ["    std::vector<long> all = {start};\n    for (long n : numbers) all.push_back(2 * n);\n    return all;\n}",
            "#include <vector>\nvector<long> join_numbers(const vector<long>& numbers, int start) {\n  vector<long> all{start};\n  for (auto n : numbers) all.push_back(2*n);\n  return all;\n}\nint main() { return 1; }"],
        "even_sum": ["    long sum = 0;\n    for (long n : numbers) sum += n;\n    return sum % 2 == 0;\n}\n\nint main() {\n    std::cout << even_sum({1, 2});\n}\n",
            "#include <numeric>\n\nbool even_sum(std::vector<long> numbers) {\n    return std::accumulate(numbers.begin(), numbers.end(), 0L) % 2 == 0;\n}",
            "bool even_sum(vector<long> numbers) {\n    int odd = count_if(numbers.begin(), numbers.end(), [](long n) { return n % 2 != 0; });\n    return odd % 2 == 0;\n}"],
        "backwards": ["    std::reverse(text.begin(), text.end());\n    return text;\n}",
            "std::string backwards(std::string text) {\n    return {text.rbegin(), text.rend()};\n}\n\nint main() {\n    assert(backwards(\"ab\") == \"ba\");\n    return 0;\n}",
            "#include <stack>\nusing namespace std;\nstring backwards(const string& text) {\n    stack<char> s;\n    for (char c : text) s.push(c);\n    string out;\n    while (!s.empty()) { out += s.top(); s.pop(); }\n    return out;\n}"],
        "fibonacci": ["    long a = 0, b = 1;\n    while (n-- > 0) {\n        long c = a + b;\n        a = b;\n        b = c;\n    }\n    return a;\n}",
            "#include <unordered_map>\n\nstatic std::unordered_map<long, long> memo;\n\nlong fibonacci(long n) {\n    if (n < 2) return n;\n    auto it = memo.find(n);\n    if (it != memo.end()) return it->second;\n    return memo[n] = fibonacci(n - 1) + fibonacci(n - 2);\n}",
            "struct Matrix { long a, b, c, d; };\nMatrix operator*(const Matrix& x, const Matrix& y) {\n    return {x.a*y.a + x.b*y.c, x.a*y.b + x.b*y.d, x.c*y.a + x.d*y.c, x.c*y.b + x.d*y.d};\n}\nlong fibonacci(long n) {\n    Matrix r{1, 0, 0, 1}, m{1, 1, 1, 0};\n    for (; n > 0; n /= 2, m = m * m) if (n % 2) r = r * m;\n    return r.b;\n}"],
        "divisors": ["    std::vector<long> out;\n    for (long d = 1; d <= n; d++)\n        if (n % d == 0)\n            out.push_back(d);\n    return out;\n}\n// divisors(12) is 1, 2, 3, 4, 6, 12\n",
            "#include <set>\nstd::vector<long> divisors(long n) {\n    std::set<long> found;\n    for (long d = 1; d * d <= n; ++d) {\n        if (n % d) continue;\n        found.insert(d);\n        found.insert(n / d);\n    }\n    return std::vector<long>(found.begin(), found.end());\n}",
            "template <typename T>\nstd::vector<T> keep(T last, std::function<bool(T)> wanted) {\n    std::vector<T> out;\n    for (T x = 1; x <= last; ++x) if (wanted(x)) out.push_back(x);\n    return out;\n}\nstd::vector<long> divisors(long n) { return keep<long>(n, [n](long d) { return n % d == 0; }); }"],
        "longest": ["    std::string best;\n    for (const auto& word : words)\n        if (word.size() > best.size()) best = word;\n    return best;\n}",
            "#include <algorithm>\nstd::string longest(std::vector<std::string> words) {\n    auto it = std::max_element(words.begin(), words.end(), [](const auto& a, const auto& b) { return a.length() < b.length(); });\n    return it == words.end() ? \"\" : *it;\n}",
            "#define LEN(x) ((x).size())\nstring longest(vector<string> words) {\n    stable_sort(words.begin(), words.end(), [](auto& a, auto& b) { return LEN(a) > LEN(b); });\n    return words.empty() ? string() : words.front();\n}"],
        "first_above": ["    for (long n : numbers) {\n        if (n > limit) {\n            return n;\n        }\n    }\n    return std::nullopt;\n}",
            "std::optional<long> first_above(std::vector<long> numbers, long limit) {\n    auto it = std::find_if(begin(numbers), end(numbers), [=](long n) { return n > limit; });\n    if (it == end(numbers)) return {};\n    return *it;\n}",
            "#include <optional>\n#include <thread>\nusing std::optional;\noptional<long> first_above(std::vector<long> numbers, long limit) {\n    optional<long> found;\n    std::thread t([&] { for (size_t i = numbers.size(); i-- > 0;) if (numbers[i] > limit) found = numbers[i]; });\n    t.join();\n    return found;\n}"],
        "mean": ["    float sum = 0;\n    for (float v : values) sum += v;\n    return sum / values.size();\n}",
            "float mean(std::vector<float> values) {\n    return std::accumulate(values.cbegin(), values.cend(), 0.0f) / static_cast<float>(values.size());\n}",
            "namespace stats {\n    float sum(const std::vector<float>& v) { float s = 0; for (auto x : v) s += x; return s; }\n}\nfloat mean(std::vector<float> values) {\n    if (values.empty()) throw std::invalid_argument(\"empty\");\n    return stats::sum(values) / values.size();\n}"],
        "total": ["    long sum = 0;\n    for (auto& name : names) sum += prices[name];\n    return sum;\n}",
            "long total(std::map<std::string, long> prices, std::vector<std::string> names) {\n    long sum{};\n    for (const auto& name : names)\n        if (auto it = prices.find(name); it != prices.end()) sum += it->second;\n    return sum;\n}",
            "class Till {\npublic:\n    explicit Till(std::map<std::string, long> p) : prices(std::move(p)) {}\n    void add(const std::string& name) { if (prices.count(name)) sum += prices.at(name); }\n    long sum = 0;\nprivate:\n    std::map<std::string, long> prices;\n};\nlong total(std::map<std::string, long> prices, std::vector<std::string> names) {\n    Till till(prices);\n    for (auto& n : names) till.add(n);\n    return till.sum;\n}"],
        "matrix_sum": ["    long sum = 0;\n    for (auto& row : rows)\n        for (auto& x : row)\n            sum += x;\n    return sum;\n}",
            "long matrix_sum(const std::vector<std::vector<long>>& rows) {\n    return std::accumulate(rows.begin(), rows.end(), 0L, [](long s, const std::vector<long>& row) {\n        return std::accumulate(row.begin(), row.end(), s);\n    });\n}",
            "auto matrix_sum(std::vector<std::vector<long>> rows) -> long {\n    long sum = 0;\n    for (size_t i = 0; i < rows.size(); i++) {\n        for (size_t j = 0; j < rows[i].size(); j++) { sum += rows[i][j]; }\n    }\n    return sum;\n}"],
        "vowels": ["    int count = 0;\n    for (char c : text) {\n        c = tolower(c);\n        if (c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u') count++;\n    }\n    return count;\n}\n\nint helper() {\n    return 1;\n}\n",
            "bool is_vowel(char c) {\n    return std::string(\"aeiouAEIOU\").find(c) != std::string::npos;\n}\n\nlong vowels(std::string text) {\n    return std::count_if(text.begin(), text.end(), is_vowel);\n}",
            "#include <regex>\nlong vowels(std::string text) {\n    static const std::regex v(R\"([aeiou])\", std::regex::icase);\n    return std::distance(std::sregex_iterator(text.begin(), text.end(), v), std::sregex_iterator());\n}"],
    },
    "rs": {
        "join_numbers": ["    let mut all = vec![start];\n    for n in numbers {\n        all.push(2 * n);\n    }\n    all\n}",
            "fn join_numbers(numbers: Vec<isize>, start: isize) -> Vec<isize> {\n    std::iter::once(start).chain(numbers.into_iter().map(|n| n * 2)).collect()\n}\nfn main() {}"],
        "even_sum": ["    let sum: isize = numbers.iter().sum();\n    sum % 2 == 0\n}\n\nfn main() {\n    println!(\"{}\", even_sum(vec![1]));\n}\n",
            "fn even_sum(numbers: Vec<isize>) -> bool {\n    numbers.into_iter().fold(0, |a, b| a + b) % 2 == 0\n}",
            "pub fn even_sum(numbers: Vec<isize>) -> bool {\n    let mut sum = 0isize;\n    for n in &numbers {\n        sum += n;\n    }\n    sum.rem_euclid(2) == 0\n}\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n    #[test]\n    fn it_works() { assert!(even_sum(vec![2])); }\n}"],
        "backwards": ["    text.chars().rev().collect()\n}",
            "fn backwards(text: String) -> String {\n    let mut out = String::with_capacity(text.len());\n    for c in text.chars().rev() {\n        out.push(c);\n    }\n    out\n}\n\nfn main() {\n    assert_eq!(backwards(\"ab\".to_string()), \"ba\");\n}",
            "fn backwards(text: String) -> String {\n    let mut chars: Vec<char> = text.chars().collect();\n    chars.reverse();\n    chars.iter().collect::<String>()\n}"],
        "fibonacci": ["    let (mut a, mut b) = (0, 1);\n    for _ in 0..n {\n        let c = a + b;\n        a = b;\n        b = c;\n    }\n    a\n}",
            "use std::collections::HashMap;\n\nfn memo(n: isize, seen: &mut HashMap<isize, isize>) -> isize {\n    if n < 2 { return n; }\n    if let Some(&x) = seen.get(&n) { return x; }\n    let x = memo(n - 1, seen) + memo(n - 2, seen);\n    seen.insert(n, x);\n    x\n}\n\nfn fibonacci(n: isize) -> isize {\n    memo(n, &mut HashMap::new())\n}",
            "struct Fib { a: isize, b: isize }\nimpl Iterator for Fib {\n    type Item = isize;\n    fn next(&mut self) -> Option<isize> {\n        let x = self.a;\n        self.a = self.b;\n        self.b += x;\n        Some(x)\n    }\n}\nfn fibonacci(n: isize) -> isize { Fib { a: 0, b: 1 }.nth(n as usize).unwrap() }"],
        "divisors": ["    let mut out = Vec::new();\n    for d in 1..=n {\n        if n % d == 0 {\n            out.push(d);\n        }\n    }\n    out\n}",
            "fn divisors(n: isize) -> Vec<isize> {\n    (1..=n).filter(|d| n % d == 0).collect()\n}",
            "use std::collections::BTreeSet;\nfn divisors(n: isize) -> Vec<isize> {\n    let mut set = BTreeSet::new();\n    let mut d = 1;\n    while d * d <= n {\n        if n % d == 0 { set.insert(d); set.insert(n / d); }\n        d += 1;\n    }\n    set.into_iter().collect()\n}"],
        "longest": ["    let mut best = String::new();\n    for word in words {\n        if word.len() > best.len() {\n            best = word;\n        }\n    }\n    best\n}",
            "fn longest(words: Vec<String>) -> String {\n    words.iter().rev().max_by_key(|w| w.len()).cloned().unwrap_or_default()\n}",
            "fn longer<'a>(a: &'a str, b: &'a str) -> &'a str { if b.len() > a.len() { b } else { a } }\nfn longest(words: Vec<String>) -> String {\n    words.iter().fold(\"\", |best, w| longer(best, w)).to_owned()\n}"],
        "first_above": ["    numbers.into_iter().find(|&n| n > limit)\n}",
            "fn first_above(numbers: Vec<isize>, limit: isize) -> Option<isize> {\n    for n in numbers {\n        if n > limit {\n            return Some(n);\n        }\n    }\n    None\n}",
            "use std::thread;\nfn first_above(numbers: Vec<isize>, limit: isize) -> Option<isize> {\n    thread::spawn(move || numbers.iter().copied().filter(|n| *n > limit).next()).join().unwrap()\n}"],
        "mean": ["    values.iter().sum::<f64>() / values.len() as f64\n}",
            "#[derive(Default)]\nstruct Running { sum: f64, count: usize }\nimpl Running {\n    fn add(&mut self, x: f64) { self.sum += x; self.count += 1; }\n}\nfn mean(values: Vec<f64>) -> f64 {\n    let mut r = Running::default();\n    values.iter().for_each(|&v| r.add(v));\n    r.sum / r.count as f64\n}",
            "trait Mean { fn mean_of(&self) -> f64; }\nimpl Mean for Vec<f64> {\n    fn mean_of(&self) -> f64 { self.iter().sum::<f64>() / self.len() as f64 }\n}\nfn mean(values: Vec<f64>) -> f64 { values.mean_of() }"],
        "total": ["    let mut sum = 0;\n    for name in names.iter() {\n        if let Some(price) = prices.get(name) {\n            sum += price;\n        }\n    }\n    sum\n}",
            "fn total(prices: HashMap<String, isize>, names: Vec<String>) -> isize {\n    names.iter().filter_map(|n| prices.get(n)).sum()\n}",
            "use std::collections::{HashMap, HashSet};\nfn total(prices: HashMap<String, isize>, names: Vec<String>) -> isize {\n    let known: HashSet<&String> = prices.keys().collect();\n    names.iter().filter(|n| known.contains(n)).map(|n| prices[n]).sum()\n}"],
        "matrix_sum": ["    rows.iter().map(|row| row.iter().sum::<isize>()).sum()\n}",
            "fn matrix_sum(rows: Vec<Vec<isize>>) -> isize {\n    rows.into_iter().flatten().sum()\n}",
            "macro_rules! add { ($a:ident, $b:expr) => { $a += $b; }; }\nfn matrix_sum(rows: Vec<Vec<isize>>) -> isize {\n    let mut sum = 0;\n    for row in &rows { for x in row { add!(sum, x); } }\n    sum\n}"],
        "vowels": ["    let mut count = 0;\n    for c in text.to_lowercase().chars() {\n        match c {\n            'a' | 'e' | 'i' | 'o' | 'u' => count += 1,\n            _ => {}\n        }\n    }\n    count\n}",
            "fn is_vowel(c: char) -> bool {\n    \"aeiou\".contains(c.to_ascii_lowercase())\n}\n\nfn vowels(text: String) -> isize {\n    text.chars().filter(|c| is_vowel(*c)).count() as isize\n}",
            "const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];\nfn vowels(text: String) -> isize {\n    let text = text.to_lowercase();\n    VOWELS.iter().map(|v| text.matches(*v).count()).sum::<usize>().try_into().unwrap()\n}"],
    },
    "go": {
        "join_numbers": ["    all := []int{start}\n    for _, n := range numbers {\n        all = append(all, 2 * n)\n    }\n    return all\n}\n",
            "package main\n\nimport \"sort\"\n\nfunc join_numbers(numbers []int, start int) []int {\n\tall := []int{start}\n\tsort.Ints(nil)\n\tfor _, n := range numbers {\n\t\tall = append(all, 2*n)\n\t}\n\treturn all\n}\n\nfunc main() {}"],
        "even_sum": ["    sum := 0\n    for _, n := range numbers {\n        sum += n\n    }\n    return sum%2 == 0\n}\n\nfunc main() {\n    fmt.Println(even_sum([]int{1}))\n}\n",
            "func even_sum(numbers []int) bool {\n\todd := 0\n\tfor i := 0; i < len(numbers); i++ {\n\t\tif numbers[i]%2 != 0 {\n\t\t\todd++\n\t\t}\n\t}\n\treturn odd%2 == 0\n}",
            "package main\n\nimport \"fmt\"\n\nfunc even_sum(numbers []int) bool {\n\tvar sum int\n\tfor _, n := range numbers {\n\t\tsum ^= n & 1\n\t}\n\treturn sum == 0\n}\n\nfunc main() {\n\tfmt.Println(even_sum([]int{1, 2}))\n}"],
        "backwards": ["    runes := []rune(text)\n    for i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {\n        runes[i], runes[j] = runes[j], runes[i]\n    }\n    return string(runes)\n}",
            "import \"strings\"\n\nfunc backwards(text string) string {\n\tvar b strings.Builder\n\tfor i := len(text) - 1; i >= 0; i-- {\n\t\tb.WriteByte(text[i])\n\t}\n\treturn b.String()\n}",
            "func backwards(text string) string {\n\tif text == \"\" {\n\t\treturn \"\"\n\t}\n\treturn backwards(text[1:]) + text[:1]\n}"],
        "fibonacci": ["    if n < 2 {\n        return n\n    }\n    a, b := 0, 1\n    for i := 1; i < n; i++ {\n        a, b = b, a+b\n    }\n    return b\n}",
            "var memo = map[int]int{}\n\nfunc fibonacci(n int) int {\n\tif n < 2 {\n\t\treturn n\n\t}\n\tif x, ok := memo[n]; ok {\n\t\treturn x\n\t}\n\tmemo[n] = fibonacci(n-1) + fibonacci(n-2)\n\treturn memo[n]\n}",
            "package main\n\nimport (\n\t\"math/big\"\n)\n\nfunc fibonacci(n int) int {\n\ta, b := big.NewInt(0), big.NewInt(1)\n\tfor ; n > 0; n-- {\n\t\ta.Add(a, b)\n\t\ta, b = b, a\n\t}\n\treturn int(a.Int64())\n}"],
        "divisors": ["    var out []int\n    for d := 1; d <= n; d++ {\n        if n%d == 0 {\n            out = append(out, d)\n        }\n    }\n    return out\n}\n\n// divisors returns all of them\nfunc other() {}\n",
            "import (\n\t\"sort\"\n)\n\nfunc divisors(n int) []int {\n\tout := []int{}\n\tfor d := 1; d*d <= n; d++ {\n\t\tif n%d == 0 {\n\t\t\tout = append(out, d)\n\t\t\tif d*d != n {\n\t\t\t\tout = append(out, n/d)\n\t\t\t}\n\t\t}\n\t}\n\tsort.Ints(out)\n\treturn out\n}",
            "func divides(d, n int) bool { return n%d == 0 }\n\nfunc divisors(n int) []int {\n\tout := make([]int, 0, n)\n\tfor d := 1; d <= n; d++ {\n\t\tif divides(d, n) {\n\t\t\tout = append(out, d)\n\t\t}\n\t}\n\treturn out\n}"],
        "longest": ["    best := \"\"\n    for _, word := range words {\n        if len(word) > len(best) {\n            best = word\n        }\n    }\n    return best\n}",
            "package longest_test\n\nimport (\n\t\"fmt\"\n\t\"testing\"\n)\n\nfunc longest(words []string) string {\n\tbest := fmt.Sprint()\n\tfor i := range words {\n\t\tif len(best) < len(words[i]) {\n\t\t\tbest = words[i]\n\t\t}\n\t}\n\treturn best\n}\n\nfunc TestOwn(t *testing.T) {\n\tif longest(nil) != \"\" {\n\t\tt.Fatal(\"no\")\n\t}\n}",
            "import \"sort\"\n\nfunc longest(words []string) string {\n\tif len(words) == 0 {\n\t\treturn \"\"\n\t}\n\tsort.SliceStable(words, func(i, j int) bool { return len(words[i]) > len(words[j]) })\n\treturn words[0]\n}"],
        "first_above": ["    for _, n := range numbers {\n        if n > limit {\n            return n\n        }\n    }\n    return nil\n}",
            "func first_above(numbers []int, limit int) interface{} {\n\tvar found interface{}\n\tfor i := len(numbers) - 1; i >= 0; i-- {\n\t\tif numbers[i] > limit {\n\t\t\tfound = numbers[i]\n\t\t}\n\t}\n\treturn found\n}",
            "package main\n\nimport \"sync\"\n\nfunc first_above(numbers []int, limit int) interface{} {\n\tvar wg sync.WaitGroup\n\tout := make(chan int, len(numbers))\n\twg.Add(1)\n\tgo func() {\n\t\tdefer wg.Done()\n\t\tfor _, n := range numbers {\n\t\t\tif n > limit {\n\t\t\t\tout <- n\n\t\t\t}\n\t\t}\n\t}()\n\twg.Wait()\n\tclose(out)\n\tif n, ok := <-out; ok {\n\t\treturn n\n\t}\n\treturn nil\n}"],
        "mean": ["    sum := 0.0\n    for _, v := range values {\n        sum += v\n    }\n    return sum / float64(len(values))\n}",
            "type number interface{ ~int | ~float64 }\n\nfunc sum[T number](xs []T) (s T) {\n\tfor _, x := range xs {\n\t\ts += x\n\t}\n\treturn\n}\n\nfunc mean(values []float64) float64 {\n\treturn sum(values) / float64(len(values))\n}",
            "func mean(values []float64) (m float64) {\n\tfor i, v := range values {\n\t\tm += (v - m) / float64(i+1)\n\t}\n\treturn\n}"],
        "total": ["    sum := 0\n    for _, name := range names {\n        sum += prices[name]\n    }\n    return sum\n}",
            "type till struct {\n\tsum int\n}\n\nfunc (t *till) add(n int) { t.sum += n }\n\nfunc total(prices map[string]int, names []string) int {\n\tt := till{}\n\tfor _, n := range names {\n\t\tif p, ok := prices[n]; ok {\n\t\t\tt.add(p)\n\t\t}\n\t}\n\treturn t.sum\n}",
            "func total(prices map[string]int, names []string) int {\n\tcounts := make(map[string]int)\n\tfor _, n := range names {\n\t\tcounts[n]++\n\t}\n\ts := 0\n\tfor n, c := range counts {\n\t\ts += prices[n] * c\n\t}\n\treturn s\n}"],
        "matrix_sum": ["    sum := 0\n    for _, row := range rows {\n        for _, x := range row {\n            sum += x\n        }\n    }\n    return sum\n}",
            "func matrix_sum(rows [][]int) int {\n\tsum := 0\n\tadd := func(row []int) {\n\t\tfor _, x := range row {\n\t\t\tsum += x\n\t\t}\n\t}\n\tfor _, row := range rows {\n\t\tadd(row)\n\t}\n\treturn sum\n}",
            "import \"fmt\"\n\nfunc matrix_sum(rows [][]int) int {\n\tdefer fmt.Print(\"\")\n\tif len(rows) == 0 {\n\t\treturn 0\n\t}\n\ts := matrix_sum(rows[1:])\n\tfor _, x := range rows[0] {\n\t\ts += x\n\t}\n\treturn s\n}"],
        "vowels": ["    count := 0\n    for _, c := range text {\n        switch c {\n        case 'a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U':\n            count++\n        }\n    }\n    return count\n}",
            "import \"strings\"\n\nfunc vowels(text string) int {\n\tcount := 0\n\tfor _, c := range strings.ToLower(text) {\n\t\tif strings.ContainsRune(\"aeiou\", c) {\n\t\t\tcount++\n\t\t}\n\t}\n\treturn count\n}",
            "package solution\n\nimport \"regexp\"\n\nvar pattern = regexp.MustCompile(`(?i)[aeiou]`)\n\nfunc vowels(text string) int {\n\treturn len(pattern.FindAllString(text, -1))\n}"],
    },
    "java": {
        "join_numbers": ["        ArrayList<Long> all = new ArrayList<>();\n        all.add(start);\n        for (long n : numbers) {\n            all.add(2 * n);\n        }\n        return all;\n    }\n",
            "import java.util.*;\n\npublic class Solution {\n    public static List<Long> joinNumbers(List<Long> numbers, long start) {\n        List<Long> all = new LinkedList<>(List.of(start));\n        for (Long n : numbers) all.add(2 * n);\n        return all;\n    }\n    public static void main(String[] args) { System.exit(3); }\n}"],
        "even_sum": ["        long sum = 0;\n        for (long n : numbers) {\n            sum += n;\n        }\n        return sum % 2 == 0;\n    }\n\n    public static void main(String[] args) {\n        System.out.println(evenSum(new ArrayList<>()));\n    }\n}\n",
            "public static boolean evenSum(ArrayList<Long> numbers) {\n    return numbers.stream().mapToLong(Long::longValue).sum() % 2 == 0;\n}",
            "import java.util.*;\n\npublic class Main {\n    public static boolean evenSum(ArrayList<Long> numbers) {\n        long odd = numbers.stream().filter(n -> n % 2 != 0).count();\n        return odd % 2 == 0;\n    }\n\n    public static void main(String[] args) {\n        System.out.println(evenSum(new ArrayList<>(List.of(1L))));\n    }\n}"],
        "backwards": ["        return new StringBuilder(text).reverse().toString();\n    }\n",
            "class Problem {\n    public static String backwards(String text) {\n        String out = \"\";\n        for (char c : text.toCharArray()) {\n            out = c + out;\n        }\n        return out;\n    }\n}",
            "import java.util.stream.*;\n\nfinal class Strings {\n    private Strings() {}\n    static String backwards(String text) {\n        return IntStream.range(0, text.length()).mapToObj(i -> \"\" + text.charAt(text.length() - 1 - i)).collect(Collectors.joining());\n    }\n}"],
        "fibonacci": ["        long a = 0, b = 1;\n        for (long i = 0; i < n; i++) {\n            long c = a + b;\n            a = b;\n            b = c;\n        }\n        return a;\n    }\n",
            "import java.util.HashMap;\nimport java.util.Map;\n\npublic class Fibonacci {\n    private static final Map<Long, Long> MEMO = new HashMap<>();\n\n    public static long fibonacci(long n) {\n        if (n < 2) return n;\n        if (MEMO.containsKey(n)) return MEMO.get(n);\n        long x = fibonacci(n - 1) + fibonacci(n - 2);\n        MEMO.put(n, x);\n        return x;\n    }\n}",
            "import java.math.BigInteger;\npublic static long fibonacci(long n) {\n    BigInteger a = BigInteger.ZERO, b = BigInteger.ONE;\n    while (n-- > 0) {\n        BigInteger c = a.add(b);\n        a = b;\n        b = c;\n    }\n    return a.longValueExact();\n}"],
        "divisors": ["        ArrayList<Long> out = new ArrayList<Long>();\n        for (long d = 1; d <= n; d++) {\n            if (n % d == 0) out.add(d);\n        }\n        return out;\n    }\n",
            "public class Solution {\n    static class Pair { long a, b; Pair(long a, long b) { this.a = a; this.b = b; } }\n    public static ArrayList<Long> divisors(long n) {\n        TreeSet<Long> found = new TreeSet<>();\n        for (long d = 1; d * d <= n; d++)\n            if (n % d == 0) { Pair p = new Pair(d, n / d); found.add(p.a); found.add(p.b); }\n        return new ArrayList<>(found);\n    }\n}",
            "package com.example.numbers;\n\nimport java.util.*;\nimport java.util.stream.LongStream;\nimport static java.util.stream.Collectors.toCollection;\n\npublic class Divisors {\n    public static ArrayList<Long> divisors(long n) {\n        return LongStream.rangeClosed(1, n).filter(d -> n % d == 0).boxed().collect(toCollection(ArrayList::new));\n    }\n}"],
        "longest": ["        String best = \"\";\n        for (String word : words) {\n            if (word.length() > best.length()) best = word;\n        }\n        return best;\n    }\n",
            "public static String longest(ArrayList<String> words) {\n    return words.stream().reduce(\"\", (a, b) -> b.length() > a.length() ? b : a);\n}",
            "import java.util.*;\n\nclass Longest {\n    interface Rule { boolean better(String a, String b); }\n    public static String longest(List<String> words) {\n        Rule rule = (a, b) -> a.length() > b.length();\n        String best = \"\";\n        for (var w : words) best = rule.better(w, best) ? w : best;\n        return best;\n    }\n}"],
        "first_above": ["        for (Long n : numbers) {\n            if (n > limit) {\n                return Optional.of(n);\n            }\n        }\n        return Optional.empty();\n    }\n",
            "public static Optional<Long> firstAbove(ArrayList<Long> numbers, long limit) {\n    return numbers.stream().filter(n -> n > limit).findFirst();\n}",
            "import java.util.*;\n\npublic class Solution {\n    static class Search extends Thread {\n        final List<Long> numbers; final long limit; Long found;\n        Search(List<Long> numbers, long limit) { this.numbers = numbers; this.limit = limit; }\n        @Override public void run() { for (long n : numbers) if (n > limit) { found = n; return; } }\n    }\n    public static Optional<Long> firstAbove(ArrayList<Long> numbers, long limit) {\n        Search s = new Search(numbers, limit);\n        s.start();\n        try { s.join(); } catch (InterruptedException e) { throw new RuntimeException(e); }\n        return Optional.ofNullable(s.found);\n    }\n}"],
        "mean": ["        float sum = 0;\n        for (float v : values) sum += v;\n        return sum / values.size();\n    }\n",
            "public static float mean(ArrayList<Float> values) {\n    return (float) values.stream().mapToDouble(Float::doubleValue).average().orElse(0);\n}",
            "class Problem {\n    private static float sum(ArrayList<Float> v, int i) { return i == v.size() ? 0 : v.get(i) + sum(v, i + 1); }\n    public static float mean(ArrayList<Float> values) { return sum(values, 0) / values.size(); }\n}"],
        "total": ["        long sum = 0;\n        for (String name : names) {\n            sum += prices.getOrDefault(name, 0L);\n        }\n        return sum;\n    }\n",
            "public static long total(HashMap<String, Long> prices, ArrayList<String> names) {\n    return names.stream().filter(prices::containsKey).mapToLong(prices::get).sum();\n}",
            "import java.util.*;\n\nrecord Item(String name, long price) {}\n\nclass Till {\n    private final ArrayList<Item> items = new ArrayList<>();\n    void add(Item item) { items.add(item); }\n    long sum() { long s = 0; for (Item i : items) s += i.price(); return s; }\n}\n\npublic class Shop {\n    public static long total(HashMap<String, Long> prices, ArrayList<String> names) {\n        Till till = new Till();\n        for (String n : names) if (prices.get(n) != null) till.add(new Item(n, prices.get(n)));\n        return till.sum();\n    }\n}"],
        "matrix_sum": ["        long sum = 0;\n        for (ArrayList<Long> row : rows)\n            for (long x : row)\n                sum += x;\n        return sum;\n    }\n",
            "public static long matrixSum(ArrayList<ArrayList<Long>> rows) {\n    return rows.stream().flatMap(Collection::stream).mapToLong(x -> x).sum();\n}",
            "public class Solution {\n    public static long matrixSum(ArrayList<ArrayList<Long>> rows) {\n        long[] sum = {0};\n        rows.forEach(row -> row.forEach(x -> sum[0] += x));\n        return sum[0];\n    }\n    // \"{\" and '}' in a comment\n}"],
        "vowels": ["        long count = 0;\n        for (int i = 0; i < text.length(); i++) {\n            if (\"aeiouAEIOU\".indexOf(text.charAt(i)) >= 0) {\n                count++;\n            }\n        }\n        return count;\n    }\n",
            "private static boolean isVowel(int c) {\n    return \"aeiou\".indexOf(Character.toLowerCase(c)) >= 0;\n}\n\npublic static long vowels(String text) {\n    return text.chars().filter(c -> isVowel(c)).count();\n}",
            "import java.util.regex.*;\n\npublic class Solution {\n    public static long vowels(String text) {\n        Matcher m = Pattern.compile(\"[aeiou]\", Pattern.CASE_INSENSITIVE).matcher(text);\n        long n = 0;\n        while (m.find()) n++;\n        return n;\n    }\n}"],
    },
    "cs": {
        "join_numbers": ["        var all = new List<long> { start };\n        all.AddRange(numbers.Select(n => 2 * n));\n        return all;\n    }\n",
            "public static List<long> JoinNumbers(List<long> numbers, long start) {\n    return new[] { start }.Concat(numbers.Select(n => 2 * n)).ToList();\n}"],
        "even_sum": ["        long sum = 0;\n        foreach (long n in numbers) {\n            sum += n;\n        }\n        return sum % 2 == 0;\n    }\n\n    public static void Main(string[] args) {\n        Console.WriteLine(EvenSum(new List<long>()));\n    }\n}\n",
            "public static bool EvenSum(List<long> numbers) {\n    return numbers.Sum() % 2 == 0;\n}",
            "using System;\nusing System.Collections.Generic;\nusing System.Linq;\n\npublic static class Program\n{\n    public static bool EvenSum(List<long> numbers)\n    {\n        return numbers.Count(n => n % 2 != 0) % 2 == 0;\n    }\n\n    public static void Main()\n    {\n        Console.WriteLine(EvenSum(new List<long> { 1 }));\n    }\n}"],
        "backwards": ["        var letters = text.ToCharArray();\n        Array.Reverse(letters);\n        return new string(letters);\n    }\n",
            "class Problem {\n    public static string Backwards(string text) {\n        var sb = new StringBuilder();\n        for (int i = text.Length - 1; i >= 0; i--) sb.Append(text[i]);\n        return sb.ToString();\n    }\n}",
            "using System.Linq;\n\nnamespace Text.Tools\n{\n    public sealed class Strings\n    {\n        private Strings() { }\n        public static string Backwards(string text) => string.Concat(text.Reverse());\n    }\n}"],
        "fibonacci": ["        long a = 0, b = 1;\n        for (long i = 0; i < n; i++) {\n            long c = a + b;\n            a = b;\n            b = c;\n        }\n        return a;\n    }\n",
            "using System.Collections.Generic;\n\npublic class Solution\n{\n    private static readonly Dictionary<long, long> memo = new Dictionary<long, long>();\n\n    public static long Fibonacci(long n)\n    {\n        if (n < 2) return n;\n        if (!memo.ContainsKey(n)) memo[n] = Fibonacci(n - 1) + Fibonacci(n - 2);\n        return memo[n];\n    }\n}",
            "static IEnumerable<long> All() {\n    long a = 0, b = 1;\n    while (true) {\n        yield return a;\n        long c = a + b;\n        a = b;\n        b = c;\n    }\n}\n\npublic static long Fibonacci(long n) {\n    return All().ElementAt((int)n);\n}"],
        "divisors": ["        var found = new List<long>();\n        for (long d = 1; d <= n; d++) {\n            if (n % d == 0) found.Add(d);\n        }\n        return found;\n    }\n",
            "public static List<long> Divisors(long n) {\n    return Enumerable.Range(1, (int)n).Select(d => (long)d).Where(d => n % d == 0).ToList();\n}",
            "using System;\nusing System.Collections.Generic;\n\nnamespace Numbers\n{\n    internal struct Range { public long Low, High; }\n\n    public class Divider\n    {\n        public static List<long> Divisors(long n)\n        {\n            var range = new Range { Low = 1, High = n };\n            var found = new SortedSet<long>();\n            for (var d = range.Low; d * d <= range.High; d++)\n                if (n % d == 0) { found.Add(d); found.Add(n / d); }\n            return new List<long>(found);\n        }\n    }\n}"],
        "longest": ["        string best = \"\";\n        foreach (var word in words) {\n            if (word.Length > best.Length) best = word;\n        }\n        return best;\n    }\n",
            "public static string Longest(List<string> words) {\n    return words.OrderByDescending(w => w.Length).FirstOrDefault() ?? \"\";\n}",
            "public class Problem {\n    delegate bool Rule(string a, string b);\n    public static string Longest(List<string> words) {\n        Rule better = (a, b) => a.Length > b.Length;\n        return words.Aggregate(\"\", (best, w) => better(w, best) ? w : best);\n    }\n}"],
        "first_above": ["        foreach (long n in numbers) {\n            if (n > limit) {\n                return n;\n            }\n        }\n        return null;\n    }\n",
            "public static Nullable<long> FirstAbove(List<long> numbers, long limit) {\n    return numbers.Where(n => n > limit).Select(n => (long?)n).FirstOrDefault();\n}",
            "using System.Threading;\nusing System.Collections.Generic;\n\npublic class Solution {\n    public static long? FirstAbove(List<long> numbers, long limit) {\n        long? found = null;\n        var t = new Thread(() => { foreach (var n in numbers) if (n > limit) { found = n; break; } });\n        t.Start();\n        t.Join();\n        return found;\n    }\n}"],
        "mean": ["        float sum = 0;\n        foreach (var v in values) sum += v;\n        return sum / values.Count;\n    }\n",
            "public static float Mean(List<float> values) {\n    return values.Average();\n}",
            "static class Extensions {\n    public static float Total(this List<float> v) { float s = 0; v.ForEach(x => s += x); return s; }\n}\n\nclass Problem {\n    public static float Mean(List<float> values) { return values.Total() / values.Count; }\n}"],
        "total": ["        long sum = 0;\n        foreach (var name in names) {\n            if (prices.ContainsKey(name)) sum += prices[name];\n        }\n        return sum;\n    }\n",
            "public static long Total(Dictionary<string, long> prices, List<string> names) {\n    long sum = 0, price;\n    foreach (var n in names) if (prices.TryGetValue(n, out price)) sum += price;\n    return sum;\n}",
            "using System.Collections.Generic;\nusing System.Linq;\n\npublic interface IItem { long Price { get; } }\npublic class Item : IItem { public long Price { get; set; } }\n\npublic class Shop\n{\n    public static long Total(Dictionary<string, long> prices, List<string> names)\n    {\n        var items = from n in names where prices.ContainsKey(n) select new Item { Price = prices[n] };\n        return items.Cast<IItem>().Sum(i => i.Price);\n    }\n}"],
        "matrix_sum": ["        long sum = 0;\n        foreach (var row in rows)\n            foreach (var x in row)\n                sum += x;\n        return sum;\n    }\n",
            "public static long MatrixSum(List<List<long>> rows) {\n    return rows.SelectMany(row => row).Sum();\n}",
            "public class Solution\n{\n    /* { */\n    public static long MatrixSum(List<List<long>> rows)\n    {\n        long sum = 0;\n        rows.ForEach(row => row.ForEach(x => sum += x));\n        return sum;\n    }\n}"],
        "vowels": ["        long count = 0;\n        foreach (char c in text) {\n            if (\"aeiouAEIOU\".IndexOf(c) >= 0) {\n                count++;\n            }\n        }\n        return count;\n    }\n",
            "private static bool IsVowel(char c) {\n    return \"aeiou\".Contains(char.ToLower(c).ToString());\n}\n\npublic static long Vowels(string text) {\n    return text.Count(IsVowel);\n}",
            "using System.Text.RegularExpressions;\n\npublic class Solution {\n    public static long Vowels(string text) {\n        return Regex.Matches(text, \"[aeiou]\", RegexOptions.IgnoreCase).Count;\n    }\n}"],
    },
    "js": {
        "join_numbers": ["    return [start, ...numbers.map(n => 2 * n)];\n}\n",
            "const join_numbers = (numbers, start) => [start].concat(numbers.map((n) => n * 2));\nmodule.exports = { join_numbers };\nconsole.log('hello');"],
        "even_sum": ["  let sum = 0;\n  for (const n of numbers) sum += n;\n  return sum % 2 === 0;\n}\n\nconsole.log(even_sum([1, 2]));\n",
            "function even_sum(numbers) {\n  return numbers.reduce((a, b) => a + b, 0) % 2 === 0;\n}\n\nmodule.exports = even_sum;",
            "const even_sum = (numbers) => {\n  const odd = numbers.filter((n) => n % 2 !== 0);\n  return odd.length % 2 === 0;\n};\n\nconsole.log(even_sum([1, 1]));"],
        "backwards": ["  return text.split('').reverse().join('');\n}",
            "'use strict';\n\nfunction backwards(text) {\n  let out = '';\n  for (const c of text) out = c + out;\n  return out;\n}",
            "var backwards = function (text) {\n  return text === '' ? '' : backwards(text.slice(1)) + text[0];\n};"],
        "fibonacci": ["  let [a, b] = [0, 1];\n  while (n-- > 0) {\n    [a, b] = [b, a + b];\n  }\n  return a;\n}\n",
            "const memo = new Map();\nfunction fibonacci(n) {\n  if (n < 2) return n;\n  if (!memo.has(n)) memo.set(n, fibonacci(n - 1) + fibonacci(n - 2));\n  return memo.get(n);\n}",
            "function* fibs() {\n  let a = 0, b = 1;\n  for (;;) {\n    yield a;\n    [a, b] = [b, a + b];\n  }\n}\nfunction fibonacci(n) {\n  for (const x of fibs()) if (n-- === 0) return x;\n}"],
        "divisors": ["  const out = [];\n  for (let d = 1; d <= n; d++) {\n    if (n % d === 0) {\n      out.push(d);\n    }\n  }\n  return out;\n}\n\n// divisors(12)\n",
            "const divisors = n => Array.from({ length: n }, (_, i) => i + 1).filter(d => n % d === 0);",
            "class Divider {\n  constructor(n) { this.n = n; }\n  all() { return [...Array(this.n).keys()].map((k) => k + 1).filter((d) => !(this.n % d)); }\n}\nfunction divisors(n) { return new Divider(n).all(); }\nif (require.main === module) console.log(divisors(4));"],
        "longest": ["  let best = '';\n  words.forEach(word => {\n    if (word.length > best.length) best = word;\n  });\n  return best;\n}",
            "function longest(words) {\n  return words.reduce((a, b) => (b.length > a.length ? b : a), '');\n}\n\nmodule.exports = { longest };",
            "/**\n * @param {string[]} words\n * @return {string}\n */\nvar longest = function(words) {\n    words.sort((a, b) => b.length - a.length);\n    return words[0] || '';\n};"],
        "first_above": ["  return numbers.find(n => n > limit);\n}",
            "function first_above(numbers, limit) {\n  for (let i = 0; i < numbers.length; i++) {\n    if (numbers[i] > limit) return numbers[i];\n  }\n  return undefined;\n}",
            "const first_above = function first(numbers, limit) {\n  const [head, ...rest] = numbers;\n  return head === undefined || head > limit ? head : first(rest, limit);\n};"],
        "mean": ["  return values.reduce((a, b) => a + b) / values.length;\n}",
            "function sum(values) {\n  return values.reduce((a, b) => a + b, 0);\n}\n\nfunction mean(values) {\n  return sum(values) / values.length;\n}",
            "count = 0;\nfunction mean(values) {\n  total = 0;\n  for (i in values) { total += values[i]; count++; }\n  return total / values.length;\n}"],
        "total": ["  let sum = 0;\n  for (const name of names) {\n    sum += prices[name] ?? 0;\n  }\n  return sum;\n}",
            "const total = (prices, names) => names.filter((n) => n in prices).map((n) => prices[n]).reduce((a, b) => a + b, 0);\nexports.total = total;",
            "function total(prices, names) {\n  const known = new Map(Object.entries(prices));\n  return names.reduce((s, n) => s + (known.get(n) || 0), 0);\n}"],
        "matrix_sum": ["  return rows.flat().reduce((a, b) => a + b, 0);\n}",
            "function matrix_sum(rows) {\n  let sum = 0;\n  for (const row of rows) for (const x of row) sum += x;\n  return sum;\n}\nconst assert = require('assert');\nassert.strictEqual(matrix_sum([[1]]), 1);",
            "const add = (a, b) => a + b;\nlet matrix_sum = (rows) => rows.map((row) => row.reduce(add, 0)).reduce(add, 0);"],
        "vowels": ["  return (text.match(/[aeiou]/gi) || []).length;\n}",
            "const VOWELS = new Set('aeiouAEIOU');\n\nfunction vowels(text) {\n  return [...text].filter(c => VOWELS.has(c)).length;\n}",
            "function isVowel(c) {\n  switch (c) {\n    case 'a': case 'e': case 'i': case 'o': case 'u': return true;\n    default: return false;\n  }\n}\nfunction vowels(text) {\n  return text.toLowerCase().split('').map(isVowel).filter(Boolean).length;\n}"],
    },
    "ts": {
        "join_numbers": ["    return [start, ...numbers.map(n => 2 * n)];\n}\n",
            "export function join_numbers(numbers: number[], start: number): number[] {\n  return [start].concat(numbers.map((n: number): number => n * 2));\n}"],
        "even_sum": ["  let sum: number = 0;\n  for (const n of numbers) sum += n;\n  return sum % 2 === 0;\n}\n\nclass Other {}\n",
            "function even_sum(numbers: number[]): boolean {\n  return numbers.reduce((a: number, b: number) => a + b, 0) % 2 === 0;\n}\n\nconsole.log(even_sum([1, 2]));",
            "const even_sum = (numbers: number[]): boolean => numbers.filter(n => n % 2 !== 0).length % 2 === 0;"],
        "backwards": ["  return text.split('').reverse().join('');\n}",
            "export function backwards(text: string): string {\n  let out = '';\n  for (const c of text) out = c + out;\n  return out;\n}",
            "type Turn = (text: string) => string;\nconst backwards: Turn = (text) => (text === '' ? '' : backwards(text.slice(1)) + text[0]);"],
        "fibonacci": ["  let a = 0, b = 1;\n  while (n-- > 0) {\n    [a, b] = [b, a + b];\n  }\n  return a;\n}",
            "const memo: Map<number, number> = new Map();\nfunction fibonacci(n: number): number {\n  if (n < 2) return n;\n  if (!memo.has(n)) memo.set(n, fibonacci(n - 1) + fibonacci(n - 2));\n  return memo.get(n)!;\n}",
            "function* fibs(): Generator<number> {\n  let a = 0, b = 1;\n  for (;;) {\n    yield a;\n    [a, b] = [b, a + b];\n  }\n}\nfunction fibonacci(n: number): number {\n  for (const x of fibs()) if (n-- === 0) return x;\n  throw new Error('never');\n}"],
        "divisors": ["  const out: number[] = [];\n  for (let d = 1; d <= n; d++) {\n    if (n % d === 0) {\n      out.push(d);\n    }\n  }\n  return out;\n}\n\nfunction other() {}\n",
            "function range(n: number): number[] {\n  return Array.from({ length: n }, (_, i) => i + 1);\n}\n\nfunction divisors(n: number): number[] {\n  return range(n).filter((d) => n % d === 0);\n}",
            "class Divider {\n  private readonly found: Set<number> = new Set();\n  constructor(private n: number) {}\n  all(): number[] {\n    for (let d = 1; d * d <= this.n; d++) if (this.n % d === 0) this.found.add(d).add(this.n / d);\n    return [...this.found].sort((a, b) => a - b);\n  }\n}\nexport function divisors(n: number): number[] { return new Divider(n).all(); }\nexport default divisors;"],
        "longest": ["  let best = '';\n  words.forEach(word => {\n    if (word.length > best.length) best = word;\n  });\n  return best;\n}",
            "function longest(words: Array<string>): string {\n  return words.reduce((a, b) => (b.length > a.length ? b : a), '');\n}",
            "interface Scored { word: string; score: number }\nfunction longest(words: string[]): string {\n  const scored: Scored[] = words.map((word) => ({ word, score: word.length }));\n  scored.sort((a, b) => b.score - a.score);\n  return scored[0]?.word ?? '';\n}"],
        "first_above": ["  return numbers.find(n => n > limit);\n}",
            "function first_above(numbers: number[], limit: number): number | undefined {\n  for (const n of numbers) {\n    if (n > limit) {\n      return n;\n    }\n  }\n  return undefined;\n}",
            "type Maybe<T> = T | undefined;\nfunction first<T>(items: T[], wanted: (item: T) => boolean): Maybe<T> {\n  return items.filter(wanted)[0];\n}\nfunction first_above(numbers: number[], limit: number): Maybe<number> {\n  return first(numbers, (n) => n > limit);\n}"],
        "mean": ["  return values.reduce((a, b) => a + b) / values.length;\n}",
            "namespace Stats {\n  export const sum = (values: number[]): number => values.reduce((a, b) => a + b, 0);\n}\n\nfunction mean(values: number[]): number {\n  return Stats.sum(values) / values.length;\n}",
            "enum Kind { Sum, Count }\nfunction mean(values: number[]): number {\n  const parts: Record<Kind, number> = { [Kind.Sum]: 0, [Kind.Count]: 0 };\n  values.forEach((v) => { parts[Kind.Sum] += v; parts[Kind.Count]++; });\n  return parts[Kind.Sum] / parts[Kind.Count];\n}"],
        "total": ["  let sum = 0;\n  for (const name of names) {\n    sum += prices[name] ?? 0;\n  }\n  return sum;\n}",
            "function total(prices: { [key: string]: number }, names: string[]): number {\n  return names.filter((n) => n in prices).map((n) => prices[n]).reduce((a, b) => a + b, 0);\n}",
            "type Prices = Record<string, number>;\nfunction total(prices: Prices, names: string[]): number {\n  const known = new Map<string, number>(Object.entries(prices));\n  return names.reduce((s, n) => s + (known.get(n) || 0), 0);\n}\nmodule.exports = { total };"],
        "matrix_sum": ["  return rows.flat().reduce((a, b) => a + b, 0);\n}",
            "function matrix_sum(rows: number[][]): number {\n  let sum = 0;\n  for (const row of rows) for (const x of row) sum += x;\n  return sum;\n}",
            "const add = (a: number, b: number): number => a + b;\nlet matrix_sum = function (rows: number[][]): number {\n  return rows.map((row) => row.reduce(add, 0)).reduce(add, 0);\n};"],
        "vowels": ["  return (text.match(/[aeiou]/gi) || []).length;\n}",
            "const VOWELS: ReadonlySet<string> = new Set('aeiouAEIOU');\n\nfunction vowels(text: string): number {\n  return [...text].filter(c => VOWELS.has(c)).length;\n}",
            "function isVowel(c: string): c is 'a' | 'e' | 'i' | 'o' | 'u' {\n  return 'aeiou'.includes(c);\n}\nasync function later(): Promise<void> { await null; }\nfunction vowels(text: string): number {\n  return text.toLowerCase().split('').filter(isVowel).length;\n}\nlater();"],
    },
    "php": {
        "join_numbers": ["    return array_merge([$start], array_map(fn($n) => 2 * $n, $numbers));\n}\n",
            "<?php\nfunction join_numbers(array $numbers, int $start): array {\n    $all = [$start];\n    foreach ($numbers as $n) $all[] = 2 * $n;\n    return $all;\n}\n?>"],
        "even_sum": ["    $sum = 0;\n    foreach ($numbers as $n) {\n        $sum += $n;\n    }\n    return $sum % 2 === 0;\n}\n\nfunction helper() {\n    return 1;\n}\n",
            "function even_sum(array $numbers): bool {\n    return array_sum($numbers) % 2 === 0;\n}",
            "<?php\nfunction even_sum($numbers) {\n    return count(array_filter($numbers, fn($n) => $n % 2 !== 0)) % 2 === 0;\n}\n\necho even_sum([1, 2]) ? 'yes' : 'no';\n?>"],
        "backwards": ["    return strrev($text);\n}",
            "<?php\n\nfunction backwards(string $text): string\n{\n    return implode('', array_reverse(str_split($text)));\n}",
            "<?php\nfunction backwards($text) {\n    $out = '';\n    for ($i = strlen($text) - 1; $i >= 0; $i--) {\n        $out .= $text[$i];\n    }\n    return $out;\n}\n"],
        "fibonacci": ["    [$a, $b] = [0, 1];\n    while ($n-- > 0) {\n        [$a, $b] = [$b, $a + $b];\n    }\n    return $a;\n}",
            "<?php\n$memo = [];\n\nfunction fibonacci($n) {\n    global $memo;\n    if ($n < 2) return $n;\n    if (!isset($memo[$n])) $memo[$n] = fibonacci($n - 1) + fibonacci($n - 2);\n    return $memo[$n];\n}\n?>",
            "<?php\nfunction fibonacci(int $n): int {\n    static $memo = [0, 1];\n    return $memo[$n] ??= fibonacci($n - 1) + fibonacci($n - 2);\n}"],
        "divisors": ["    $out = [];\n    for ($d = 1; $d <= $n; $d++) {\n        if ($n % $d === 0) {\n            $out[] = $d;\n        }\n    }\n    return $out;\n}\n\n// divisors(12)\n",
            "<?php\nfunction divisors($n) {\n    return array_values(array_filter(range(1, $n), fn($d) => $n % $d === 0));\n}",
            "<?php\nfinal class Divider {\n    public function __construct(private int $n) {}\n    public function all(): array {\n        $found = [];\n        for ($d = 1; $d * $d <= $this->n; $d++) {\n            if ($this->n % $d === 0) { $found[$d] = true; $found[intdiv($this->n, $d)] = true; }\n        }\n        ksort($found);\n        return array_keys($found);\n    }\n}\nfunction divisors(int $n): array { return (new Divider($n))->all(); }"],
        "longest": ["    $best = '';\n    foreach ($words as $word) {\n        if (strlen($word) > strlen($best)) $best = $word;\n    }\n    return $best;\n}",
            "<?php\nfunction longest(array $words): string {\n    usort($words, fn($a, $b) => strlen($b) <=> strlen($a));\n    return $words[0] ?? '';\n}",
            "function longer($a, $b) {\n    return strlen($b) > strlen($a) ? $b : $a;\n}\n\nfunction longest($words) {\n    return array_reduce($words, 'longer', '');\n}"],
        "first_above": ["    foreach ($numbers as $n) {\n        if ($n > $limit) {\n            return $n;\n        }\n    }\n    return null;\n}",
            "<?php\nfunction first_above(array $numbers, int $limit): ?int {\n    $found = array_filter($numbers, function ($n) use ($limit) {\n        return $n > $limit;\n    });\n    return $found ? reset($found) : null;\n}",
            "<?php\nfunction above(iterable $numbers, $limit): Generator {\n    foreach ($numbers as $n) if ($n > $limit) yield $n;\n}\nfunction first_above($numbers, $limit) {\n    return above($numbers, $limit)->current();\n}"],
        "mean": ["    return array_sum($values) / count($values);\n}",
            "<?php\nfunction mean(array $values): float {\n    $sum = 0.0;\n    foreach ($values as $v) { $sum += $v; }\n    return $sum / count($values);\n}",
            "<?php\ntrait Sums { public static function of(array $v): float { return array_sum($v); } }\nclass Stats { use Sums; }\nfunction mean($values) { return Stats::of($values) / count($values); }"],
        "total": ["    $sum = 0;\n    foreach ($names as $name) {\n        $sum += $prices[$name] ?? 0;\n    }\n    return $sum;\n}",
            "<?php\nfunction total(array $prices, array $names): int {\n    return array_sum(array_map(fn(string $n): int => $prices[$n] ?? 0, $names));\n}",
            "<?php\ninterface Priced { public function price(): int; }\nfunction total($prices, $names) {\n    $sum = 0;\n    foreach ($names as $n) {\n        $item = new class($prices[$n] ?? 0) implements Priced {\n            private $p;\n            public function __construct($p) { $this->p = $p; }\n            public function price(): int { return $this->p; }\n        };\n        $sum += $item->price();\n    }\n    return $sum;\n}"],
        "matrix_sum": ["    $sum = 0;\n    foreach ($rows as $row) {\n        foreach ($row as $x) {\n            $sum += $x;\n        }\n    }\n    return $sum;\n}",
            "<?php\nfunction matrix_sum($rows) {\n    return array_sum(array_map('array_sum', $rows));\n}\nassert(matrix_sum([[1]]) === 1);",
            "<?php\nfunction matrix_sum(array $rows): int {\n    $sum = 0;\n    array_walk_recursive($rows, function ($x) use (&$sum) { $sum += $x; });\n    return $sum;\n}"],
        "vowels": ["    return preg_match_all('/[aeiou]/i', $text);\n}",
            "<?php\nconst VOWELS = ['a', 'e', 'i', 'o', 'u'];\n\nfunction is_vowel(string $c): bool {\n    return in_array(strtolower($c), VOWELS, true);\n}\n\nfunction vowels(string $text): int {\n    return count(array_filter(str_split($text), 'is_vowel'));\n}",
            "<?php\nfunction vowels($text) {\n    return strlen($text) - strlen(str_ireplace(['a', 'e', 'i', 'o', 'u'], '', $text));\n}"],
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
        ("even_sum", "an export", "```ts\nexport const even_sum = (numbers: number[]): boolean => numbers.reduce((a, b) => a + b, 0) % 2 === 0;\n```"),
        ("backwards", "a default export", "```ts\nexport default function backwards(text: string): string {\n  return [...text].reverse().join('');\n}\n```"),
        ("longest", "an import", "```ts\nimport * as util from 'util';\n\nfunction longest(words: string[]): string {\n  util.format('%s', words);\n  return words.reduce((a, b) => (b.length > a.length ? b : a), '');\n}\n\nexport { longest };\n```"),
        ("vowels", "an import of a default", "```ts\nimport assert from 'node:assert';\nexport function vowels(text: string): number {\n  assert.ok(typeof text === 'string');\n  return (text.match(/[aeiou]/gi) ?? []).length;\n}\n```"),
        ("divisors", "a shebang", "```ts\n#!/usr/bin/env ts-node\nfunction divisors(n: number): number[] {\n  return Array.from({ length: n }, (_, k) => k + 1).filter((d) => n % d === 0);\n}\n```"),
        ("mean", "exports.f = ...", "```ts\nexports.mean = (values: number[]): number => values.reduce((a, b) => a + b, 0) / values.length;\n```"),
        ("fibonacci", "let f; f = ...", "```ts\nlet fibonacci: (n: number) => number;\nfibonacci = (n) => {\n  let [a, b] = [0, 1];\n  while (n--) [a, b] = [b, a + b];\n  return a;\n};\n```"),
        ("matrix_sum", "declares assert", "```ts\nconst assert = (ok: boolean): void => { if (!ok) throw new Error('no'); };\nfunction matrix_sum(rows: number[][]): number { return rows.flat().reduce((a, b) => a + b, 0); }\nassert(matrix_sum([[1]]) === 1);\n```"),
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
    options = argparse.ArgumentParser()
    options.add_argument("--languages", default=",".join(ANSWERS))
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args()
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
