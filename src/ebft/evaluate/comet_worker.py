"""Run by `comet` with an interpreter that has unbabel-comet: `comet_worker.py task.json scores.json`."""

import json
import os
import sys

BATCH_SIZE = 16
NOT_INSTALLED = 3


def main() -> int:
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
    model = load_from_checkpoint(path)
    gpus = 1 if torch.cuda.is_available() else 0
    output = model.predict(task["rows"], batch_size=BATCH_SIZE, gpus=gpus)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump([float(score) for score in output.scores], file)
    return 0


if __name__ == "__main__":
    # Beside this file stands ebft's own comet.py, which must not be taken for the library.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    sys.exit(main())
