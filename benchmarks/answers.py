"""Answers to the problems of a benchmark: side by side, with places given on as rows end, and batch after batch, where
no row joins before the last one of a batch has ended.

Both draw with the same numbers (`same_answers`: rounding may turn a near-tie), in one run, after a warm-up.

    python benchmarks/answers.py --model MODEL --humaneval FILE --device cuda --json FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from command_line import Parser, positive
from ebft.evaluate.generation import Completion, GenerationSettings, Made, TransformersGenerator
from ebft.fetch import resolve
from ebft.problems.catalog import load_problems
from provenance import command_and_date, commit, device_name


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder or name of a model")
    parser.add_argument("--humaneval", required=True, help="the benchmark's JSON lines")
    parser.add_argument("--problems", type=positive, default=164)
    parser.add_argument("--samples", type=positive, default=16)
    parser.add_argument("--batch-sizes", type=positive, nargs="+", default=[256])
    parser.add_argument("--max-new-tokens", type=positive, default=256)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parser.check_device(args.device)
    parser.check_output(args.json)
    problems = load_problems("humaneval", args.humaneval)[: args.problems]
    folder = resolve(args.model)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(args.device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [problem.raw.prompt for problem in problems]
    settings = GenerationSettings(args.max_new_tokens, 0.6, samples=args.samples, stop=problems[0].raw.stop)
    TransformersGenerator(model, tokenizer, 64).complete(prompts[:8], GenerationSettings(16))  # warm-up
    rows = []
    for batch_size in args.batch_sizes:
        ours, side_by_side = measured(TransformersGenerator(model, tokenizer, batch_size), prompts, settings, args)
        theirs, batches = measured(BatchAfterBatch(model, tokenizer, batch_size), prompts, settings, args)
        tokens = [answer.tokens for answer in ours]
        row = {
            "batch_size": batch_size,
            "answers": len(tokens),
            "mean_tokens": sum(tokens) / len(tokens),
            "longest": max(tokens),
            "same_answers": sum(map(Completion.__eq__, ours, theirs)) / len(ours),
            "side_by_side": side_by_side,
            "batch_after_batch": batches,
            "times_as_fast": batches["seconds"] / side_by_side["seconds"],
        }
        rows.append(row)
        print(json.dumps(row))
        if args.json is not None:
            result = {
                **command_and_date("answers.py", sys.argv[1:]),
                "commit": commit(),
                "machine": device_name(args.device),
                "threads": torch.get_num_threads(),
                "rows": rows,
            }
            args.json.write_text(json.dumps(result, indent=2) + "\n")


class BatchAfterBatch(TransformersGenerator):
    def stream(self, prompts: Any, settings: Any, wanted: Any, keys: Any) -> Made:
        order = [(place, sample) for place, sample, _ in self.fit_all(prompts, settings, wanted, keys)]
        size = self.batch_size or len(order)
        for start in range(0, len(order), size):
            yield from super().stream(prompts, settings, order[start : start + size], keys)


def measured(
    generator: TransformersGenerator, prompts: list[str], settings: GenerationSettings, args: argparse.Namespace
) -> tuple[list[Completion], dict[str, float]]:
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    found = generator.complete(prompts, settings)
    took = {"seconds": time.perf_counter() - start}  # tokens are read on the host: nothing is under way
    if args.device == "cuda":
        took["peak_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return [answer for answers in found for answer in answers], took


if __name__ == "__main__":
    main()
