"""Answers of one model to code problems, in several prompt forms, to be scored where there is a sandbox.

    python results/evidence/answers.py MODEL --task humaneval --problems HumanEval.jsonl --out FOLDER --samples 4
    ebft score humaneval --problems HumanEval.jsonl --samples FOLDER/chat-samples.jsonl --output chat.json

Forms: `chat` asks for the whole function in a code block, `evalplus` and `qwen` are the prompts of EvalPlus (which
also begins the answer) and of Qwen2.5-Coder's own evaluation, `raw` is the function's head, and `trained` is the
instruction of `chat` in the form of the training data here: the text and an empty line, without a template. Each form:
one greedy answer, and samples at 0.6; MBPP has `chat` and `trained` only. `--between START WEIGHT` takes weights
between another checkpoint (0) and the model (1).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft.data.rows import read_rows
from ebft.evaluate.generation import GenerationSettings, TransformersGenerator, chat_text
from ebft.fetch import resolve
from ebft.problems.catalog import load_problems

INSTRUCTION = "Complete the following Python function. Answer with the whole function, its imports included, in one"
EVALPLUS = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
EVALPLUS_BEGINS = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
    "```python\n"
)
QWEN = (
    "Please continue to complete the function. You are not allowed to modify the given code and do the completion "
    "only. Please return all completed function in a codeblock. Here is the given code to do completion:"
)
Row = dict[str, Any]  # of a file of problems
# Text and style of the generator, and the strings that end an answer.
FORMS: dict[str, tuple[Callable[[Row, Any], str], Any, tuple[str, ...]]] = {
    "chat": (lambda row, _: _instruction(row), "chat", ()),
    "trained": (lambda row, _: _instruction(row) + "\n\n", "rendered", ()),
    "evalplus": (
        lambda row, tokenizer: _turn(f"{EVALPLUS}\n```\n{row['prompt'].strip()}\n```\n", tokenizer) + EVALPLUS_BEGINS,
        "rendered",
        ("\n```\n",),
    ),
    "qwen": (lambda row, _: f"{QWEN}\n```python\n{row['prompt'].strip()}\n```\n", "chat", ()),
    "raw": (lambda row, _: row["prompt"], "raw", ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")),
}


def _instruction(row: Row) -> str:
    if "test_list" in row:  # MBPP
        task = f"{row['text'].strip()}\nIt must pass this test: {row['test_list'][0].strip()}"
        return f"{task}\n\nAnswer with the whole function, its imports included, in one ```python code block."
    return f"{INSTRUCTION} ```python code block.\n\n```python\n{row['prompt'].strip()}\n```"


def _turn(text: str, tokenizer: Any) -> str:
    return chat_text([{"role": "user", "content": text}], tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--task", default="humaneval")
    parser.add_argument("--problems", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--forms", nargs="+", default=["chat", "trained"], choices=FORMS)
    parser.add_argument("--samples", type=int, default=4, help="of each problem, at 0.6")
    parser.add_argument("--kinds", nargs="+", default=["greedy", "samples"], choices=["greedy", "samples"])
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=656)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--between", nargs=2, metavar=("START", "WEIGHT"))
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = resolve(args.model)
    tokenizer = AutoTokenizer.from_pretrained(place)
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(place, dtype=torch.bfloat16).to(device)
    if args.between:
        start = load(resolve(args.between[0]), dtype=torch.bfloat16).to(device)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), start.parameters(), strict=True):
                ours.copy_(torch.lerp(theirs.float(), ours.float(), float(args.between[1])))
        del start
    generator = TransformersGenerator(model, tokenizer, args.batch_size)
    problems = load_problems(args.task, args.problems)[: args.limit]
    keys, rows = [problem.task_id for problem in problems], list(islice(read_rows(args.problems), args.limit))
    args.out.mkdir(parents=True, exist_ok=True)
    for form in args.forms:
        text, style, stop = FORMS[form]
        prompts = [text(row, tokenizer) for row in rows]
        for kind, temperature, samples in (("greedy", 0.0, 1), ("samples", 0.6, args.samples)):
            if kind not in args.kinds:
                continue
            began = time.monotonic()
            settings = GenerationSettings(
                args.max_new_tokens, temperature, None, samples, stop, prompt_style=style, seed=args.seed
            )
            found = generator.complete(prompts, settings, keys)
            with (args.out / f"{form}-{kind}.jsonl").open("w") as file:
                for key, answers in zip(keys, found, strict=True):
                    for one in answers:
                        row = {"task_id": key, "completion": one.text, "finish": one.finish, "tokens": one.tokens}
                        file.write(json.dumps(row) + "\n")
            print(f"{args.out.name} {form} {kind}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
