"""What a program sees of the host, and that nothing outlives the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebft.sandbox import isolation
from ebft.sandbox.isolation import Sandbox
from tests.sandbox.sandboxed import gone, needs_sandbox, processes_of, wait_for


@needs_sandbox
def test_files_and_folder() -> None:
    finished = Sandbox().run(["sh", "-c", "pwd; cat data; echo more > own; cat own"], {"data": b"given\n"})
    assert (finished.ending, finished.returncode) == ("exited", 0)
    assert finished.stdout == b"/box\ngiven\nmore\n"


@needs_sandbox
def test_executables_cannot_be_read() -> None:
    program = Path(shutil.which("true") or "/bin/true").read_bytes()
    assert Sandbox().run(["/box/program"], {"program": program}, executable=True).returncode == 0
    assert Sandbox().run(["cat", "/box/program"], {"program": program}, executable=True).stdout == b""


@needs_sandbox
@pytest.mark.parametrize("delay", [None, 0.0, 0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020])
def test_a_killed_parent_leaves_nothing_behind(delay: float | None, tmp_path: Path) -> None:
    """Killed once the program runs (None), and at various moments while its sandbox is being made."""
    marker = f"sleep 1000.{os.getpid()}"
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from ebft.sandbox.isolation import Limits, Sandbox\n"
        "sandbox = Sandbox()\n"
        "sandbox.check()\n"
        "print('starting', flush=True)\n"
        f"program = {['sh', '-c', f'{marker} & {marker}']!r}\n"
        f"sandbox.run(program, limits=Limits(seconds=600), environment={{'MARKER': {marker!r}}})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"starting\n"
        if delay is None:
            assert wait_for(lambda: len(processes_of(marker)) >= 5)
        else:
            time.sleep(delay)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(marker)
    finally:
        parent.kill()
        parent.communicate()


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python that other users may run")
def test_as_another_user(tmp_path: Path) -> None:
    """Without root, user namespaces do the same; where they are switched off, the sandbox refuses."""
    package = Path(isolation.__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "if sys.version_info < (3, 11): print('too old'); raise SystemExit\n"
        "try:\n"
        "    from ebft.sandbox.isolation import Limits, Sandbox, SandboxError\n"
        "except ModuleNotFoundError as error:\n"
        "    if error.name != 'ebft': raise\n"
        "    print('unreadable'); raise SystemExit\n"
        "try: Sandbox().check()\n"
        "except SandboxError as error: print('refused', error); raise SystemExit\n"
        "fork = 'import os,time,sys\\nn=0\\nwhile n<200:\\n  try:\\n    if os.fork()==0: time.sleep(9); os._exit(0)\\n"
        '  except OSError: break\\n  n+=1\\nprint(n, os.access("/etc/passwd", 4), flush=True)\\nos._exit(0)\'\n'
        "print(Sandbox().run(['/usr/bin/python3', '-c', fork], limits=Limits(processes=16)).stdout.decode())\n"
    )
    asked = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if asked.stdout.startswith(("too old", "unreadable", "refused")) or asked.stderr.startswith("setpriv"):
        pytest.skip(f"another user cannot run this: {asked.stdout}{asked.stderr[-200:]}")
    assert asked.returncode == 0, asked.stderr
    children, sees_users = asked.stdout.split()
    assert int(children) < 16
    assert sees_users == "False"
