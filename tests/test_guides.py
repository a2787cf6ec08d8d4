"""Every command of docs/guides runs as it stands, in its order, and prints what the guide shows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.reader import ROOT, Reader, blocks, shape

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
TYPED = [guide for guide in GUIDES if any(block.is_run for block in blocks(guide))]


@pytest.mark.tools
@pytest.mark.parametrize("guide", TYPED, ids=lambda path: path.stem)
def test_every_command_runs_and_prints_what_is_shown(guide: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(guide, tmp_path, stack)
        reader.type_all()

        for shown, printed in reader.shown():
            assert shape(printed) == shape(shown)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_block_is_a_command_what_one_prints_or_a_file(guide: Path) -> None:
    assert {block.language for block in blocks(guide)} <= {"sh", "text", "python", "yaml"}
