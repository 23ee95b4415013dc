"""The settings of transformers' `TrainingArguments`, read from its source: importing it takes seconds, which neither
`--help` nor the answer to a typo should."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "dict": dict, "list": list, "Any": Any}


@dataclass(frozen=True)
class TransformersSetting:
    type: Any  # None where it is an enumeration or another class of transformers
    default: Any
    help: str


@cache
def transformers_settings() -> dict[str, TransformersSetting]:
    """By name, in the order in which transformers declares them."""
    found = find_spec("transformers")
    assert found is not None
    assert found.submodule_search_locations is not None
    source = Path(found.submodule_search_locations[0]) / "training_args.py"
    body = ast.parse(source.read_text(encoding="utf-8")).body
    cls = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments")
    return {
        node.target.id: _setting(node)
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
    }


def _setting(node: ast.AnnAssign) -> TransformersSetting:
    """Of `name: type = field(default=..., metadata={"help": ...})`."""
    given = {word.arg: _literal(word.value) for word in node.value.keywords} if isinstance(node.value, ast.Call) else {}
    help = (given.get("metadata") or {}).get("help") or ""
    names = {part.id for part in ast.walk(node.annotation) if isinstance(part, ast.Name)}
    plain = eval(ast.unparse(node.annotation), {"__builtins__": {}}, _PLAIN) if names <= _PLAIN.keys() else None
    return TransformersSetting(plain, given.get("default"), help)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Dict):  # key by key: one may have a value that is none
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    try:
        return ast.literal_eval(node)
    except ValueError:  # a name of transformers
        return None
