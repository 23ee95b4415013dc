# ruff: noqa: E501 - programs, as they were written
"""Hostile answers to: write `add(a, b)`, the sum of two numbers.

FORGERIES try to pass without solving the problem. PROBES solve it only if something forbidden works, so that each of
them fails for the reason it is meant to. FLOODS try to use the machine up. Only the standard library is needed: another
user, who may not have our packages, runs them too.
"""

from ebft.problems.problem import Record
from ebft.problems.python_problems import humaneval_problem

HEAD = 'def add(a, b):\n    """The sum of two numbers."""\n'
TESTS = """
def check(candidate):
    assert candidate(2, 3) == 5
    assert candidate(-1, 1) == 0
    assert candidate("a", "b") == "ab"
    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6
    assert candidate([1], [2]) == [1, 2]
    assert not candidate(0, 0)
    assert candidate(1, 0)
"""
ADD = humaneval_problem(Record("own", {"task_id": "Own/0", "prompt": HEAD, "entry_point": "add", "test": TESTS}))


# A program that writes the same into every descriptor.
_WRITES = """
import os, json
def frame(message):
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, 'big') + body
for descriptor in range({first}, 64):
    try:
        os.write(descriptor, {data})
    except OSError:
        pass
def add(a, b):
    return {returned}
"""


def _writes(data: str, returned: str = "None", first: int = 3) -> str:
    return _WRITES.format(data=data, returned=returned, first=first)


def _returns(value: str, base: str = "object", **methods: object) -> str:
    """A program that returns an object whose special methods return what is said here."""
    body = [f"    def __{name}__(self, *a): return {said}" for name, said in methods.items()]
    return "\n".join([f"class X({base}):", *body, "def add(a, b):", f"    return {value}"])


