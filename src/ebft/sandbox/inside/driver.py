"""The tests of one problem, run against a program in another process. Runs inside a sandbox of its own.

The names that the tests call are stand-ins that send the call as plain data and return plain data. The program
cannot reach this process other than through these answers, and this process alone says whether the tests passed.
"""

from __future__ import annotations

import builtins
import os
import sys
import types

import wire

TYPE_CHECKING = False  # importing what only types need would take a third of the time of a short test
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SETUP, TESTS = "<setup>", "<tests>"


class ProgramEnded(BaseException):
    """Raised through the tests, past every `except Exception`, when no further call can succeed."""


class ProgramError(Exception):
    """The program raised something that is no builtin exception."""


class Client(wire.Channel):
    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self.callbacks: list[Callable[..., Any]] = []
        self.calls = 0
        self.ended: str | None = None

    def reference(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["object", value._number]
        name = getattr(value, "__name__", "")
        python = isinstance(value, (type, types.BuiltinFunctionType)) and getattr(builtins, name, None) is value
        if python or type(value) is StandIn:
            return ["name", name]
        if callable(value):
            self.callbacks.append(value)
            return ["callback", len(self.callbacks) - 1]
        raise TypeError(f"an object of the type {type(value).__name__} cannot be passed to the program")

    def dereference(self, tag: str, content: Any, made: type[Remote] | None) -> Remote:
        if tag in ("object", "iterator", "match") and type(content) is int:
            return (made or Remote)(self, content, tag)
        raise wire.ProtocolError("a malformed message")

    def call(self, number: int | None, name: str, arguments: Any, keywords: Any, made: Any = None) -> Any:
        """Calls a method of the object with this number, or else what the program calls so. `made` is the kind of
        stand-in for what is returned and stays there."""
        if self.ended is not None:
            raise ProgramEnded(self.ended)
        arguments, keywords = self.encode(list(arguments)), self.encode(keywords)
        self.calls += 1
        try:
            self.send({"object": number, "name": name, "arguments": arguments, "keywords": keywords})
            while "callback" in (answer := self.receive()):
                self.send(self._call_back(answer))
            if "error" not in answer:
                return self.decode(answer.get("value"), made)
            error = self.exception(answer["error"])
            if isinstance(error, StopIteration) and name != "__next__":
                # It would end a loop of the tests: `all(map(f, inputs))` holds for a function that raises it.
                error = ProgramError("StopIteration left the function")
        except (wire.ProtocolError, RecursionError) as problem:
            error = ProgramEnded(str(problem))
        if isinstance(error, ProgramEnded):
            self.ended = str(error)
        raise error

    def _call_back(self, answer: dict[str, Any]) -> dict[str, Any]:
        number, arguments = answer["callback"], self.decode(answer.get("arguments"))
        if type(number) is not int or not 0 <= number < len(self.callbacks) or not isinstance(arguments, list):
            raise wire.ProtocolError("a malformed message")
        try:
            return {"value": self.encode(self.callbacks[number](*arguments))}
        except Exception as error:
            return {"error": [type(error).__name__, str(error)[:500]]}

    def exception(self, error: Any) -> BaseException:
        if not (isinstance(error, list) and len(error) == 3 and all(isinstance(part, str) for part in error[:2])):
            return ProgramEnded("a malformed message")
        name, message, ordinary = error
        if not ordinary:
            return ProgramEnded(f"{name}: {message}")
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(message)
            except TypeError:  # UnicodeDecodeError and its like want more than a message
                pass
        return ProgramError(f"{name}: {message}")


class Remote:
    """A value that stays with the program: an iterator, a function or a match of `re`.

    It offers no comparison, no arithmetic, no conversion and no attributes: each of these would let the program answer
    a question of the test, some with the expected value in hand. Its own attributes are underscored, and read by
    `Client`, so that none is taken for one of the program's.
    """

    _client: Client
    _number: int
    _tag: str

    def __init__(self, client: Client, number: int, tag: str) -> None:
        vars(self).update(_client=client, _number=number, _tag=tag)  # past the `__setattr__` of `Instance`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._number == self._number

    def __hash__(self) -> int:
        return hash(("remote", self._number))

    def __bool__(self) -> bool:
        if self._tag == "match":
            return True  # what re.match gives when it finds something
        raise TypeError("the program returned an object of its own where the test wants true or false")

    def __iter__(self) -> Remote:
        if self._tag != "iterator":
            raise TypeError("the program returned an object of its own where the test wants plain data")
        return self

    def __next__(self) -> Any:
        return self._method("__next__")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("__call__", *arguments, **keywords)

    def _method(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return self._client.call(self._number, name, arguments, keywords)


class Instance(Remote):
    """An object of a class that the problem asks for, made by the test itself: it has the attributes the test uses."""

    def __getattr__(self, name: str) -> Any:
        return self._client.call(self._number, "__getattribute__", [name], {}, Instance)

    def __setattr__(self, name: str, value: Any) -> None:
        self._method("__setattr__", name, value)


for _name in ("__len__", "__getitem__", "__setitem__", "__str__", "__repr__"):  # Python looks for them in the class
    setattr(Instance, _name, lambda instance, *arguments, _name=_name: instance._method(_name, *arguments))


class StandIn:
    """Stands for a function of the program, or a class."""

    def __init__(self, client: Client, name: str, made: type[Remote] = Remote) -> None:
        self._client, self.__name__, self._made = client, name, made

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._client.call(None, self.__name__, arguments, keywords, self._made)


def run(job: dict[str, Any], client: Client) -> dict[str, str]:
    namespace: dict[str, Any] = {"__name__": "tests"}
    sys.path += job["packages"]
    try:  # noqa: SIM105 (contextlib is one more to import)
        # Helpers that the prompt gives and the tests call: ours, not what the program may have made of them.
        exec(compile(job["prompt"], SETUP, "exec", dont_inherit=True), namespace)
    except SyntaxError:
        pass
    namespace |= {name: __import__(name) for name in job["modules"]}
    namespace |= {name: StandIn(client, name) for name in job["names"]}
    namespace |= {name: StandIn(client, name, Instance) for name in job["classes"]}
    try:
        defined = client.receive()
        if "error" in defined:
            raise client.exception(defined["error"])
        exec(compile(job["setup"], SETUP, "exec", dont_inherit=True), namespace)
        exec(compile(job["tests"], TESTS, "exec", dont_inherit=True), namespace)
        if job["check"]:
            namespace["check"](namespace[job["check"]])
        if client.ended is not None:  # a test that expects errors may have swallowed this one
            raise ProgramEnded(client.ended)
    except BaseException as error:
        return {"status": "failed", "message": describe(error)}
    if not client.calls:
        return {"status": "error", "message": "the tests never called the program"}
    return {"status": "passed", "message": ""}


def describe(error: BaseException) -> str:
    if isinstance(error, (ProgramEnded, wire.ProtocolError)):
        return str(error) or "the program has ended"
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TESTS:
            line = f"test line {trace.tb_lineno}: "
        trace = trace.tb_next
    return f"{line}{type(error).__name__}{': ' if str(error) else ''}{error}"[:500]


def main() -> None:
    job, client = wire.begin(Client)
    results = os.dup(1)
    for standard in (1, 2):
        os.dup2(0, standard)  # tests may print; only the result goes to our own process
    try:
        result = run(job, client)
    except BaseException as error:
        result = {"status": "error", "message": f"the tests cannot run: {type(error).__name__}: {error}"[:500]}
    os.write(results, wire.to_json(result))
    os._exit(0)
