"""Does feature matching keep a model's ends? Texts of `ab` that end after every pair with a probability of 0.12.

    ebft fetch bytes-2m
    python results/ends/run.py FOLDER    # five minutes on two cores; writes results/ends/ends.json

A byte-level model learns them by SFT; then EBFT without cross-entropy goes on, with and without `short_truths`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

END, SHORTEST = 0.12, 3  # the probability after every pair, from the third on
SHARED = {
    "validation_sequences": 8,
    "context_length": 96,
    "document_masks": True,
    "horizon": 8,
    "stride": 4,
    "samples": 8,
    "temperature": 1.0,
    "whitening": "none",
    "samples_every": 0,
    "use_cpu": True,
    "save_strategy": "no",
    "eval_strategy": "no",
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, count in (("train", 1500), ("validation", 60)):
        rows = [json.dumps({"text": _text(draw)}) + "\n" for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    data = {"dataset": folder / "train.jsonl", "validation_dataset": folder / "validation.jsonl", **SHARED}
    start = folder / "sft"
    sft = {"max_length": 96, "pack_training": True, "loss_on_answers": False, "learning_rate": 1e-3, "max_steps": 60}
    _run("sft", {**data, "model": "bytes-2m", "per_device_train_batch_size": 16, **sft}, start)
    found: dict[str, dict[str, Any]] = {"the texts": {"P(end) after a pair": END}, "SFT": _ends(start)}
    for short in (False, True):
        ebft = {"gamma": 0.0, "learning_rate": 3e-4, "max_steps": 40, "per_device_train_batch_size": 12}
        run = folder / f"ebft-{short}"
        _run("train", {**data, **ebft, "model": start, "short_truths": short}, run)
        found[f"EBFT, gamma 0, short_truths {str(short).lower()}"] = {**_ends(run), **_losses(run)}
    (Path(__file__).parent / "ends.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def _text(draw: random.Random) -> str:
    pairs = SHORTEST
    while draw.random() > END:
        pairs += 1
    return "ab" * pairs


def _run(command: str, settings: dict[str, Any], output: Path) -> None:
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]
    subprocess.run([sys.executable, "-m", "ebft.cli", command, *flags, f"--output_dir={output}"], check=True)


def _ends(run: Path) -> dict[str, float]:
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    model = AutoModelForCausalLM.from_pretrained(run / "final").eval()
    ids = tokenizer("ab" * 20, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        probabilities = model(ids).logits[0].softmax(-1)[:, tokenizer.eos_token_id]
    return {"P(end) after a pair": round(float(probabilities[2 * SHORTEST + 1 :: 2].mean()), 5)}


def _losses(run: Path) -> dict[str, list[float]]:
    results = json.loads((run / "results.json").read_text())
    return {
        name: [round(results[when][f"eval_{name}"], 5) for when in ("before", "after")]
        for name in ("cross_entropy", "cfm")
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
