"""Every command of the documents runs by itself as it stands, but for README.md and guides."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.reader import NOT_RUN, NOT_RUN_HERE, ROOT, Block, Reader, blocks

READ_IN_ORDER = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
OTHERS = [
    ROOT / "bench" / "README.md",
    ROOT / "structured" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "benchmarks").glob("*.md")),
]
EVERY = [block for document in (*READ_IN_ORDER, *OTHERS) for block in blocks(document)]
OF_OTHERS = [block for document in OTHERS for block in blocks(document)]
TYPED = [b for b in OF_OTHERS if b.language == "sh" and (b.is_server or b.is_run)]
PROGRAM = re.compile(
    r"(?:\w+=\S+ )*(?:inferway|curl|dotvllm|vllm|pip|python3?|sudo|docker|podman|helm|kubectl|git"
    r"|make|mkdir|envoy) "
)


@pytest.mark.tools
@pytest.mark.parametrize("block", TYPED, ids=lambda block: f"{block.document}-{block.place}")
def test_a_command_runs_as_it_stands(block: Block, tmp_path: Path) -> None:
    """One that asks a gateway finds one, with an engine."""
    with ExitStack() as stack:
        reader = Reader(ROOT / block.document, tmp_path, stack)
        if "http://127.0.0.1:8080" in block.text:
            for command in ("simulate --port 8101", "serve http://127.0.0.1:8101 --port 8080"):
                reader.type(Block(-1, "sh", f"inferway {command}", block.document))
            ready = "curl -sf --retry 8 --retry-connrefused http://127.0.0.1:8080/ready"
            reader.type(Block(-1, "sh", ready, block.document))
        reader.type(block)

        assert '"error"' not in reader.printed.get(block, "")


def test_what_looks_like_a_command_is_marked_as_one() -> None:
    assert not [b for b in EVERY if b.language != "sh" and PROGRAM.match(b.text)]


def test_each_reason_for_not_running_a_block_has_one() -> None:
    reasons = {block.why_not for block in EVERY if block.language == "sh"}

    assert {*NOT_RUN.values(), *NOT_RUN_HERE.values()} == reasons - {None}
