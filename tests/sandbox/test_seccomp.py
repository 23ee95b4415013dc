from __future__ import annotations

from ebft.sandbox import seccomp


def test_the_filter_knows_two_architectures() -> None:
    for machine in ("x86_64", "aarch64"):
        rules = seccomp.compile_filter(machine)
        assert rules is not None
        assert len(rules) % 8 == 0
        assert len(rules) // 8 < 4096  # the kernel's limit
    assert seccomp.compile_filter("riscv64") is None


def test_the_filter_does_what_it_says() -> None:
    """The kernel's little machine, simulated."""
    import errno
    import struct

    def verdict(number: int, arguments: tuple[int, int] = (0, 0), machine: str = "x86_64") -> int:
        _, architecture = seccomp.ARCHITECTURES[machine]
        rules = seccomp.compile_filter(machine)
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

    allowed, refused = 0x7FFF0000, 0x00050000 | errno.EPERM
    for machine, column in (("x86_64", 0), ("aarch64", 1)):
        for name, numbers in seccomp.REFUSED.items():
            if (number := numbers[column]) is not None:
                assert verdict(number, machine=machine) == refused, name
        clone, ioctl = seccomp.CLONE[column], seccomp.IOCTL[column]
        assert verdict(clone, (0x01200011, 0), machine) == allowed  # what fork asks for
        assert verdict(clone, (0x10000000, 0), machine) == refused
        assert verdict(ioctl, (0, 0x5401), machine) == allowed
        assert verdict(ioctl, (0, seccomp.TIOCSTI), machine) == refused
        assert verdict(seccomp.CLONE3[column], machine=machine) == 0x00050000 | errno.ENOSYS
    for harmless in (0, 1, 2, 3, 9, 57, 59, 231):  # read, write, open, close, mmap, fork, execve, exit_group
        assert verdict(harmless) == allowed
    assert verdict(0x40000000 + 101) == 0x00050000 | errno.ENOSYS  # ptrace by its other number
