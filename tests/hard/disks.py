"""A disk that fills up, or turns read-only, at every place of a run: one line, and the run resumes when there is room.

Needs root, to mount small disks in memory.

    python -m tests.hard.disks --places 20
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hard.kills import Case, Home, outcome, start, wait


def mount(folder: Path, *options: str) -> bool:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


def trial(case: Case, home: Home, expected: Any, size: int | None, read_only_after: float | None) -> str:
    """How the run ended on the bad disk: 'refused', 'finished' or the first line of its error."""
    disk = Path(tempfile.mkdtemp(dir=home.folder))
    assert mount(disk, f"size={size or 2**30}"), "cannot mount"
    try:
        output, log = disk / "run", home.folder / "disk.log"
        log.write_text("")
        group = start(case, home.arguments(case, output), home, log)
        if read_only_after is not None:
            time.sleep(read_only_after)
            for _ in range(200):  # busy while a file is open
                if mount(disk, "remount", "ro") or not group[0].is_alive():
                    break
                time.sleep(0.005)
        codes, said = wait(group, 240, log), log.read_text()
        assert "Traceback" not in said, said[-3000:]
        assert set(codes) <= {0, 1, 2}, f"{codes}: {said[-2000:]}"
        assert mount(disk, "remount", "rw", "size=1g"), "cannot remount"
        assert set(wait(start(case, home.arguments(case, output), home, log), 240, log)) == {0}, log.read_text()[-3000:]
        assert outcome(case, output) == expected, "not the same result"
        return "finished" if set(codes) == {0} else "stopped"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--places", type=int, default=20, help="sizes of the disk, and moments, for each command")
    given = options.parse_args()
    if os.geteuid() != 0:
        print("needs root: nothing was tested")
        return 0
    home = Home(Path(tempfile.mkdtemp(prefix="ebft-disks-")))
    for case in (Case("train"), Case("score")):
        alone, log = home.folder / case.name, home.folder / "alone.log"
        begin = time.monotonic()
        assert set(wait(start(case, home.arguments(case, alone), home, log), 240, log)) == {0}, log.read_text()[-3000:]
        seconds, expected = time.monotonic() - begin, outcome(case, alone)
        needed = sum(file.stat().st_size for file in alone.rglob("*") if file.is_file())
        sizes = [max(4096, needed * (place + 1) // given.places) for place in range(given.places)]
        full = [trial(case, home, expected, size, None) for size in sizes]
        moments = [seconds * place / given.places for place in range(given.places)]
        read_only = [trial(case, home, expected, None, moment) for moment in moments]
        print(
            f"{case.name}: {len(full)} disks of {sizes[0]:,} to {sizes[-1]:,} bytes ({full.count('stopped')} full), "
            f"{len(read_only)} that turned read-only ({read_only.count('stopped')} before the end): one line each, and "
            "the same result after a resume"
        )
    shutil.rmtree(home.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
