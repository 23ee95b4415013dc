"""What commands import: torch and transformers take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

HEAVY = ("torch", "transformers", "trl", "datasets", "peft", "matplotlib")

_PROGRAM = """
import contextlib, io, json, sys
import ebft
from ebft import cli

for arguments in json.loads(sys.argv[1]):
    before, errors = set(sys.modules), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = cli.main(arguments)
        except SystemExit as left:
            code = left.code
    found = [name for name in json.loads(sys.argv[2]) if name in sys.modules and name not in before]
    print(json.dumps({"code": code, "errors": errors.getvalue(), "imported": found}))
print(json.dumps([name for name in json.loads(sys.argv[2]) if name in sys.modules]))
"""


class Ended(NamedTuple):
    code: int
    errors: str
    imported: list[str]  # of HEAVY, by this command first


def run_commands(commands: Sequence[Sequence[str]]) -> list[Ended]:
    """The commands one after the other, in one process of their own that has imported nothing before."""
    given = [json.dumps([list(command) for command in commands]), json.dumps(HEAVY)]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *given], capture_output=True, text=True, check=True, env=offline
    )
    *lines, in_all = done.stdout.splitlines()
    ended = [Ended(**json.loads(line)) for line in lines]
    # What `import ebft` brings with it belongs to no command.
    assert set(json.loads(in_all)) == {name for one in ended for name in one.imported}, "import ebft is heavy"
    return ended


def imports_torch(*arguments: str) -> bool:
    """Whether a command imports torch or transformers."""
    return bool({"torch", "transformers"} & set(run_commands([arguments])[0].imported))
