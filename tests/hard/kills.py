"""`kill -9` and SIGTERM at random moments over train, sft, rlvr, eval, score and sweep, on one and two processes.

Every run is started, ended at a random moment (perhaps twice), resumed to its end, and compared with one that was left
alone: the same weights, bit for bit, the same metrics; of `eval` and `score` every completion and every outcome once.

    python -m tests.hard.kills --each 100 --seed 0
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ebft import cli
from tests import killed_runs
from tests.baselines.runs import ROWS, make_model, write_recipe, write_rows
from tests.distributed import group
from tests.hard import options
from tests.problems.rows import HUMANEVAL

SETTINGS = {"gamma": 0.1, "max_steps": 9, "save_steps": 3, "save_total_limit": 2, "samples_every": 0, "eval_steps": 4}
RLVR = {"rewards": "bleu", "generations": 4, "max_new_tokens": 3}
ROWS_OF = {"score": 40, "eval": 24}  # completions
PROCESSES = {"train": 1, "train on 2": 2, "sft": 1, "rlvr": 1, "eval": 1, "score": 1, "sweep": 1}
CASES = [*PROCESSES]
# The points of a sweep are runs of `train` whose processes import everything anew: it has every second turn.
TURNS = [*CASES, *CASES[:-1]]


def commands(folder: Path) -> dict[str, list[str]]:
    """The command line of each case, over a model, data and problems in a folder; OUTPUT stands for where to."""
    model, rows = make_model(folder / "model"), write_rows(folder / "rows.jsonl", ROWS)
    task = HUMANEVAL["task_id"]
    made = [{"task_id": task, "completion": f"    return a + b\n    # {n}\n"} for n in range(ROWS_OF["score"])]
    problems, samples = write_rows(folder / "problems.jsonl", [HUMANEVAL]), write_rows(folder / "samples.jsonl", made)
    score = f"humaneval --problems {problems} --samples {samples} --output OUTPUT/scores.json"
    evaluate = f"--model {model} --tasks humaneval --humaneval {problems} --samples {ROWS_OF['eval']} --output OUTPUT"
    evaluate += " --no-greedy --max-new-tokens 4 --batch-size 2 --prompt-style raw"
    found = {"score": ["score", *score.split()], "eval": ["eval", *evaluate.split()]}
    for case in set(CASES) - set(found):
        settings = {**SETTINGS, "per_device_train_batch_size": 4 // PROCESSES[case]}
        own = folder / case.replace(" ", "-")
        own.mkdir()
        recipe = write_recipe(own, model, rows, **settings, **(RLVR if case == "rlvr" else {}))
        more = ["--set", "gamma=0,0.1", "--jobs", "2"] if case == "sweep" else ["--resume"]
        found[case] = [case.split()[0], "--config", str(recipe), "--output_dir", "OUTPUT", *more]
    return found


def outcome(case: str, output: Path) -> Any:
    """What must not depend on how often a run was ended."""
    if case in ROWS_OF:
        [file] = output.rglob("scores.samples.jsonl" if case == "score" else "humaneval.samples.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(rows) == ROWS_OF[case], f"{len(rows)} rows"
        assert max(Counter(row["sample"] for row in rows).values()) == 1, "an outcome or a completion is there twice"
        return sorted([row["sample"], row.get("completion"), row.get("status"), row.get("key")] for row in rows)
    runs = sorted(path.parent for path in output.glob("*/final")) if case == "sweep" else [output]
    assert len(runs) == (2 if case == "sweep" else 1)
    return [((run / "final" / "model.safetensors").read_bytes(), metrics(run)) for run in runs]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Without what depends on the clock. A run that is resumed after its last step measures once more: the same."""
    kept: list[dict[str, Any]] = []
    for entry in killed_runs.metrics(run):
        entry.pop("num_tokens", None)  # which TRL counts from a resume on
        kept += [] if entry in kept else [entry]
    return kept


def work(arguments: list[str]) -> int:
    os.setsid()  # so that all it starts can be ended with it
    return cli.main(arguments)


def start(case: str, command: list[str], output: Path, log: Path) -> list[Any]:
    variables = {"EBFT_CACHE": str(output.parents[1] / "cache"), "HF_HUB_OFFLINE": "1"}
    words = [word.replace("OUTPUT", str(output)) for word in command]
    return group.start([log] * PROCESSES[case], work, words, variables=variables)


def wait(started: list[Any], seconds: float, log: Path) -> list[int]:
    deadline = time.monotonic() + seconds
    for process in started:
        process.join(max(0.0, deadline - time.monotonic()))
    hanging = [process for process in started if process.is_alive()]
    for process in hanging:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    assert not hanging, f"it hangs: {log.read_text()[-2000:]}"
    return [process.exitcode for process in started]


def trial(case: str, number: signal.Signals, moment: float, folder: Path, command: list[str], expected: Any) -> bool:
    """Whether the run was still at work when the signal came."""
    output = Path(tempfile.mkdtemp(dir=folder)) / "run"
    log = output.with_name("log")
    log.touch()  # also if it is ended before it says anything
    started = start(case, command, output, log)
    time.sleep(moment)
    for process in started if number == signal.SIGTERM or case == "sweep" else started[-1:]:
        if process.is_alive():
            os.kill(process.pid, number)
    if number == signal.SIGKILL and len(started) > 1:
        # The rest waits for it, for minutes if it had not joined yet. A launcher would end them, and so do we.
        started[0].join(20)
        for process in started:
            process.kill()
    ended = wait(started, 120, log)
    if number == signal.SIGTERM:
        assert set(ended) <= {0, 75, -15}, f"{ended}: {log.read_text()[-2000:]}"
        assert "Traceback" not in log.read_text(), log.read_text()[-2000:]
    assert set(wait(start(case, command, output, log), 240, log)) == {0}, log.read_text()[-3000:]
    found = outcome(case, output)
    assert found == expected, f"{case} ended by {number.name} after {moment:.2f} s is not the same; see {output}"
    shutil.rmtree(output.parent)
    return any(ended)


def main() -> int:
    given = options(each=100, seed=0, at_once=2)  # trials for each of the two signals, and how many side by side
    draw = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="ebft-kills-"))
    made, lengths, expected = commands(folder), {}, {}
    for case in [CASES[0], *CASES]:  # once more than needed: the first takes as long as all imports
        output = Path(tempfile.mkdtemp(dir=folder)) / "run"
        begin, log = time.monotonic(), output.with_name("log")
        assert set(wait(start(case, made[case], output, log), 240, log)) == {0}, log.read_text()[-3000:]
        lengths[case], expected[case] = time.monotonic() - begin, outcome(case, output)
    signals = (signal.SIGKILL, signal.SIGTERM)
    trials = [(TURNS[place % len(TURNS)], one, draw.random()) for place in range(given.each) for one in signals]
    counts: Counter[tuple[str, str, bool]] = Counter()
    with ThreadPoolExecutor(given.at_once) as pool:
        running = [pool.submit(trial, c, n, at * lengths[c], folder, made[c], expected[c]) for c, n, at in trials]
        try:
            for (case, number, _), one in zip(trials, running, strict=True):
                counts[case, number.name, one.result()] += 1
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure, no further ones
    for case in CASES:
        told = {n.name: (counts[case, n.name, True], counts[case, n.name, False]) for n in signals}
        text = ", ".join(f"{name} {sum(pair)} times ({pair[0]} of them before its end)" for name, pair in told.items())
        print(f"{case}: {text}: the same result every time")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
