"""A seccomp filter for untrusted programs: the system calls that they may make, and under which conditions.

The filter closes what the namespaces leave open: everything that a program which computes has no use for, among it the
parts of the kernel where most holes were found, further namespaces, and memory that no limit counts (asynchronous I/O,
keys, socket buffers, locks on files, System V IPC). A call that is not on the list does not exist for a program
(ENOSYS), so that libraries fall back to older ones.

There are three lists. NATIVE is for answers in all languages but Python, with or without a runtime: no other process
and no other program, since the tests may be in the same process. RUNTIME is for Python, whose programs may start some.
TOOLCHAIN is for compilers.
"""

from __future__ import annotations

import errno
import platform
import struct
from functools import cache

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}

NATIVE, RUNTIME, TOOLCHAIN = "native", "runtime", "toolchain"


def _table(text: str) -> dict[str, list[int | None]]:
    """`name:x86_64/aarch64`, from the kernel's tables; a dash where an architecture has no such call."""
    entries = (entry.split(":") for entry in text.split())
    return {name: [None if n == "-" else int(n) for n in numbers.split("/")] for name, numbers in entries}


ALLOWED = _table("""
read:0/63 write:1/64 readv:19/65 writev:20/66 pread64:17/67 pwrite64:18/68 preadv:295/69 pwritev:296/70
preadv2:327/286 pwritev2:328/287 open:2/- openat:257/56 creat:85/- close:3/57 close_range:436/436 lseek:8/62 stat:4/-
fstat:5/80 lstat:6/- newfstatat:262/79 statx:332/291 access:21/- faccessat:269/48 faccessat2:439/439 readlink:89/-
readlinkat:267/78 getdents:78/- getdents64:217/61 getcwd:79/17 chdir:80/49 fchdir:81/50 rename:82/- renameat:264/38
renameat2:316/276 mkdir:83/- mkdirat:258/34 rmdir:84/- link:86/- linkat:265/37 unlink:87/- unlinkat:263/35
symlink:88/- symlinkat:266/36 chmod:90/- fchmod:91/52 fchmodat:268/53 chown:92/- fchown:93/55 fchownat:260/54
lchown:94/- umask:95/166 utime:132/- utimes:235/- utimensat:280/88 futimesat:261/- truncate:76/45 ftruncate:77/46
fallocate:285/47 fsync:74/82 fdatasync:75/83 statfs:137/43 fstatfs:138/44 fadvise64:221/223 readahead:187/213
copy_file_range:326/285 sendfile:40/71 splice:275/76 tee:276/77 dup:32/23 dup2:33/- dup3:292/24 flock:73/32
getxattr:191/8 lgetxattr:192/9 fgetxattr:193/10 listxattr:194/11 llistxattr:195/12 flistxattr:196/13
brk:12/214 mmap:9/222 munmap:11/215 mprotect:10/226 mremap:25/216 madvise:28/233 mincore:27/232 msync:26/227
mlock:149/228 mlock2:325/284 munlock:150/229 mlockall:151/230 munlockall:152/231 membarrier:324/283
get_mempolicy:239/236 pkey_alloc:330/289 pkey_free:331/290 pkey_mprotect:329/288
pipe:22/- pipe2:293/59 poll:7/- ppoll:271/73 select:23/- pselect6:270/72 epoll_create:213/- epoll_create1:291/20
epoll_ctl:233/21 epoll_wait:232/- epoll_pwait:281/22 epoll_pwait2:441/441 eventfd:284/- eventfd2:290/19
timerfd_create:283/85 timerfd_settime:286/86 timerfd_gettime:287/87 signalfd:282/- signalfd4:289/74 nanosleep:35/101
clock_nanosleep:230/115 pause:34/- alarm:37/- getitimer:36/102 setitimer:38/103 timer_create:222/107
timer_settime:223/110 timer_gettime:224/108 timer_getoverrun:225/109 timer_delete:226/111 restart_syscall:219/128
socketpair:53/199 shutdown:48/210 recvfrom:45/207 sendto:44/206 getsockname:51/204 getpeername:52/205
getsockopt:55/209
futex:202/98 futex_waitv:449/449 set_robust_list:273/99 get_robust_list:274/100 set_tid_address:218/96 gettid:186/178
tkill:200/130 tgkill:234/131 rt_sigaction:13/134 rt_sigprocmask:14/135 rt_sigreturn:15/139 rt_sigpending:127/136
rt_sigtimedwait:128/137 rt_sigqueueinfo:129/138 rt_tgsigqueueinfo:297/240 rt_sigsuspend:130/133 sigaltstack:131/132
sched_yield:24/124 sched_getaffinity:204/123 sched_setaffinity:203/122 sched_getparam:143/121 sched_setparam:142/118
sched_getscheduler:145/120 sched_setscheduler:144/119 sched_getattr:315/275 sched_get_priority_max:146/125
sched_get_priority_min:147/126 sched_rr_get_interval:148/127 rseq:334/293 arch_prctl:158/- prctl:157/167
getcpu:309/168 exit:60/93 exit_group:231/94 kill:62/129
getpid:39/172 getppid:110/173 getuid:102/174 geteuid:107/175 getgid:104/176 getegid:108/177 getresuid:118/148
getresgid:120/150 getgroups:115/158 getpgrp:111/- getpgid:121/155 getsid:124/156 setpgid:109/154 setsid:112/157
getrlimit:97/163 setrlimit:160/164 prlimit64:302/261 getrusage:98/165 getpriority:140/141 setpriority:141/140
times:100/153 time:201/- gettimeofday:96/169 clock_gettime:228/113 clock_getres:229/114 uname:63/160 sysinfo:99/179
getrandom:318/278 capget:125/90
""")
# Other processes and programs.
STARTING = _table("""
execve:59/221 fork:57/- vfork:58/- wait4:61/260 waitid:247/95 pidfd_open:434/434 pidfd_send_signal:424/424
""")

