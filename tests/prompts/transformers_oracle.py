"""transformers itself, to compare with: the engines' version is a test dependency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from transformers import AutoTokenizer, TokenizersBackend
from transformers.utils import logging

logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def load_theirs(directory: Path) -> Any:
    """As vLLM loads a tokenizer without --trust-remote-code; where it would refuse, because the
    model has a tokenizer in code, its tokenizer.json as it is."""
    try:
        return AutoTokenizer.from_pretrained(
            directory, trust_remote_code=False, mistral_format=False, truncation_side="left"
        )
    except ValueError as e:
        if "contains custom code" not in str(e):
            raise
        return TokenizersBackend.from_pretrained(directory)


def parts(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """All of a tokenizer that decides over the ids of one text."""
    whole: dict[str, Any] = json.loads(tokenizer.to_str())
    whole.pop("truncation")
    whole.pop("padding")
    (whole["post_processor"] or {}).pop("pair", None)
    return whole
