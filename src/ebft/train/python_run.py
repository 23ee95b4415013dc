"""What a run of `EBFTTrainer` in a user's own program leaves, so that `ebft compare` takes it like one of `ebft train`.

`results.json`, `resolved.json` and the records of validation sequences, as `ebft train` writes them: "before" is what
`evaluate()` finds before training, "after" what it finds once training has ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ebft import validation
from ebft.method.measures import Record, as_logged, differences
from ebft.runtime.files import json_ready, read_json, write_json, write_text
from ebft.train import validation_records
from ebft.train.run_folder import RECIPE_FILE, RESOLVED_FILE, RESULTS_FILE, outcome


class PythonRun(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.results: dict[str, Any] = {"method": "ebft"}
        self.before: list[Record] = []
        self.trained = False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        evaluated = self.trainer.evaluated
        if evaluated is None or evaluated.metrics is not metrics:
            return  # of other data than the trainer's own
        if "ruler" not in self.results:
            self.results["ruler"] = validation.identity(args, self.trainer.features, self.trainer.eval_dataset)
        if not state.global_step:
            self.before, self.results["before"] = evaluated.records, metrics
            self._write(args, state, before=evaluated.records)
        elif self.trained:
            self._ended(args, state)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trained = False
        folder = Path(args.output_dir)
        if state.global_step and "before" not in self.results:  # resumed: what was measured at the start is on disk
            self.results |= read_json(folder / RESULTS_FILE) or {}
            self.before = validation_records.read(folder, "before")
        for ended in ("after", "change", "steps", "spent"):  # of training that is continued
            self.results.pop(ended, None)
        self._write(args, state)
        if self._ours(args, state):
            name = getattr(self.trainer.model.config, "_name_or_path", None)
            write_text(folder / RESOLVED_FILE, json.dumps({"model": name, **args.to_dict()}, indent=1, default=str))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trained = True
        self._ended(args, state)

    def _ended(self, args: Any, state: Any) -> None:
        self.results |= outcome(self.trainer)
        evaluated = self.trainer.evaluated
        if evaluated is None or evaluated.step != state.global_step:
            return self._write(args, state)
        self.results["after"] = evaluated.metrics
        if self.before:
            self.results["change"] = as_logged(differences(evaluated.records, self.before))
        self._write(args, state, after=evaluated.records)

    def _write(self, args: Any, state: Any, **records: list[Record]) -> None:
        if not self._ours(args, state):
            return
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        for when, found in records.items():
            validation_records.write(folder, "before" if when == "before" else "after", found)
        write_json(folder / RESULTS_FILE, json_ready(self.results))

    def _ours(self, args: Any, state: Any) -> bool:
        """Whether this process writes, and not into the folder of a run by `ebft train`."""
        return bool(state.is_world_process_zero) and not (Path(args.output_dir) / RECIPE_FILE).exists()
