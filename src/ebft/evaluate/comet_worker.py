"""Run by `translation_scores` with an interpreter that has unbabel-comet: `comet_worker.py task.json scores.json`."""

import json
import os
import sys

BATCH_SIZE = 16
NOT_INSTALLED = 3


def main() -> int:
    sys.path.pop(0)  # this folder, whose modules have common names
    try:
        import torch
        from comet import download_model, load_from_checkpoint
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    name = os.path.expanduser(task["model"])
    folder = os.path.join(name, "checkpoints", "model.ckpt")
    path = name if os.path.isfile(name) else folder if os.path.isfile(folder) else download_model(name)
    gpus = 1 if torch.cuda.is_available() else 0
    output = load_from_checkpoint(path).predict(task["rows"], batch_size=BATCH_SIZE, gpus=gpus)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump([float(score) for score in output.scores], file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
