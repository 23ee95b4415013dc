"""`ebft score` with very many samples: memory stays flat, and no descriptor or process is left behind.

python -m tests.hard.soak --samples 50000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.problems.rows import HUMANEVAL

GROWTH = 48 * 2**20  # bytes that memory may grow between a tenth of the way and the end


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=50_000)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ebft-soak-"))
    (folder / "problems.jsonl").write_text(json.dumps(HUMANEVAL) + "\n")
    with (folder / "samples.jsonl").open("w") as file:
        for number in range(given.samples):
            body = f"    return a + b  # {number}\n" if number % 2 else f"    return a - b  # {number}\n"
            file.write(json.dumps({"task_id": HUMANEVAL["task_id"], "completion": body}) + "\n")
    names = ("problems", "samples")
    flags = [word for name in names for word in (f"--{name}", str(folder / f"{name}.jsonl"))]
    command = [sys.executable, "-m", "ebft.cli", "score", "humaneval", *flags, "--output", str(folder / "scores.json")]
    started = time.monotonic()
    outcomes = folder / "scores.samples.jsonl"
    seen: list[tuple[int, int, int]] = []
    done = at = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(1.0)
            try:
                # Only what is new in it: reading all of it would slow down what is measured.
                with outcomes.open("rb") as file:
                    file.seek(at)
                    done, at = done + file.read().count(b"\n"), file.tell()
                seen.append((done, resident(process.pid), len(os.listdir(f"/proc/{process.pid}/fd"))))
            except (FileNotFoundError, ProcessLookupError, IndexError):
                continue
    assert process.returncode == 0, f"exit code {process.returncode}"
    passed = json.loads((folder / "scores.json").read_text())["statuses"]["passed"]
    assert passed == given.samples // 2, f"{passed} passed"
    middle = [entry for entry in seen if given.samples // 10 <= entry[0] < given.samples]
    assert middle, "too few samples to say anything"
    few = max(1, len(middle) // 10)
    at_first, at_last = (statistics.median(entry[2] for entry in part) for part in (middle[:few], middle[-few:]))
    grown, descriptors = middle[-1][1] - middle[0][1], at_last - at_first  # a program that runs has a dozen
    print(
        f"{given.samples} samples in {time.monotonic() - started:.0f} s: memory {middle[0][1] / 2**20:.0f} MiB after "
        f"{middle[0][0]}, {middle[-1][1] / 2**20:.0f} MiB after {middle[-1][0]}; {descriptors:+g} descriptors"
    )
    return 1 if grown > GROWTH or descriptors > 16 else 0


if __name__ == "__main__":
    sys.exit(main())
