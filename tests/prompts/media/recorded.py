"""What vLLM's own processors made of drawn chats (tests/engines/record_media.py), beside ours."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engines.drawn_pictures import drawn_pictures
from tests.engines.record_media import checksum
from tests.engines.tiny_vision import FAMILIES, write_vision_model

from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.loaded_model import LoadedModel
from inferway.prompts.media.rule import Size, expanded

Rows = Mapping[str, Sequence[Any]]


def read_rows(file: Path) -> Rows:
    """Return what is recorded of each family."""
    rows: Rows = json.loads(lzma.decompress(file.read_bytes()))
    return rows


def faults(name: str, seed: int, rows: Sequence[Any], folder: Path) -> list[str]:
    """Return the chats of a family that are not what is recorded, with both."""
    model = LoadedModel(read_model_files(write_vision_model(name, folder)))
    rule = model.media_rule
    assert rule is not None
    found = []
    chats = drawn_pictures(FAMILIES[name].picture, seed, len(rows))
    for drawn, row in zip(chats, rows, strict=True):
        ids = model.tokenizer.encode(drawn.text, add_special_tokens=False)
        made = expanded(ids, [Size(*size) for size in drawn.sizes], rule)
        ours = made and [[list(span) for span in made[1]], checksum(made[0].tolist())]
        if ours != row:
            found.append(f"{drawn}: {ours}, vLLM: {row}")
    return found
