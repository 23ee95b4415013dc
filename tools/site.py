"""Hooks of mkdocs: pages that are made from something else, and links to files outside docs/.

- index.md is README.md, and the pages of the project are CONTRIBUTING.md and so on: each text is kept once.
- commands.md is what `ebft COMMAND --help` says, for every command that `ebft --help` names.
- A link to another file of the repository leads to a copy of it in the site; one to a folder becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file alone

from tools.commands_page import commands_page  # noqa: E402

FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
    "benchmarks.md": "benchmarks/README.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(`{3,}|~~~+).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    texts = {page: (ROOT / name, (ROOT / name).read_text("utf-8")) for page, name in FROM_ROOT.items() if _is(name)}
    made = {page: _links(text, source.parent, page, files, config) for page, (source, text) in texts.items()}
    for page, text in {**made, "commands.md": commands_page()}.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    if page.file.abs_src_path is None or page.file.generated_by:
        return markdown
    return _links(markdown, Path(page.file.abs_src_path).parent, page.file.src_uri, files, config)


def _is(name: str) -> bool:
    return (ROOT / name).is_file()


def _links(text: str, folder: Path, page: str, files: Files, config: Any) -> str:
    """The text with links to files of the repository as links inside the site. Code blocks stay as they are."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [_links_of_prose(text[end : fence.start()], folder, page, files, config), fence.group()]
        end = fence.end()
    return "".join([*parts, _links_of_prose(text[end:], folder, page, files, config)])


def _links_of_prose(text: str, folder: Path, page: str, files: Files, config: Any) -> str:
    docs = Path(config.docs_dir)
    pages = {name: made for made, name in FROM_ROOT.items()}

    def replace(link: re.Match[str]) -> str:
        image, title, target, heading = link.groups()
        if re.match(r"[a-z]+:", target):
            return link.group()
        file = (folder / target).resolve()
        if not file.exists() or not file.is_relative_to(ROOT):
            return link.group()  # mkdocs says what is wrong with it
        name = file.relative_to(ROOT).as_posix()
        if name in pages:
            place = pages[name]
        elif file.is_relative_to(docs):
            place = file.relative_to(docs).as_posix()
        elif file.is_dir() or file.suffix == ".md":  # no page of the site
            return title
        else:
            place = f"files/{name}"
            if files.get_file_from_path(place) is None:
                copied = File.generated(config, place, content=file.read_bytes())
                files.append(copied)
        there = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{image}[{title}]({there}{heading or ''})"

    return LINK.sub(replace, text)
