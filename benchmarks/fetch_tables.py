"""Which of the two tables of tokens in Qwen2.5-Coder's GGUF files should stand in both places of the tied checkpoint?

The files hold the original's one table twice: for the input in 4 or 5 bits, for the output in 6 or 8. Measured is the
cross-entropy with each in each place, on source of Python's standard library and on rows of questions and answers.

    python benchmarks/fetch_tables.py qwen2.5-coder-0.5b --gguf FILE.gguf --rows codealpaca.jsonl --output FILE.json
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft.fetch import resolve
from ebft.runtime.files import write_json
from provenance import command_and_date, commit

MODULES = ("heapq", "textwrap", "bisect", "shlex", "queue", "graphlib")
LENGTH = 256


def texts(tokenizer: Any, rows: Path, tokens: int) -> dict[str, list[Tensor]]:
    """Pieces of equal length, about as many tokens of each kind."""
    asked = (json.loads(line) for line in rows.read_text().splitlines())
    chats = (
        tokenizer.apply_chat_template(
            [
                {"role": "user", "content": f"{row['instruction']}\n{row['input']}".strip()},
                {"role": "assistant", "content": row["output"]},
            ],
            tokenize=False,
        )
        for row in asked
    )
    sources = (inspect.getsource(importlib.import_module(module)) for module in MODULES)
    found = {}
    for name, stream in (("standard library", sources), ("questions and answers", chats)):
        ids: list[int] = []
        while len(ids) < tokens:
            ids += tokenizer(next(stream)).input_ids
        found[name] = list(torch.tensor(ids[: tokens // LENGTH * LENGTH]).view(-1, LENGTH))
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of each kind of text")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(resolve(given.model))
    model = AutoModelForCausalLM.from_pretrained(resolve(given.model), dtype=torch.float32)
    tensors = {tensor.name: tensor for tensor in GGUFReader(given.gguf).tensors}
    tables, types = {}, {}
    for name in ("token_embd", "output"):
        tensor = tensors[f"{name}.weight"]
        tables[name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
        types[name] = tensor.tensor_type.name
    results: dict[str, Any] = {}
    for kind, pieces in texts(tokenizer, given.rows, given.tokens).items():
        losses: dict[str, list[Tensor]] = {}
        for piece, source in itertools.product(pieces, tables):
            hidden = model.model(inputs_embeds=tables[source][piece][None]).last_hidden_state[0, :-1]
            for target, table in tables.items():
                of_piece = cross_entropy(hidden @ table.T, piece[1:], reduction="none")
                losses.setdefault(f"input {source}, output {target}", []).append(of_piece)
        joined = {places: torch.cat(parts).double() for places, parts in losses.items()}
        untied = joined["input token_embd, output output"]
        results[kind] = {"tokens": len(untied)}
        for places, of in joined.items():
            results[kind][places] = {
                "cross_entropy": of.mean().item(),
                "more_than_untied": (of - untied).mean().item(),
                "more_than_untied_se": ((of - untied).std() / len(of) ** 0.5).item(),
            }
        print(kind, json.dumps(results[kind], indent=1))
    origin = {**command_and_date(Path(__file__).name, sys.argv[1:]), "commit": commit()}
    write_json(given.output, {**origin, "model": given.model, "types": types, "results": results})


if __name__ == "__main__":
    main()
