"""The toolchains of the languages of MultiPL-E: where they are, what is missing, which version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

JAVATUPLES = "/usr/share/java/javatuples.jar"


@dataclass(frozen=True)
class Language:
    """A language of MultiPL-E.

    Args:
        programs: what must be installed, and the Debian package that has it.
        version_commands: a command for each version that is part of the results.
        files: further files that must be there, and their Debian packages.
    """

    name: str
    title: str
    programs: tuple[tuple[str, str], ...]
    version_commands: tuple[tuple[str, tuple[str, ...]], ...]
    files: tuple[tuple[str, str], ...] = ()

    def missing(self) -> str | None:
        """One line on what is not installed, or None."""
        absent = [(program, package) for program, package in self.programs if shutil.which(program) is None]
        absent += [(file, package) for file, package in self.files if not Path(file).exists()]
        if self.name == "ts" and not absent and typescript() is None:
            absent.append(("tsc", "node-typescript"))
        if self.name == "rs" and not absent and not Path(locate("rustc")[0]).exists():
            absent.append(("rustc", "rustc"))  # only rustup's proxy is there, without a compiler
        if not absent:
            return None
        names = " and ".join(f"`{name}`" for name, _ in absent)
        packages = " ".join(dict.fromkeys(package for _, package in absent))
        return f"{self.title} needs {names}, not found here: apt install {packages}"

    def versions(self) -> dict[str, str]:
        return {name: _first_line(command) for name, command in self.version_commands if shutil.which(command[0])}


@cache
def _first_line(command: tuple[str, ...]) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(iter((asked.stdout + asked.stderr).strip().splitlines()), "unknown")


LANGUAGES = {
    language.name: language
    for language in (
        Language("cpp", "C++", (("g++", "g++"),), (("g++", ("g++", "--version")),)),
        Language("js", "JavaScript", (("node", "nodejs"),), (("node", ("node", "--version")),)),
        Language(
            "ts", "TypeScript", (("node", "nodejs"),), (("node", ("node", "--version")), ("tsc", ("tsc", "--version")))
        ),
        Language("rs", "Rust", (("rustc", "rustc"), ("cc", "gcc")), (("rustc", ("rustc", "--version")),)),
        Language(
            "cs",
            "C#",
            (("mcs", "mono-mcs"), ("mono", "mono-runtime")),
            (("mcs", ("mcs", "--version")), ("mono", ("mono", "--version"))),
        ),
        Language("go", "Go", (("go", "golang-go"),), (("go", ("go", "version")),)),
        Language("php", "PHP", (("php", "php-cli"),), (("php", ("php", "--version")),)),
        Language(
            "java",
            "Java",
            (("javac", "default-jdk-headless"), ("java", "default-jdk-headless")),
            (("javac", ("javac", "-version")),),
            ((JAVATUPLES, "libjavatuples-java"),),
        ),
    )
}


# Extensions of PHP that only compute: what official builds have inside, and some distributions in files of their own.
PHP_EXTENSIONS = ("ctype", "mbstring", "iconv", "bcmath", "gmp", "calendar", "tokenizer")


@cache
def php_extensions() -> tuple[str, ...]:
    """Those of PHP_EXTENSIONS that are installed as files. Without php.ini, PHP has to be told to load them."""
    said = _first_line(
        ("php", "-n", "-r", 'echo ini_get("extension_dir"), " ", implode(",", get_loaded_extensions());')
    )
    folder, _, inside = said.rpartition(" ")
    built_in = inside.lower().split(",")
    return tuple(n for n in PHP_EXTENSIONS if n not in built_in and Path(folder, f"{n}.so").is_file())


@cache
def typescript() -> str | None:
    """How TypeScript becomes JavaScript here: `tsc`, or `node` itself where it strips types (22.13 and newer)."""
    if shutil.which("tsc"):
        return "tsc"
    version = re.match(r"v(\d+)\.(\d+)", _first_line(("node", "--version")))
    return "node" if version and (int(version[1]), int(version[2])) >= (22, 13) else None


@cache
def locate(program: str) -> tuple[str, tuple[str, ...]]:
    """The real path of a program, and the folders outside /usr that it needs."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(program)
    if program == "rustc":
        # rustup puts a proxy on the path, which looks for the compiler in the user's home.
        root = _first_line((found, "--print", "sysroot"))
        return f"{root}/bin/rustc", () if root.startswith("/usr") else (root,)
    real = os.path.realpath(found)
    if real.startswith(("/usr/", "/bin/", "/lib/")):
        return found if found.startswith(("/usr/", "/bin/")) else real, ()
    parts = Path(real).parts
    if "node_modules" in parts:  # in a project's folder, packages find each other side by side
        return real, (str(Path(*parts[: parts.index("node_modules") + 1])),)
    return real, (str(Path(real).parent.parent),)
