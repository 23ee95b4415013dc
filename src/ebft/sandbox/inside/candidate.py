"""The program under test, and a loop that serves calls into it. Runs inside the sandbox.

Nothing in this process is trusted: the program may rewrite all of it. It holds no tests, no expected answers and no
secret. All it can do is send plain data, and a program that sends the right data for every call is a right program.
"""

from __future__ import annotations

import _ast as ast  # these two without an underscore import much that a short test does without
import _symtable as symtable
import builtins
import os
import sys
import types

import wire

TYPE_CHECKING = False  # see driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Server(wire.Channel):
    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.namespace: dict[str, Any] = {}

    def reference(self, value: Any) -> list[Any]:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)  # kept alive, so that its id stays its own
        iterates = hasattr(type(value), "__next__")
        tag = "iterator" if iterates else "match" if type(value).__name__ == "Match" else "object"
        return [tag, self.numbers[id(value)]]

    def dereference(self, tag: str, content: Any, made: Any) -> Any:
        if tag == "object":
            return self.objects[content]
        if tag == "name":  # of the program, or of Python
            return self.namespace[content] if content in self.namespace else getattr(builtins, content)
        if tag == "callback":

            def callback(*arguments: Any) -> Any:
                self.send({"callback": content, "arguments": self.encode(list(arguments))})
                answer = self.receive()
                if "error" in answer:
                    raise getattr(builtins, answer["error"][0], RuntimeError)(answer["error"][1])
                return self.decode(answer["value"])

            return callback
        raise wire.ProtocolError("a malformed message")

    def serve(self) -> None:
        while True:
            request = self.receive()
            arguments, keywords = self.decode(request["arguments"]), dict(self.decode(request["keywords"]))
            try:
                answer = {"value": self.encode(self.target(request)(*arguments, **keywords))}
            except wire.ProtocolError:
                raise
            except BaseException as error:
                answer = told(error)
            self.send(answer)

    def target(self, request: dict[str, Any]) -> Any:
        """A method of an object that stays here, or what the program calls so."""
        if request["object"] is not None:
            return getattr(self.objects[request["object"]], request["name"])
        if request["name"] not in self.namespace:
            raise NameError(f"name {request['name']!r} is not defined")
        return self.namespace[request["name"]]


def told(error: BaseException) -> dict[str, Any]:
    return {"error": [type(error).__name__, str(error)[:500], isinstance(error, Exception)]}


NO_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def choose(variants: list[list[str]], names: list[str], sanitize: bool = False) -> list[types.CodeType]:
    """The first interpretation that compiles and defines what the tests call; else the first that compiles. With
    `sanitize`, a text that does not compile stands for its longest part that does, and what follows the functions that
    the tests call is not run (see `up_to_the_function`)."""
    errors: list[Exception] = []
    compiled: list[list[types.CodeType]] = []
    for part in (str, longest_part) if sanitize else (str,):
        for sources in variants:
            try:
                texts = [part(source) for source in sources]
                trees = [parse(text) for text in texts]
                if sanitize:
                    for text in texts:  # what is left out must be sound, too: a `return` outside of a function is not
                        compile(text, "<program>", "exec", dont_inherit=True)
                    trees = [up_to_the_function(tree, names) for tree in trees]
                codes = [compile(tree, "<program>", "exec", dont_inherit=True) for tree in trees]
                # Not in the prompt before the answer.
                symbols = symtable.symtable(texts[-1], "<program>", "exec").symbols
            except NO_PROGRAM as error:
                errors.append(error)
                continue
            if not names or any(symbols.get(name, 0) & symtable.DEF_BOUND for name in names):
                return codes
            if part is str:
                compiled.append(codes)
    if not compiled:
        raise errors[0]
    return compiled[0]


def longest_part(source: str) -> str:
    """The lines before the one where a text stops being Python: a last function that was cut off falls away."""
    lines = source.split("\n")
    while lines:
        try:
            compile("\n".join(lines), "<program>", "exec", dont_inherit=True)
        except SyntaxError as error:
            # Nothing that has this line can be right: it is where the text is wrong, or where a bracket was opened.
            del lines[min(len(lines) - 1, (error.lineno or len(lines)) - 1) :]
        else:
            break
    return "\n".join(lines)


def up_to_the_function(tree: ast.Module, names: list[str]) -> ast.Module:
    """As evalplus does: the first definition of what the tests call is the answer; models that do not stop define it
    again. After it, only imports, definitions and the values that definitions use are kept."""
    used = {n.id for node in tree.body if isinstance(node, DEFINITIONS) for n in walk(node) if type(n) is ast.Name}
    open_names, body = set(names), []
    for node in tree.body:
        if names and not open_names:
            if isinstance(node, ast.Assign):
                targets = {n.id for target in node.targets for n in walk(target) if type(n) is ast.Name}
                if not targets & (used | set(names)):
                    continue
            elif not isinstance(node, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
                continue
        if isinstance(node, DEFINITIONS) and node.name in names:
            if node.name not in open_names:
                continue
            open_names.remove(node.name)
        body.append(node)
    return ast.Module(body, tree.type_ignores)


def parse(source: str) -> ast.Module:
    tree: Any = compile(source, "<program>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    return tree


def walk(node: ast.AST) -> Iterator[Any]:
    """The node and all nodes below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            waiting += [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, ast.AST)]


def main() -> None:
    job, server = wire.begin(Server)
    sys.argv[:] = ["program.py"]
    sys.path += job["packages"]
    sys.modules["program"] = module = types.ModuleType("program")
    server.namespace = module.__dict__
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # the module `site` would set them, and costs time
    try:
        for code in choose(job["variants"], job["names"], job["sanitize"]):
            exec(code, server.namespace)
    except BaseException as error:
        server.send(told(error))
        return
    server.send({"value": None})
    try:
        server.serve()
    except wire.ProtocolError:  # the tests are over
        os._exit(0)
