"""Stands in for `python -m ebft.cli` where a test is about the sweep and not about the runs.

It leaves what a run leaves, notes its environment, and does as its recipe's `run_name` says: `fail` ends with an error,
`wait` runs until it is stopped, `once` fails the first time. As `ebft eval` it leaves results without numbers. To a
scheduler's notice it answers as a run does.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import yaml


def note(folder: Path, **what: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "attempts.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


if sys.argv[1] == "eval":
    given = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[2:])
    settings = {**json.loads(os.environ["STUB_SETTINGS"]), "limit": int(given["limit"])}
    note(folder := Path(given["output"]), model=given["model"])
    entry = {"name": "humaneval", "metrics": {}, "settings": settings}
    (folder / "results.json").write_text(json.dumps({"tasks": {"humaneval": entry}}))
    sys.exit(0)

assert [sys.argv[2], *sys.argv[4:]] == ["--config", "--resume"]
recipe = yaml.safe_load(Path(sys.argv[3]).read_text())
output, how, rate = Path(recipe["output_dir"]), recipe.get("run_name"), float(recipe.get("learning_rate", 0))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
first_time = not output.exists()
note(output, command=sys.argv[1], start=time.time(), gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
(output / "recipe.yaml").write_text(yaml.safe_dump(recipe))
if how == "fail" or (how == "once" and first_time) or (how == "diverge" and rate > 1):
    print("ebft: this point fails\nebft: there is no checkpoint yet", file=sys.stderr)
    sys.exit(2)
try:
    time.sleep(60 if how == "wait" else 0.1)
except KeyboardInterrupt:
    (output / "interrupted").touch()
    sys.exit(130)
note(output, end=time.time())
metrics = {"eval_cross_entropy": rate, "eval_cross_entropy_se": 0.25}
(output / "metrics.jsonl").write_text(json.dumps({"step": 1, **metrics, "spent/seconds": 1.0}) + "\n")
results = {"method": "ebft", "steps": recipe.get("max_steps", 1), "before": metrics, "after": metrics}
(output / "results.json").write_text(json.dumps(results))
