from __future__ import annotations

import pytest

from ebft.sandbox import bridges
from tests.sandbox.attacks.others import PROBLEMS


@pytest.mark.parametrize("language", PROBLEMS)
def test_signatures(language: str) -> None:
    sign = bridges.signature(language, PROBLEMS[language]["prompt"])
    assert sign.name.lower().replace("_", "") == "joinnumbers"
    assert sign.arguments.replace("$", "") == "numbers, start"


def test_signatures_with_brackets_in_types() -> None:
    head = "std::map<std::string,long> f(std::map<std::string,std::vector<long>> a, std::tuple<long, long> b) {\n"
    sign = bridges.signature("cpp", head)
    assert (sign.returns, sign.arguments) == ("std::map<std::string,long>", "a, b")
    sign = bridges.signature("rs", "fn f(a: Vec<(isize, String)>, mut b: f64) -> (f64, Option<isize>) {\n")
    assert (sign.returns, sign.arguments) == ("(f64, Option<isize>)", "a, b")
    sign = bridges.signature("go", "func f(a []interface{}, b map[string]int) []interface{} {\n")
    assert (sign.returns, sign.arguments) == ("[]interface{}", "a, b")
