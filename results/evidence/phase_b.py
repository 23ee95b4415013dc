"""Phase B: does the best EBFT solve more problems than the best SFT? The rules were fixed before the first run.

    python results/evidence/phase_b.py select > jobs.txt          # seed 0: every rate, gamma and step
    python results/evidence/phase_b.py choose scores/select       # by pass@1 in the trained form on MBPP train + valid.
    python results/evidence/phase_b.py weights > jobs.txt         # seed 0: the chosen SFT, mixed with the start model
    python results/evidence/phase_b.py choose scores/select       # again: now also the weight
    python results/evidence/phase_b.py test > jobs.txt            # seeds 1 to 6 of what was chosen
    python results/evidence/phase_b.py verdict scores/test        # the primary test, and everything else with Holm

`lanes.py` runs a list on a GPU, `ebft score` scores the answers where there is a sandbox:

    ebft score mbpp --problems FILE --samples answers/select/NAME/trained-samples.jsonl --output scores/select/NAME.json
    ebft score humaneval ... --output scores/test/NAME.humaneval.json        (and NAME.mbpp.json)

HumanEval and MBPP's test set (664 problems) never choose; seed 0 is never tested.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebft.method.measures import SumsAndCounts
from ebft.studies.statistics import Measured, Summary, difference, holm, measured, summarise

HERE = "results/evidence"
START = "qwen2.5-coder-0.5b"
RATES = ("2e-6", "5e-6", "1e-5", "2e-5")
GAMMAS = ("0", "0.1")
STEPS = (160, 320)
WEIGHTS = ("0.25", "0.5", "0.75")
SEEDS = range(1, 7)
CHOICE = Path(HERE) / "phase_b_choice.json"
EBFT = "--horizon 8 --stride 8 --samples 4 --temperature 0.6 --whitening reference --short_truths true"
SFT = "--max_length 512 --pack_training true --short_truths true"
# Files of MBPP and HumanEval; `select` needs train and validation in one.
PROBLEMS = {"select": "mbpp-train-validation.jsonl", "humaneval": "HumanEval.jsonl", "mbpp": "mbpp-test.jsonl"}


def train(method: str, rate: str, steps: int, seed: int, name: str) -> str:
    """The command that trains; with `steps` of STEPS checkpoints before the last one hold the model alone."""
    own = "python3 -m ebft sft" if method == "sft" else "python3 -m ebft train"
    if method.endswith("-permuted"):
        own = f"python3 {HERE}/permuted.py train"
    flags = SFT if method == "sft" else f"{EBFT} --gamma {method.split('-')[1]}"
    return (
        f"{own} --config {HERE}/recipe.yaml {flags} --learning_rate {rate} --max_steps {steps} --seed {seed} "
        f"--save_strategy steps --save_steps {STEPS[0]} --save_only_model true --output_dir runs/b/{name}"
    )


def select() -> Iterator[str]:
    for method in ("sft", *(f"ebft-{gamma}" for gamma in GAMMAS)):
        for rate in RATES:
            name = f"{method}-{rate}"
            seconds = 100 if method == "sft" else 320
            spare = f"rm -r runs/b/{name}/final"  # 24 checkpoints at a time are more than 64 GB of disk
            yield f"train-{name} ~{seconds}: {train(method, rate, STEPS[-1], 0, name)} && {spare}"
            for step in STEPS:
                model = f"runs/b/{name}/checkpoint-{step}"
                yield f"{_trained_form(f'{name}-{step}', model, f' after train-{name}')} && rm -r {model}"
    yield _trained_form("start", START)


def weights() -> Iterator[str]:
    chosen = json.loads(CHOICE.read_text())["sft"]
    for weight in WEIGHTS:
        yield _trained_form(f"mix-{weight}", f"{_checkpoint(chosen)} --between {START} {weight}")


def _trained_form(name: str, model: str, after: str = "") -> str:
    return (
        f"answers-{name}{after} ~120: python3 {HERE}/answers.py {model} --task mbpp --problems {PROBLEMS['select']} "
        f"--forms trained --kinds samples --samples 4 --out answers/select/{name}"
    )


def _checkpoint(chosen: dict[str, Any]) -> str:
    return f"runs/b/{chosen['method']}-{chosen['rate']}/checkpoint-{chosen['step']}"


def choose(folder: Path) -> dict[str, Any]:
    """The cell of each method with the highest pass@1; of equal ones the first, which trained less."""
    found: dict[str, Any] = {}
    for method in ("sft", "ebft"):
        names = [(m, rate, step) for m in _methods(method) for rate in RATES for step in STEPS]
        cells: list[dict[str, Any]] = [
            {"method": m, "rate": rate, "step": step, "pass@1": _pass_at_1(folder / f"{m}-{rate}-{step}.json")}
            for m, rate, step in names
        ]
        found[method] = max(cells, key=lambda cell: cell["pass@1"])
        found[f"{method}_cells"] = cells
    mixed = {weight: _pass_at_1(folder / f"mix-{weight}.json") for weight in WEIGHTS if _exists(folder, weight)}
    if mixed:
        found["mix"] = {"weight": max(mixed, key=lambda weight: mixed[weight]), "cells": mixed}
    return found


def _methods(method: str) -> list[str]:
    return ["sft"] if method == "sft" else [f"ebft-{gamma}" for gamma in GAMMAS]


def _exists(folder: Path, weight: str) -> bool:
    return (folder / f"mix-{weight}.json").exists()


def _pass_at_1(file: Path) -> float:
    return float(json.loads(file.read_text())["pass@1"])


def test() -> Iterator[str]:
    choice = json.loads(CHOICE.read_text())
    sft, ebft = choice["sft"], choice["ebft"]
    rows = [(sft["method"], sft), (ebft["method"], ebft), (f"{ebft['method']}-permuted", ebft)]
    yield from _chat_form("start", START, 0)
    for seed in SEEDS:
        for method, cell in rows:
            name = f"{method}-seed{seed}"
            seconds = (60 if method == "sft" else 180) * cell["step"] // STEPS[0]
            yield f"train-{name} ~{seconds}: {train(method, cell['rate'], cell['step'], seed, name)}"
            model = f"runs/b/{name}/checkpoint-{cell['step']}"
            yield from _chat_form(name, model, seed, f" after train-{name}")
            if method == "sft":
                weight = choice["mix"]["weight"]
                yield from _chat_form(
                    f"mix-seed{seed}", f"{model} --between {START} {weight}", seed, f" after train-{name}"
                )


def _chat_form(name: str, model: str, seed: int, after: str = "") -> Iterator[str]:
    for task in ("humaneval", "mbpp"):
        yield (
            f"answers-{name}-{task}{after} ~{100 if task == 'humaneval' else 200}: python3 {HERE}/answers.py {model} "
            f"--task {task} --problems {PROBLEMS[task]} --forms chat --kinds samples --samples 8 --seed {seed} "
            f"--out answers/test/{name}.{task}"
        )


def verdict(folder: Path) -> dict[str, Any]:
    """Values with their errors and differences from SFT; problems and seeds are both drawn at random."""
    choice = json.loads(CHOICE.read_text())
    ebft = choice["ebft"]["method"]
    runs = {
        name: [_measured(folder, f"{name}-seed{seed}", seed) for seed in SEEDS]
        for name in ("sft", "mix", ebft, f"{ebft}-permuted")
    }
    start = _measured(folder, "start")
    found: dict[str, Any] = {"problems": summarise([start]).items, "start": start.value}
    found["values"] = {name: _summary(summarise(mine)) for name, mine in runs.items()}
    found["primary"] = _summary(difference(runs[ebft], runs["sft"]))
    others = {
        f"{ebft} - {ebft}-permuted": difference(runs[ebft], runs[f"{ebft}-permuted"]),
        f"{ebft} - mix": difference(runs[ebft], runs["mix"]),
        "mix - sft": difference(runs["mix"], runs["sft"]),
        **{f"{name} - start": difference(mine, [start]) for name, mine in runs.items()},
    }
    corrected = holm([one.p for one in others.values()])
    found["exploratory"] = {
        name: _summary(one) | {"p_holm": p} for (name, one), p in zip(others.items(), corrected, strict=True)
    }
    return found


def _measured(folder: Path, name: str, seed: int | None = None) -> Measured:
    """The share of answers that passed, of each of the 664 problems in one order."""
    shares = []
    for task in ("humaneval", "mbpp"):
        passed: dict[str, list[bool]] = {}
        for line in (folder / f"{name}.{task}.samples.jsonl").read_text().splitlines():
            row = json.loads(line)
            passed.setdefault(row["task_id"], []).append(row["passed"])
        shares += [sum(passed[key]) / len(passed[key]) for key in sorted(passed)]
    return measured(SumsAndCounts(shares, [1.0] * len(shares)), seed)


def _summary(one: Summary) -> dict[str, Any]:
    return {"value": one.value, "interval": one.interval, "p": one.p, "seeds": one.seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["select", "choose", "weights", "test", "verdict"])
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    if args.what in ("select", "weights", "test"):
        print("\n".join({"select": select, "weights": weights, "test": test}[args.what]()))
    elif args.what == "choose":
        CHOICE.write_text(json.dumps(choose(args.folder), indent=1) + "\n")
        print(CHOICE.read_text())
    else:
        print(json.dumps(verdict(args.folder), indent=1))


if __name__ == "__main__":
    main()
