"""The kernel's little machine, simulated, and asked about every call."""

import errno
import struct

import pytest

from ebft.sandbox import seccomp
from ebft.sandbox.seccomp import NATIVE, RUNTIME, TOOLCHAIN

ALLOWED, REFUSED, MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
# From the kernel's tables: looking into others, mounts, namespaces, memory outside of every limit, the machine itself.
HOSTILE = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438), "mount": (165, 40),
    "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "bpf": (321, 280),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_setup": (206, 0),
    "keyctl": (250, 219), "add_key": (248, 217), "memfd_create": (319, 279), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "socket": (41, 198), "setsockopt": (54, 208), "sendmsg": (46, 211),
    "inotify_init1": (294, 26), "personality": (135, 92), "setuid": (105, 146), "kexec_load": (246, 104),
    "reboot": (169, 142), "swapon": (167, 224), "syslog": (103, 116), "clock_settime": (227, 112),
    "vmsplice": (278, 75), "clone3": (435, 435),
}  # fmt: skip


def verdict(number: int, arguments: tuple[int, int] = (0, 0), machine: str = "x86_64", kind: str = RUNTIME) -> int:
    _, architecture = seccomp.ARCHITECTURES[machine]
    rules = seccomp.compile_filter(kind, machine)
    assert rules is not None
    data = struct.pack("=IIQQQ", number, architecture, 0, *arguments)
    at, value = 0, 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("=HBBI", rules, at * 8)
        at += 1
        if code == 0x20:
            [value] = struct.unpack_from("=I", data, k)
        elif code == 0x06:
            return k
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("kind", [NATIVE, RUNTIME, TOOLCHAIN])
@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_what_each_call_meets(kind: str, machine: str, column: int) -> None:
    def meets(numbers: tuple[int | None, int | None], first: int = 0, second: int = 0) -> int | None:
        number = numbers[column]
        return None if number is None else verdict(number, (first, second), machine, kind)

    for name, numbers in HOSTILE.items():
        assert meets(numbers) == MISSING, name
    assert meets((550, 550)) == MISSING, "a call of the future"
    for name, listed in seccomp.ALLOWED.items():
        assert meets(listed) in (ALLOWED, None), name
    assert meets(seccomp.CLONE, 0x10010000) == REFUSED, "a user namespace"
    assert meets(seccomp.CLONE, 0x003D0F00) == ALLOWED, "a thread, with the flags that glibc uses"
    assert meets(seccomp.IOCTL, 0, seccomp.TIOCSTI) == REFUSED
    assert meets(seccomp.IOCTL, 0, 0x5401) == meets(seccomp.FCNTL, 0, 1) == ALLOWED
    for control in (6, 1031):  # F_SETLK, F_SETPIPE_SZ
        assert meets(seccomp.FCNTL, 0, control) == (ALLOWED if kind == TOOLCHAIN else REFUSED)
    if machine == "x86_64":
        assert verdict(0x40000000 + 101, kind=kind) == MISSING, "ptrace by its other number"
    # Compiled programs start nothing but themselves.
    started = REFUSED if kind == NATIVE else ALLOWED
    assert meets(seccomp.CLONE, 0x01200011) == meets(seccomp.EXECVEAT, 3) == started
    assert all(meets(numbers) in (started, None) for numbers in seccomp.STARTING.values())
    assert meets(seccomp.EXECVEAT, seccomp.PROGRAM) == ALLOWED


def test_the_filter_knows_two_architectures() -> None:
    for machine in ("x86_64", "aarch64"):
        assert len(seccomp.compile_filter(machine=machine) or b"") // 8 in range(1, 4096)  # the kernel's limit
    assert seccomp.compile_filter(machine="riscv64") is None
