"""Real templates, tokenizers and chats, as they are stored in the repository.

tests/data/README.md and bench/src/inferway_bench/data/README.md say where each comes from.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

Row = dict[str, Any]

DATA = Path(__file__).parent / "data"
CHATS = Path(__file__).parents[1] / "bench" / "src" / "inferway_bench" / "data" / "chat"
TOKENIZERS = sorted(
    path.name.removesuffix(".tokenizer.json.xz") for path in DATA.glob("tokenizers/*.tokenizer.*")
)


@cache
def tokenizer_json(name: str) -> str:
    """The tokenizer.json of one of `TOKENIZERS`."""
    packed = (DATA / "tokenizers" / f"{name}.tokenizer.json.xz").read_bytes()
    return lzma.decompress(packed).decode()


def templates() -> list[Row]:
    """Distinct chat templates, each with its `id`, `names` and `chat_template`."""
    return rows(DATA / "templates" / "chat_templates.jsonl.xz")


def template_goldens() -> list[Row]:
    """How they were made, then the text that transformers renders of each template."""
    return rows(DATA / "templates" / "goldens_transformers.jsonl.xz")


def upstream_render_cases() -> list[Row]:
    """Templates, bodies and texts of the projects' own tests."""
    return rows(DATA / "templates" / "upstream_render_cases.jsonl.xz")


def token_vectors() -> list[Row]:
    """The ids that llama.cpp gives texts, by `model`."""
    return rows(DATA / "tokenizers" / "llama_cpp_token_vectors.jsonl.xz")


def conversations(source: str) -> list[Row]:
    """A file of `CHATS`, by its name without ending."""
    return rows(CHATS / f"{source}.jsonl.xz")


def llmd_configurations() -> list[Row]:
    """llm-d's own EndpointPickerConfigs: `name`, `repository`, `commit`, `path`, `config`."""
    return rows(DATA / "llmd" / "configurations.jsonl.xz")


def rows(path: Path) -> list[Row]:
    """The JSON lines of a file that xz has packed."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
