"""Mutated inputs for every parser: an error that a user can act on, or a result; no other exception, and no hang.

python -m tests.hard.fuzz --inputs 10000 --seed 0
"""

import io
import json
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import load_recipe
from ebft.data.rows import read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.commands import read_samples
from ebft.evaluate.tasks import problem_sets
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.train import run_folder
from tests.hard import options
from tests.problems.rows import HUMANEVAL, MBPP
from tests.sandbox.multipl_e import checks_of, prompt_of

SLOWEST = 5.0  # seconds for one input
EXPECTED = (ConfigError, DataError)
ODD = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 3000, b"{" * 3000, b"-" * 3000, b"9" * 5000, b"\n", b"\r", b'"', b"'",
    b"\\u", b"null", b"NaN", b"1e999", b"-0", b"true", b"[]", b"{}", b": ", b"- ", b"&a", b"*a", b"\xef\xbb\xbf", b"%",
    b"!!python/object:os.system", b"\x1b[2J", b"${x}", b"\t", b" " * 300,
]  # fmt: skip


def mutate(content: bytes, draw: random.Random) -> bytes:
    """A few changes: bytes flipped, cut, doubled, moved, or replaced by something odd."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        place = draw.randrange(len(data) + 1)
        end = min(len(data), place + draw.choice((1, 1, 4, 20, 200)))
        how = draw.randrange(6)
        if how == 0:
            data[place : place + 1] = bytes(byte ^ 1 << draw.randrange(8) for byte in data[place : place + 1])
        elif how == 1:
            data[place:place] = draw.choice(ODD)
        elif how == 2:
            data[place:place] = data[place:end]
        else:
            data[place : end if how < 5 else len(data)] = draw.choice(ODD) if how == 3 else b""
    return bytes(data)


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parsers(folder: Path) -> dict[str, tuple[str, bytes, Callable[[Path], Any]]]:
    """By name: a file name, a valid content, and what reads it."""
    recipe = {"model": "m", "dataset": ["a", "b"], "output_dir": "o", "gamma": 0.1, "horizon": 8}
    recipe |= {"eval_tasks": ["mbpp"], "eval_task_options": {"limit": 20, "samples": 0}}
    own = {"name": "own", "language": "cpp", "stop_tokens": ["\n}"]}
    own |= {"prompt": prompt_of("cpp", "vowels"), "tests": checks_of("cpp", "vowels")}
    problems = {"humaneval": HUMANEVAL, "mbpp": MBPP, "multipl-e": own}
    table, parquet = pyarrow.table({"text": [f"row {n} " * 9 for n in range(50)], "n": list(range(50))}), io.BytesIO()
    pyarrow.parquet.write_table(table, parquet)

    def rows(file: Path) -> None:
        deque(read_rows(str(file)), maxlen=0)

    found: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {
        "recipes": ("recipe.yaml", yaml.safe_dump(recipe).encode(), lambda file: load_recipe(file, {"use_cpu": True})),
        "rows in JSONL": ("rows.jsonl", lines({"prompt": "1+1=", "completion": "2"}, {"text": "é"}), rows),
        "rows in JSON": ("rows.json", json.dumps([{"text": "a"}, {"text": "b"}]).encode(), rows),
        "rows in CSV": ("rows.csv", b'text,n\n"a, ""b""",1\nc,2\n', rows),
        "rows in Parquet": ("rows.parquet", parquet.getvalue(), rows),
    }
    for name in BENCHMARKS:
        valid = lines(problems[name])
        found[f"problems of {name}"] = ("problems.jsonl", valid, lambda f, n=name: load_problems(n, str(f)))
    (folder / "known.jsonl").write_bytes(lines(HUMANEVAL))
    [known] = problem_sets("humaneval", EvalOptions(humaneval=str(folder / "known.jsonl"), score=False))
    sample = {"task_id": HUMANEVAL["task_id"], "completion": "    return 1\n", "finish": "stop"}
    found["samples"] = ("samples.jsonl", lines(sample, sample), lambda file: read_samples(str(file), known))
    checkpoint = folder / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "model").write_bytes(b"weights")
    run_folder.mark_complete(checkpoint)
    mark = (checkpoint / run_folder.MARK).read_bytes()
    found["checkpoints' marks"] = ("checkpoint-2/COMPLETE", mark, lambda file: run_folder.damage(file.parent))
    return found


def fuzz(name: str, inputs: int, seed: int) -> str:
    """A line that says what a parser took and refused; an error if it did neither, or not in good time."""
    folder = Path(tempfile.mkdtemp())
    file_name, valid, parse = parsers(folder)[name]
    draw, file, refused, slowest = random.Random(f"{seed} {name}"), folder / file_name, 0, 0.0
    file.write_bytes(valid)
    parse(file)  # what is valid is taken
    for number in range(inputs):
        content = mutate(valid, draw)
        file.write_bytes(content)
        started = time.monotonic()
        try:
            parse(file)
        except EXPECTED:
            refused += 1
        except BaseException as error:
            raise RuntimeError(f"{name}: input {number}: {content!r}"[:2000]) from error
        slowest = max(slowest, time.monotonic() - started)
        assert slowest < SLOWEST, f"{name}: input {number} took {slowest:.1f} s: {content!r}"[:2000]
    return f"{name}: {inputs} inputs, {refused} refused, none took longer than {slowest:.3f} s"


def main() -> None:
    given = options(inputs=10_000, seed=0, at_once=2)  # for every parser; parsers side by side
    names = list(parsers(Path(tempfile.mkdtemp())))
    with ProcessPoolExecutor(given.at_once) as pool:
        for line in pool.map(fuzz, names, repeat(given.inputs), repeat(given.seed)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
