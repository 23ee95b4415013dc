"""Reading answers in processes of their own, within a limit of time and memory.

What a model wrote is taken apart before it is run: fences, prose, brackets. All of that is linear in its length, and
should one step ever not be, a single answer costs its own reader a few seconds and nobody else anything. Programs next
to it are not held up: their verdict depends on the clock.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any, Protocol

from ebft.runtime.descriptors import readable_within

SECONDS = 20.0  # a few milliseconds are usual
MEMORY = 2**30
READERS = 4  # at once; one reads hundreds of answers a second


class Readable(Protocol):
    def interpretations(self, answer: str) -> Any: ...


class CannotRead(Exception):
    """An answer that takes too long to read, or on which the reader fails."""


class _Reader:
    """One process that reads answers, one after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebft.problems.reading"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us
        )
        self.receive(60.0)  # it has started

    def ask(self, problem: Readable, answer: str) -> Any:
        stdin = self.process.stdin
        assert stdin is not None
        _send(stdin, pickle.dumps((problem, answer)))
        return json.loads(self.receive(SECONDS))

    def receive(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        deadline, descriptor = time.monotonic() + seconds, self.process.stdout.fileno()
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            if not readable_within(descriptor, max(0.0, deadline - time.monotonic())):
                raise CannotRead(f"the answer could not be read within {seconds:g} s")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise CannotRead("the process that reads answers failed on this one")
            data += chunk
        return data[4:]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


_free: list[_Reader] = []
_places = threading.BoundedSemaphore(READERS)


def read_answer(problem: Readable, answer: str) -> Any:
    """`problem.interpretations(answer)`, lists instead of tuples. Raises CannotRead."""
    with _places:
        try:
            reader = _free.pop()
        except IndexError:
            reader = _Reader()
        try:
            found = reader.ask(problem, answer)
        except BaseException as error:
            reader.end()
            if isinstance(error, OSError):  # it was gone before it was asked
                raise CannotRead("the process that reads answers has ended") from None
            raise
        _free.append(reader)
        return found


@atexit.register
def _end_readers() -> None:
    while _free:
        _free.pop().end()


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def _serve() -> None:
    """In the process that reads. It ends when nobody is left to ask."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    _send(stdout, b"")
    while len(size := stdin.read(4)) == 4:
        problem, answer = pickle.loads(stdin.read(int.from_bytes(size, "big")))
        _send(stdout, json.dumps(problem.interpretations(answer)).encode("ascii"))


if __name__ == "__main__":
    _serve()
