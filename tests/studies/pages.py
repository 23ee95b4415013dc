"""What tests look at in a page."""

from __future__ import annotations

import json
import re
from typing import Any


def data_of(page: str) -> dict[str, Any]:
    """The data that the script of a page draws."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def no_outside(page: str) -> None:
    """Nothing is loaded from anywhere."""
    assert not re.search(r"(?:src|href)=[\"']?(?!#)", page.replace("<script", ""))
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page
