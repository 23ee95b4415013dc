"""How far training moved the weights of final models: ||after - before|| / ||before||, over all parameters. Runs are
added to those in the file.

python results/replication/moved.py smollm2-135m moved.json runs/replication/little-1000-packed/runs/*
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from safetensors.torch import load_file

from ebft.fetch import resolve


def main(before: str, target: Path, runs: list[Path]) -> None:
    start = load_file(Path(resolve(before)) / "model.safetensors")
    size = math.sqrt(sum(float(weight.double().square().sum()) for weight in start.values()))
    found = json.loads(target.read_text()) if target.exists() else {}
    for run in runs:
        final = run / "final" / "model.safetensors"
        if final.is_file():
            after = load_file(final)
            squares = [float((after[name].double() - weight.double()).square().sum()) for name, weight in start.items()]
            found[f"{run.parent.parent.name}/{run.name}"] = round(math.sqrt(sum(squares)) / size, 6)
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(run) for run in sys.argv[3:]])
