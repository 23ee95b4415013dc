"""Run by `translation_scores` with an interpreter that has unbabel-comet: `comet_worker.py task.json scores.json`."""

import json
import os
import sys


def main() -> None:
    sys.path.pop(0)  # this folder, whose modules have common names
    import torch
    from comet import download_model, load_from_checkpoint

    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    name = os.path.expanduser(task["model"])
    folder = os.path.join(name, "checkpoints", "model.ckpt")
    path = name if os.path.isfile(name) else folder if os.path.isfile(folder) else download_model(name)
    output = load_from_checkpoint(path).predict(task["rows"], batch_size=16, gpus=int(torch.cuda.is_available()))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump([float(score) for score in output.scores], file)


if __name__ == "__main__":
    main()
