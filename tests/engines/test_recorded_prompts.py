"""vLLM's own code makes what the unit tests compare ours with: what tests/golden holds of it is
recorded again with the installed version, and with newer ones."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm_code import ROOT, VllmCode

GOLDEN = ROOT / "tests" / "golden"
SECONDS = 600
MODEL = str(ROOT / "src" / "inferway" / "prompts" / "files" / "smollm2")

# Recorder -> the files of which it writes one, and whether it asks for a model.
RECORDERS = {
    "prompts/record_vllm_chats.py": ("vllm_chats.jsonl.gz", True),
    "prompts/record_vllm_flags.py": ("vllm_flags.jsonl.gz", True),
    "prompts/record_vllm_formats.py": ("vllm_formats.json", False),
    "prompts/record_vllm_messages.py": ("vllm_messages.jsonl.gz", True),
    "prompts/record_vllm_names.py": ("vllm_names.jsonl.gz", True),
    "prompts/record_vllm_responses.py": ("vllm_responses.jsonl.gz", True),
    "prompts/record_vllm_truncation.py": ("vllm_truncation*.jsonl.gz", False),
    "openai_api/record_vllm_cache_reads.py": ("vllm_cache_reads.json", False),
    "openai_api/record_vllm_messages.py": ("vllm_messages.json", False),
}


def rows(file: Path) -> Any:
    """All but the version that has written them."""
    if file.suffix == ".json":
        return json.loads(file.read_text())
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    found[0].get("meta", {}).pop("engine", None)
    return found


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("recorder", RECORDERS)
def test_vllm_makes_what_is_recorded(recorder: str, vllm_code: VllmCode, tmp_path: Path) -> None:
    """In a copy: a recorder writes beside itself."""
    name, asks_for_model = RECORDERS[recorder]
    folder = tmp_path / "tests" / "golden" / Path(recorder).parent
    shutil.copytree(GOLDEN / Path(recorder).parent, folder)
    (tmp_path / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    before = {file: file.stat().st_mtime_ns for file in folder.glob(name)}

    vllm_code.run(
        [Path(recorder).name, *([MODEL] if asks_for_model else [])], cwd=folder, seconds=SECONDS
    )

    [written] = [file for file in before if file.stat().st_mtime_ns != before[file]]
    assert rows(written) == rows(GOLDEN / Path(recorder).parent / written.name)
