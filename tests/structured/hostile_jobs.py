"""What a helper does in the hostile suite."""

from __future__ import annotations

import llguidance


def validate(schema: bytes) -> bytes:
    """What llguidance says of it; empty when it takes it."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema.decode())
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    return messages[0].encode() if is_error else b""
