"""Time and memory of one whole EBFT iteration: ebft's packed implementation against the reference implementation.

Both run on the same weights and the same contexts, in the same process. An iteration is rollout, features, rewards and
advantages, update (loss and gradient) and the optimiser's step; in bf16 both train float32 weights. Before anything is
timed the two are shown to compute the same thing: on the same completions they must give the same features, rewards
and gradient. README.md beside this file says how to run it, what the fields of the JSON mean and what is in which file.

    python benchmarks/step.py --size small-cpu --threads 2 --json benchmarks/results/step-cpu-small.json
    python benchmarks/step.py --size qwen2.5-1.5b --device cuda --json FILE
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from cpu_memory import measure_each, measure_in_new_process
from equality import check_equality
from flops import count_flops
from iteration_time import Turn, free_memory, measure_time
from provenance import command_and_date, commit
from shapes import SIZES
from step_report import describe_machine, describe_measurements, describe_settings, print_table
from step_settings import Settings, parse_arguments


class ImplementationsDiffer(Exception):
    pass


def measure(settings: Settings, arguments: Sequence[str], turn: Turn = nullcontext) -> dict[str, Any]:
    """The content of the JSON file.

    Args:
        arguments: the command line that the settings come from.
        turn: entered around everything that is timed; grid.py lets several processes take turns here.
    """
    load_average = os.getloadavg()[0]  # before this program adds to it: what else the machine is doing
    names = settings.names
    memory = measure_in_new_process(arguments) if settings.device == "cpu" else {}
    equality = None if settings.skip_released else check_equality(settings)
    if equality is not None and not equality["equal"]:
        raise ImplementationsDiffer(f"the two implementations differ, nothing was timed: {json.dumps(equality)}")
    free_memory(settings.device)
    measured = measure_time(names, settings, turn)

    described = describe_settings(settings)
    result: dict[str, Any] = {
        **command_and_date("step.py", arguments),
        "commit": commit(),
        **described,
        **describe_machine(settings, load_average),
        **describe_measurements(
            measured,
            count_flops(SIZES[settings.size], settings, measured["packed"].work),
            described["shape"]["packed_tokens"],
            memory,
        ),
    }
    return result if equality is None else {**result, "equality": equality}


def main() -> int:
    arguments = sys.argv[1:]
    settings, args = parse_arguments(arguments, __doc__)
    if args.measure_memory:
        print(json.dumps(measure_each(settings)))
        return 0
    try:
        result = measure(settings, arguments)
    except ImplementationsDiffer as error:
        print(f"step.py: {error}", file=sys.stderr)
        return 1
    print_table(result)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
