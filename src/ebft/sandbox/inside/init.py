"""The first process of a sandbox, started by bubblewrap. The program is its child, or a module of ours that runs it.

It holds the program back until whoever asked for it is known to be alive, gives it its user, limits and filter of
system calls, and ends when it ends, or when whoever asked for it is gone; the kernel then ends everything else in the
sandbox. For an ordinary user it has the same user number as the program: nobody but the kernel may look into its memory
or trace it, and signals from inside do not reach a first process that has no handlers for them.

Only a few modules are imported, since this runs once for every program: `typing` or `signal` would take as long as all
the rest.
"""

from __future__ import annotations

import _signal as signal
import ctypes
import marshal
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 1, 4, 38, 22, 2
libc = ctypes.CDLL(None, use_errno=True)


class FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("rules", ctypes.c_char_p))


def prctl(*arguments: Any) -> None:
    if libc.prctl(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # when bubblewrap is killed
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python has handlers of its own, or ignores them
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        job = marshal.load(file)
    limit({"core": 0, "fsize": job["limits"]["fsize"], "nofile": 1024})  # should anything ever get hold of us
    try:
        # Should the machine run out of memory, the kernel ends us first, and not whoever is scoring.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
    gate = job["gate"]
    os.write(gate, b"\n")
    if not os.read(gate, 1):
        os._exit(1)  # nobody waits for us any more
    program = os.fork()
    if program == 0:
        try:
            run = become(job)
        except BaseException as error:
            os.write(2, f"the sandbox cannot start the program: {error}\n".encode())
            os._exit(127)
        return run()  # and then, as any Python would, wait for its threads and end
    close_all_but({gate})  # whoever waits for the end of a pipe waits for the program, not for us
    end_with(program, gate)


def end_with(program: int, gate: int) -> NoReturn:
    """Waits for the end of the program, or of the connection that whoever asked for it holds open."""
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    waiting = select.poll()  # not `select.select`, which knows numbers below 1024 only
    for descriptor in (woken, gate):
        waiting.register(descriptor, select.POLLIN)
    while True:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:  # also orphans
            if found[0] == program:
                code = os.waitstatus_to_exitcode(found[1])
                os._exit(code if code >= 0 else 128 - code)
        if gate in dict(waiting.poll()):
            os._exit(1)
        os.read(woken, 4096)


def become(job: dict[str, Any]) -> Callable[[], None]:
    """Turns into the program; returns only if that is a module of ours: its `main`."""
    arguments = job["arguments"]
    close_all_but({0, 1, 2, *job["pipes"]})
    if job["user"] is not None:
        os.setgroups([])
        os.setresgid(job["user"], job["user"], job["user"])
        os.setresuid(job["user"], job["user"], job["user"])
    if job["program"] is not None:  # the only one that the filter lets it become
        opened = os.open(arguments[0], os.O_PATH | os.O_CLOEXEC)
        os.dup2(opened, job["program"], inheritable=False)
        os.close(opened)
    limit(job["limits"])
    if job["filter"] is not None:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        rules = FilterProgram(len(job["filter"]) // 8, job["filter"])
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(rules), 0, 0)
    if job["module"]:
        return main_of(job["module"], [str(pipe) for pipe in job["pipes"]])
    if job["program"] is not None:
        os.execve(job["program"], arguments, os.environ)
    os.execvp(arguments[0], arguments)


def main_of(module: str, arguments: list[str]) -> Callable[[], None]:
    """In what a Python that was just started would have: its arguments, its way with signals, and nothing of ours."""
    sys.argv[:] = ["-c", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # it has no secrets, and may look into /proc/self
    sys.path.insert(0, os.path.dirname(__file__))
    main: Callable[[], None] = __import__(module).main
    sys.path.pop(0)
    del sys.modules[__name__]
    return main


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        most = resource.getrlimit(kind)[1]  # which only root could raise
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def close_all_but(kept: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            os.closerange(number, number + 1)  # unlike `close` it takes that of the list itself, which is gone
