"""Paths that carry no prompt we could derive: what the document says of them."""

from __future__ import annotations

import re
from pathlib import Path

from inferway.openai_api.kinds import CACHELESS, SALTED, UNREAD, UNSALTED

API = Path(__file__).parents[2] / "docs/api.md"


def test_the_document_has_one_row_for_each() -> None:
    section = re.search(
        r"^## Paths that are forwarded by load$(.*?)^## ", API.read_text(), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    rows = re.findall(r"^\| `(/[^`]+)` \| (.+) \|$", section[1], re.MULTILINE)
    says = {SALTED: "salted", CACHELESS: "as it is", UNSALTED: "404"}

    assert [path for path, _ in rows] == list(UNREAD)
    assert all(text.startswith(says[UNREAD[path]]) for path, text in rows)