# Those that depend on an argument. Not clone3, whose flags are in memory, which a filter cannot read: libraries do
# without.
CLONE, EXECVEAT, IOCTL, FCNTL = (56, 220), (322, 281), (16, 29), (72, 25)

NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
CLONE_THREAD = 0x00010000
TIOCSTI = 0x5412  # types into the terminal of whoever started us
# Of fcntl: F_SETLK, F_SETLKW and those of open files, since the kernel keeps any number of locks; F_SETPIPE_SZ, since
# the monitor counts pipes by their usual size.
REFUSED_CONTROLS = (6, 7, 37, 38, 1031)
X32 = 0x40000000  # the same calls under other numbers
# The one program that a NATIVE process may become, opened under this number before the limit on open files is lowered
# below it: no later file can have it.
PROGRAM = 500

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


@cache
def compile_filter(kind: str = RUNTIME, machine: str | None = None) -> bytes | None:
    """The filter for this machine's architecture, or None for one whose table is not here."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column, architecture = ARCHITECTURES[machine]
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, X32), (_RETURN, 0, 0, _MISSING)]
    native = kind == NATIVE
    clone = [(_ANY_BIT, NAMESPACE_FLAGS, _REFUSE)]
    if native:
        # Threads only: a copy of the process could try an answer and leave the original none the wiser.
        clone.append((_ANY_BIT, CLONE_THREAD, _ALLOW))
    controls = [] if kind == TOOLCHAIN else [(_EQUAL, command, _REFUSE) for command in REFUSED_CONTROLS]
    for numbers, argument, cases, otherwise in (
        (CLONE, _FIRST, clone, _REFUSE if native else _ALLOW),
        (EXECVEAT, _FIRST, [(_EQUAL, PROGRAM, _ALLOW)], _REFUSE if native else _ALLOW),
        (IOCTL, _SECOND, [(_EQUAL, TIOCSTI, _REFUSE)], _ALLOW),
        (FCNTL, _SECOND, controls, _ALLOW),
    ):
        program += [(_EQUAL, 0, 2 + 2 * len(cases), numbers[column]), (_LOAD, 0, 0, argument)]
        for comparison, value, action in cases:
            program += [(comparison, 0, 1, value), (_RETURN, 0, 0, action)]
        program.append((_RETURN, 0, 0, otherwise))
    for listed, action in ((ALLOWED, _ALLOW), (STARTING, _REFUSE if native else _ALLOW)):
        for pair in listed.values():
            if (number := pair[column]) is not None:
                program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, action)]
    program.append((_RETURN, 0, 0, _MISSING))
    return b"".join(struct.pack("=HBBI", *rule) for rule in program)