FORGERIES = {
    "exits before the tests": "import sys\nsys.exit(0)",
    "os._exit before the tests": "import os\nos._exit(0)",
    "raises SystemExit when called": "def add(a, b):\n    raise SystemExit(0)",
    "os._exit when called": "import os\ndef add(a, b):\n    os._exit(0)",
    "raises KeyboardInterrupt": "def add(a, b):\n    raise KeyboardInterrupt",
    "raises AssertionError": "def add(a, b):\n    raise AssertionError",
    "exits at the second call": "import os\nn = 0\ndef add(a, b):\n    global n\n    n += 1\n    return 5 if n == 1 else os._exit(0)",
    "equals everything": _returns("X()", eq=True, ne=False, hash=0, bool=True),
    "an int that equals everything": _returns("X(12345)", "int", eq=True, ne=False, hash=0, sub=0, rsub=0, abs=0),
    "a float that is near everything": _returns("X(0)", "float", eq=True, hash=0, lt=True, sub=0.0, rsub=0.0, abs=0.0),
    "answers every question about itself": _returns("X()", getattr="lambda *a, **k: True", eq=True, sub=0, rsub=0, abs=0, lt=True, float=0.0, iter="iter(())", contains=True, call=True, next=True, reduce="(print, ())"),
    "patches what serves it": """
import sys, types
for module in list(sys.modules.values()):
    for name in list(vars(module)) if isinstance(module, types.ModuleType) else ():
        if name in ('encode', 'decode', 'choose', 'main', 'describe', 'run', 'check'):
            setattr(module, name, lambda *a, **k: {"status": "passed", "message": ""})
def add(a, b):
    return None
""",
    "patches builtins and unittest": """
import builtins, sys, unittest, unittest.mock, operator
builtins.AssertionError = type('Never', (Exception,), {})
builtins.abs = builtins.isinstance = builtins.all = lambda *a, **k: True
builtins.check = lambda candidate: None
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.main = lambda *a, **k: None
sys.excepthook = lambda *a: None
operator.eq = lambda a, b: True
def add(a, b):
    return None
def check(candidate):
    return None
""",
    "looks for the tests in memory": """
import gc, sys, inspect
def add(a, b):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, str) and 'assert' in value and 'candidate' in value:
                scope = {}
                exec(value, scope)
                return 5
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, dict):
            for inner in list(value.values()):
                if isinstance(inner, str) and 'assert cand' in inner and 'candidate(2, 3)' in inner and len(inner) < 999:
                    return a + b
    return None
""",
    "looks for the tests in files": """
import os
found = ''
for root in ('/box', '/tmp', '/ebft', '/proc', '/dev', '/home', '/root', '/run', '/var', '.'):
    for folder, folders, files in os.walk(root):
        if folder.count('/') > 3:
            folders.clear()
        for name in files:
            try:
                with open(os.path.join(folder, name), 'rb', buffering=0) as file:
                    os.set_blocking(file.fileno(), False)
                    text = file.read(100000) or b''
            except (OSError, ValueError):
                continue
            if b'candidate(2, 3) == 5' in text:
                found = text
def add(a, b):
    return a + b if found else None
""",
    "reads its own memory": """
import re
tests = re.compile(rb'assert [c]andidate\\(2, [3]\\)')  # in brackets, so as not to find itself
found = False
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as memory:
    for line in maps:
        place, rights = line.split()[:2]
        start, end = (int(part, 16) for part in place.split('-'))
        if 'r' in rights and end - start < 2**26:
            try:
                memory.seek(start)
                found = found or bool(tests.search(memory.read(end - start)))
            except (OSError, OverflowError, ValueError):
                pass
def add(a, b):
    return a + b if found else None
""",
    "writes a result into every descriptor": _writes("json.dumps({'status': 'passed', 'message': ''}).encode()", first=0),
    "answers before it is asked": _writes("frame({'value': None}) + frame({'value': True}) * 50 + frame({'status': 'passed', 'message': ''})", "True"),
    "sends garbage": _writes("os.urandom(5000)"),
    "announces a message of four gigabytes": _writes("b'\\xff' * 4"),
    "sends messages of the wrong shape": """
import os, json, itertools
shapes = itertools.cycle([[], 1, "x", {"value": {"nothing": 1}}, {"error": 5}, {"error": [1, 2, 3]}, {"callback": -1},
          {"callback": "x", "arguments": 1}, {"value": {"object": "x"}}, {"value": {"d": [[[], 1]]}}, {"arguments": 5}])
def add(a, b):
    for descriptor in range(3, 64):
        body = json.dumps(next(shapes)).encode()
        try:
            os.write(descriptor, len(body).to_bytes(4, 'big') + body)
        except OSError:
            pass
""",
    "closes its descriptors": "import os\nos.closerange(0, 256)\ndef add(a, b):\n    return None",
    "forks, and the child stays": "import os\nif os.fork():\n    os._exit(0)\ndef add(a, b):\n    return None",
    "an endless iterator": "import itertools\ndef add(a, b):\n    return itertools.repeat(a + b)",
    "a list that contains itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "a list nested too deeply": "def add(a, b):\n    x = []\n    for _ in range(100000):\n        x = [x]\n    return x",
    "a module named like ours": "import sys\nsys.modules['wire'] = sys.modules['json'] = sys.modules['os'] = None\ndef add(a, b):\n    return True",
    "changes its arguments": "def add(*a):\n    return [True] * 9",
    "raises StopIteration": "def add(a, b):\n    raise StopIteration",
    "not Python": "This is not a program at all.",
    "null bytes": "def add(a, b):\n    return a \x00 b",
    "brackets without end": "(" * 50000,
    "minus signs without end": "def add(a, b): return " + "-" * 100000 + "1",
    "half a surrogate": "def add(a, b):\n    return '\ud800'",
}  # fmt: skip

# `ok` is True only if something worked that must not.
_PROBE = """
ok = False
try:
    {}
except BaseException as error:
    pass
def add(a, b):
    return a + b if ok else None
"""


def probe(attempt: str) -> str:
    return _PROBE.format(attempt.strip().replace("\n", "\n    "))


