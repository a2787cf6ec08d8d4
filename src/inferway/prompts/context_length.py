"""How much context a request needs: by the rules by which vLLM 0.32 refuses it for want of any
(renderers/params.py, v1/engine/input_processor.py)."""

from __future__ import annotations

from collections.abc import Sequence

from inferway.model import TokenIds
from inferway.openai_api.requests import Body


def context_needed(body: Body, prompts: Sequence[TokenIds]) -> int:
    """Return how many tokens of context the request needs of an engine, counting the prompts that
    are known. A prompt that the engine truncates needs its full truncated length. An answer longer
    than the context is cut by the engine, but the request is refused if `max_tokens` alone exceeds
    the context."""
    needed = [len(ids) + 1 for ids in prompts]
    needed += (body.answer_limit or 0, body.truncate_prompt_tokens or 0)
    if body.prompts and body.truncate_prompt_tokens is None:
        needed += [len(ids) + 1 for ids in body.prompts if not isinstance(ids, str)]
    return max(needed)
