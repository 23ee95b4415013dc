"""`ebft` as on a smaller GPU: it may take so many GiB, and what it took at most is written down every few seconds.

python results/evidence/held_to.py 14.5 peak.json train --config qwen-1.5b-lora --dataset my.jsonl
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from ebft.cli import main  # before torch, since ebft chooses the allocator

import torch  # isort: skip

GIB, PLACE = float(sys.argv[1]), Path(sys.argv[2])


def write_peak() -> None:
    peaks = {"tensors": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    PLACE.write_text(json.dumps({"limit": GIB} | {name: round(size / 2**30, 2) for name, size in peaks.items()}))


def watch(ended: threading.Event) -> None:
    while not ended.wait(5):  # a run that is killed leaves what it needed
        write_peak()


if __name__ == "__main__":
    torch.cuda.set_per_process_memory_fraction(GIB * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    ended = threading.Event()
    threading.Thread(target=watch, args=(ended,), daemon=True).start()
    sys.argv = ["ebft", *sys.argv[3:]]
    try:
        sys.exit(main())
    finally:
        ended.set()
        write_peak()
