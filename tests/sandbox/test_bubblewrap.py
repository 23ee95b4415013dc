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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ebft.sandbox.bubblewrap import Gate, bubblewrap_line
from ebft.sandbox.command import Command, Limits
from ebft.sandbox.isolation import Sandbox
from tests.sandbox.sandboxed import gone, needs_sandbox, processes_of, wait_for, why_no_sandbox

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


@pytest.fixture(scope="module")
def another_user() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs Python as an ordinary user, in a copy of the project that he may read, with commands before it."""
    if (reason := why_no_sandbox()) is not None:
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a python that other users may run")
    with tempfile.TemporaryDirectory() as place:  # not pytest's, which is for one user only
        copy = Path(place)
        copy.chmod(0o755)
        for part in ("src/ebft", "tests/sandbox", "tests/__init__.py"):
            source = ROOT / part
            (copy / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)

        def run(arguments: list[str], before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
            user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            command = [*before, *user, "/usr/bin/python3", "-B", *arguments]
            variables = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}"}
            return subprocess.run(command, capture_output=True, text=True, cwd=copy, timeout=200, env=variables)

        yield run


@pytest.mark.parametrize("limit", ["nofile=200", "nproc=1000", "fsize=100000", "as=4000000000", "cpu=30"])
def test_limits_that_an_ordinary_user_cannot_raise(another_user: Any, limit: str) -> None:
    check = ["-c", "from ebft.sandbox.isolation import Sandbox; Sandbox().check()"]
    if another_user(check).returncode:
        pytest.skip("another user cannot run this")
    name, value = limit.split("=")
    asked = another_user(check, ["prlimit", f"--{name}={value}:{value}"])
    assert asked.returncode == 0, asked.stderr


def test_as_another_user(another_user: Any) -> None:
    """The same probes as an ordinary user, who has the same number as his programs."""
    asked = another_user([str(Path("tests", "sandbox", "as_another_user.py"))])
    if asked.stderr.startswith(("too old", "refused", "setpriv")):
        pytest.skip(f"another user cannot run this: {asked.stderr[-300:]}")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found["user"] == 65534
    assert found["outcomes"].pop("right") == "passed"
    assert {name: status for name, status in found["outcomes"].items() if status not in ("failed", "timeout")} == {}