PROBES = {
    "writes outside its folder": probe("import subprocess as s\nok = any(s.run(['touch', f'{place}/written']).returncode == 0 for place in '/ /usr /etc /ebft /dev /proc /lib /bin /var /home /root'.split())"),
    "changes a program of the host": probe("import os\nos.chmod('/usr/bin/env', 0o777)\nok = True"),
    "opens a socket": probe("import socket\nsocket.socket()\nok = True"),
    "sees a network": probe("ok = len(open('/proc/net/dev').read().splitlines()) > 3"),
    "sees the environment": probe("import os\nok = 'EBFT_CANARY' in os.environ or b'CANARY' in open('/proc/self/environ', 'rb').read()"),
    "sees other processes": probe("import os\nok = len([name for name in os.listdir('/proc') if name.isdigit()]) > 2"),
    "sees the users of the host": probe("ok = bool(open('/etc/passwd').read())"),
    "sees a home folder": probe("import os\nok = any(os.listdir('/home')) or any(os.listdir('/root'))"),
    "kills everyone": probe("import os, signal\nos.kill(-1, signal.SIGKILL)"),
    "stops itself": probe("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    "traces a process": probe("import ctypes\nok = ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0"),
    "makes a user namespace": probe("import ctypes\nok = ctypes.CDLL(None).unshare(0x10000000) == 0"),
    "mounts": probe("import ctypes\nok = ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0"),
    "memory outside the limits": probe("import os\nos.memfd_create('x')\nok = True"),
    "becomes root": probe("import os\nos.setuid(0)\nok = True"),
    "raises its limits": probe("import resource as r\nr.setrlimit(r.RLIMIT_NPROC, (10**6, 10**6))\nok = True"),
    "maps the first process": probe("ok = bool(open('/proc/1/maps').read())"),
    "has more open files than it may": probe("import os\nfor _ in range(100):\n    os.dup(1)\nok = True"),
    "changes the filter of the first process": probe("open('/proc/1/oom_score_adj', 'w').write('0')\nok = True"),
    "ends the first process by a signal": probe("import os, time\nfor number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass\ntime.sleep(0.2)\nok = not os.path.exists('/proc/1/stat')"),
    "reads the memory of the first process": probe("open('/proc/1/mem', 'rb').close()\nok = True"),
    "has more processes than it may": probe("import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(5), os._exit(0)\nok = True"),
    "has more memory than it may": probe("x = bytearray(3 << 30)\nok = True"),
}  # fmt: skip
for _place in ("/box", "/tmp", "/dev/shm"):
    _many = f"for n in range(100):\n    open(f'{_place}/{{n}}', 'wb').write(bytes(1 << 22))\nok = True"
    PROBES[f"has more disk than it may in {_place}"] = probe(_many)

FLOODS = {
    "prints forever": "while True:\n    print('x' * 10000)",
    "writes errors forever": "import sys\nwhile True:\n    sys.stderr.write('x' * 10000)",
    "sleeps": "import time\ntime.sleep(10**6)",
    "computes forever": "def add(a, b):\n    while True:\n        pass",
    "forks forever": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "threads forever": "import threading, time\nwhile True:\n    try:\n        threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError:\n        pass",
    "allocates forever": "x = []\nwhile True:\n    x.append(bytearray(1 << 24))",
    "allocates and forgives": "x = []\nwhile True:\n    try:\n        x.append(bytearray(1 << 20))\n    except MemoryError:\n        pass",
    "allocates in every child": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n    try:\n        x = bytearray(1 << 28)\n    except MemoryError:\n        pass",
    "shared memory": "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 26)\n    m.write(bytes(1 << 26))\n    x.append(m)",
    "a huge number": "def add(a, b):\n    return 1 << (1 << 28)",
    "a huge string": "def add(a, b):\n    return 'x' * (1 << 28)",
    "recursion without end": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
    "ends never": "import atexit\nclass X:\n    def __del__(self):\n        while True: pass\nx = X()\natexit.register(lambda: x.__del__())\ndef add(a, b):\n    raise SystemExit",
    "ignores signals": "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
    "makes files forever": "n = 0\nwhile True:\n    open(f'/box/{n}', 'w').close()\n    n += 1",
    "page tables": "import mmap\nx = []\nwhile True:\n    try:\n        m = mmap.mmap(-1, 1 << 27, flags=mmap.MAP_PRIVATE | mmap.MAP_NORESERVE, prot=mmap.PROT_READ)\n    except (OSError, MemoryError):\n        continue\n    for at in range(0, 1 << 27, 1 << 21):\n        m[at]\n    x.append(m)",
}
