"""What commands import: torch and transformers take seconds."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

_PROGRAM = """
import contextlib, io, json, sys
import ebft
from ebft import cli

heavy = {"torch", "transformers", "trl", "datasets", "peft", "matplotlib"}
assert not heavy & set(sys.modules), "import ebft is heavy"
for arguments in json.loads(sys.argv[1]):
    before, errors = set(sys.modules), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = cli.main(arguments)
        except SystemExit as left:
            code = left.code
    print(json.dumps([code, errors.getvalue(), sorted(heavy & set(sys.modules) - before)]))
"""


class Ended(NamedTuple):
    code: int
    errors: str
    imported: list[str]  # of what takes seconds, by this command first


def run_commands(commands: Sequence[Sequence[str]]) -> list[Ended]:
    """The commands one after the other, in one process of their own that has imported nothing before."""
    program = [sys.executable, "-c", _PROGRAM, json.dumps([list(command) for command in commands])]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=offline)
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]


def imports_torch(*arguments: str) -> bool:
    """Whether a command imports torch or transformers."""
    return bool({"torch", "transformers"} & set(run_commands([arguments])[0].imported))
