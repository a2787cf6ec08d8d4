"""A model that thinks, for engines and gateways: SmolLM2 with two of its tokens renamed."""

from __future__ import annotations

import shutil
from pathlib import Path

from inferway_sim.prepare import TOKENIZER_FILES, prepare_smollm2

# Tokens of source code, which no chat has. The vocabulary stays as large as the weights.
_RENAMED = {"<repo_name>": "<think>", "<file_sep>": "</think>"}


def thinking_smollm2(directory: Path, source: Path | None = None) -> Path:
    """Write the model into `directory`, and return it. `source`: a directory with weights."""
    shutil.copytree(source or prepare_smollm2(), directory, dirs_exist_ok=True)
    for name in TOKENIZER_FILES:
        path = directory / name
        text = path.read_text()
        for before, after in _RENAMED.items():
            text = text.replace(f'"{before}"', f'"{after}"')
        path.write_text(text)
    return directory
