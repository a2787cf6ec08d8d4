"""A model's entry in GET /v1/models, with the fields that vLLM adds to OpenAI's."""

from __future__ import annotations

import hashlib
from typing import Any

Card = dict[str, Any]


def model_card(
    name: str,
    *,
    created: int,
    root: str,
    parent: str | None = None,
    max_model_len: int | None = None,
    owned_by: str = "vllm",
) -> Card:
    """Return vLLM 0.32's ModelCard (entrypoints/serve/engine/protocol.py). `created`: Unix time."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owned_by,
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission(name, created)],
    }


def permission(name: str, created: int) -> dict[str, Any]:
    """Return vLLM's ModelPermission, which is the same for every model, but for its id."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return {
        "id": f"modelperm-{digest}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
