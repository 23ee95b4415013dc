"""`python -m tools.notebooks`: the tutorials of the documentation as notebooks in examples/.

A tutorial is written once, as a page. Its prose becomes cells of text, its Python blocks cells of code, its bash blocks
cells that the shell runs. The notebooks have no outputs: they would go stale, and `examples/` would grow with them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = {page.stem: page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}


def notebook_of(name: str) -> Path:
    return ROOT / "examples" / f"{name.replace('-', '_')}.ipynb"


def notebook(page: Path) -> str:
    """The JSON of a page's notebook."""
    cells: list[dict[str, Any]] = []
    for part in re.split(r"(^```(?:python|bash)\n.*?^```\n)", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
        block = re.fullmatch(r"```(python|bash)\n(.*?)```\n", part, flags=re.DOTALL)
        if block:
            source = block[2].rstrip() if block[1] == "python" else f"%%bash\n{block[2].rstrip()}"
            code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
            cells.append({**code, "source": source.splitlines(keepends=True)})
        elif text := _prose(part, page):
            cells.append({"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)})
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _prose(text: str, page: Path) -> str:
    """Without pictures, which are not beside a notebook, and without links that only the site can follow."""
    text = re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^This page is also a notebook.*\n", "", text, flags=re.MULTILINE)
    links = r"\[([^\]]+)\]\((?!https?:)([^)]+)\)"
    text = re.sub(links, lambda link: f"[{link[1]}]({_from_examples(link[2], page)})", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _from_examples(target: str, page: Path) -> str:
    path, hash_, heading = target.partition("#")
    return f"../{(page.parent / path).resolve().relative_to(ROOT).as_posix()}{hash_}{heading}"


if __name__ == "__main__":
    for name, page in TUTORIALS.items():
        notebook_of(name).write_text(notebook(page), encoding="utf-8")
        print(notebook_of(name).relative_to(ROOT))
