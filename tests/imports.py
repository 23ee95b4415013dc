"""What a command imports: torch and transformers take seconds."""

from __future__ import annotations

import subprocess
import sys


def imports_torch(*arguments: str) -> bool:
    """Whether a command, in a process of its own, imports torch."""
    code = "import sys; from ebft import cli; cli.main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1] == "True"
