"""Stands in for `python -m ebft.cli` where a test is about the sweep and not about the runs.

It leaves what a run leaves, notes its environment, and does as its recipe's `run_name` says: `fail` ends with an error,
`wait` runs until it is stopped, `once` fails the first time. As `ebft eval` it leaves results without numbers. To a
scheduler's notice it answers as a run does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

if sys.argv[1] == "eval":
    given = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[2:] if "=" in flag)
    if "broken" in given["model"]:
        print("ebft: this evaluation fails", file=sys.stderr)
        sys.exit(2)
    folder = Path(given["output"])
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**json.loads(os.environ["STUB_SETTINGS"]), "limit": int(given["limit"])}
    entry = {"name": "humaneval", "metrics": {}, "settings": settings}
    (folder / "results.json").write_text(json.dumps({"tasks": {"humaneval": entry}}))
    with (folder / "attempts.jsonl").open("a") as file:
        file.write(json.dumps({"model": given["model"]}) + "\n")
    sys.exit(0)

command, recipe = sys.argv[1], yaml.safe_load(Path(sys.argv[3]).read_text())
assert sys.argv[2] == "--config"
assert sys.argv[4:] == ["--resume"]
output, how = Path(recipe["output_dir"]), recipe.get("run_name")
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
first_time = not output.exists()
output.mkdir(parents=True, exist_ok=True)
(output / "recipe.yaml").write_text(yaml.safe_dump(recipe))
with (output / "attempts.jsonl").open("a") as file:
    variables = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
    file.write(json.dumps({"command": command, "start": time.time(), **variables}) + "\n")
if how == "fail" or (how == "once" and first_time):
    print("ebft: this point fails\nebft: there is no checkpoint yet", file=sys.stderr)
    sys.exit(2)
try:
    time.sleep(60 if how == "wait" else 0.3)
except KeyboardInterrupt:
    (output / "interrupted").touch()
    sys.exit(130)
if how == "diverge" and recipe["learning_rate"] > 1:
    print("ebft: the loss is nan at step 3; try a lower learning_rate", file=sys.stderr)
    sys.exit(1)
value, steps = float(recipe.get("learning_rate", 0)), recipe.get("max_steps", 1)
metrics = {"eval_cross_entropy": value, "eval_cross_entropy_se": 0.25}
(output / "metrics.jsonl").write_text(json.dumps({"step": 1, **metrics, "spent/seconds": 1.0}) + "\n")
with (output / "attempts.jsonl").open("a") as file:
    file.write(json.dumps({"end": time.time()}) + "\n")
(output / "results.json").write_text(
    json.dumps({"method": "ebft", "steps": steps, "before": metrics, "after": metrics})
)
