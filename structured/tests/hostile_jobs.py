"""What a helper does in the hostile suite."""

from __future__ import annotations

import resource
from contextlib import suppress

import llguidance

from inferway_structured.backends.cascade import verdict
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.check import check

# What these import, they import now: a job cannot.
_FIRST = Spec(Kind.JSON, '{"pattern":"a","oneOf":[{"format":"date"},{"not":{}}]}')
check(_FIRST)
verdict(_FIRST)


def validate(schema: bytes) -> bytes:
    """What llguidance says of it; empty when it takes it."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema.decode())
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    return messages[0].encode() if is_error else b""


def examine(schema: bytes) -> bytes:
    """As a request is: checked, and if that lets it through, its verdict found. Gives the most
    bytes that this process has had."""
    with suppress(SpecError):
        spec = Spec(Kind.JSON, schema.decode())
        check(spec)
        verdict(spec)
    return b"%d" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
