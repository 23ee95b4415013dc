"""A seccomp filter for untrusted programs, as the bytes that `bwrap --seccomp` takes.

The namespaces already hide the network, other processes and the host's files. The filter closes what they leave open:
large parts of the kernel that no test of a program needs and where most holes have been found, the creation of further
namespaces, and memory that no limit counts. A call that is refused fails with EPERM; it does not kill the program.
"""

from __future__ import annotations

import errno
import platform
import struct

# From the kernel's tables of system calls: (x86_64, aarch64); None where an architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # looking into or steering other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # parts of the kernel that had many vulnerabilities
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75),
    # the machine itself
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # memory outside of every limit
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # the network, on top of the empty network namespace; socketpair stays, event loops wake themselves with it
    "socket": (41, 198),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
IOCTL = (16, 29)
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}

NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TIOCSTI = 0x5412  # types into the terminal of whoever started us
X32 = 0x40000000  # the same calls under other numbers

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def compile_filter(machine: str | None = None) -> bytes | None:
    """The filter for this machine's architecture, or None for one whose table is not here."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column, architecture = ARCHITECTURES[machine]
    refuse, missing = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, X32), (_RETURN, 0, 0, missing)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    # The flags of clone3 are in memory, which a filter cannot read; without it libraries use clone.
    program += [(_EQUAL, 0, 1, CLONE3[column]), (_RETURN, 0, 0, missing)]
    program += [
        (_EQUAL, 0, 4, CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, NAMESPACE_FLAGS),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 3, IOCTL[column]),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_EQUAL, 0, 1, TIOCSTI),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
