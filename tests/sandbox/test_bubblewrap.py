"""What a program sees of the host, and that nothing outlives the process that started it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ebft.sandbox.bubblewrap import Gate, bubblewrap_line
from ebft.sandbox.command import Command, Limits
from ebft.sandbox.isolation import Sandbox
from tests.sandbox.sandboxed import gone, needs_sandbox, processes_of, wait_for

ROOT = Path(__file__).parents[2]


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
@pytest.mark.parametrize("who", ["parent", "bubblewrap"])
def test_the_first_process_ends_with_either(who: str, tmp_path: Path) -> None:
    """With whoever asked for the sandbox, and with bubblewrap, which nobody else ends.

    A bubblewrap that ended with its parent (--die-with-parent) at the wrong moment of its start left a process that
    waits forever; `tests.hard.parents` looks for that moment.
    """
    marker = f"sleep 1000.{os.getpid()}.{who}"
    script = tmp_path / "parent.py"
    script.write_text(
        "from ebft.sandbox.isolation import Limits, Sandbox\n"
        f"Sandbox().run(['sh', '-c', 'sleep 1000'], limits=Limits(seconds=600), environment={{'MARKER': {marker!r}}})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    try:
        assert wait_for(lambda: len(processes_of(marker)) >= 3)  # bubblewrap, the first process, the program
        [bubblewrap] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        os.kill(parent.pid if who == "parent" else int(bubblewrap), signal.SIGKILL)
        assert gone(marker)
        assert parent.wait(20) == (-signal.SIGKILL if who == "parent" else 0)
    finally:
        parent.kill()
        parent.wait()


@needs_sandbox
def test_bubblewrap_itself_does_not_end_with_its_parent() -> None:
    gate = Gate()
    line, opened = bubblewrap_line(Command(["true"], Limits()), {}, gate)
    arguments = os.pread(opened[-2], 10**6, 0)
    for descriptor in opened:
        os.close(descriptor)
    gate.give_up()
    assert b"die-with-parent" not in arguments
    assert "--die-with-parent" not in line


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python that other users may run")
def test_as_another_user() -> None:
    """The same probes as an ordinary user, who has the same number as his programs."""
    with tempfile.TemporaryDirectory() as place:  # not pytest's, which is for one user only
        copy = Path(place)
        copy.chmod(0o755)
        for part in ("src/ebft", "tests/sandbox", "tests/__init__.py"):
            source = ROOT / part
            (copy / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)
        script = copy / "tests" / "sandbox" / "as_another_user.py"
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        command = [*user, "/usr/bin/python3", "-B", str(script)]
        asked = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=200)
    if asked.stderr.startswith(("too old", "refused", "setpriv")):
        pytest.skip(f"another user cannot run this: {asked.stderr[-300:]}")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found["user"] == 65534
    assert found["outcomes"].pop("right") == "passed"
    assert {name: status for name, status in found["outcomes"].items() if status not in ("failed", "timeout")} == {}
