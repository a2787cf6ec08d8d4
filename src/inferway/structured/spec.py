"""What shape an answer must have: one value, whichever way it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b


class Kind(StrEnum):
    """As vLLM's StructuredOutputOptions (v1/structured_output/backend_types.py)."""

    JSON = "json"  # text: a JSON Schema
    JSON_OBJECT = "json_object"  # text: empty; any JSON object
    REGEX = "regex"  # text: the expression; the whole answer matches it
    CHOICE = "choice"  # text: a JSON array of strings; the answer is one of them
    GRAMMAR = "grammar"  # text: Lark or EBNF
    STRUCTURAL_TAG = "structural_tag"  # text: JSON, free text with shaped parts in it


@dataclass(frozen=True, slots=True)
class Options:
    """How a JSON answer may be written, where the request says so."""

    any_whitespace: bool = True
    additional_properties: bool = True  # of objects that do not say so themselves
    whitespace_pattern: str | None = None  # between JSON tokens; None: the backend's own


@dataclass(frozen=True)
class Spec:
    """`text` is canonical: JSON without blanks, its properties in the order given, because they
    are written in that order. Equal specs are compiled once."""

    kind: Kind
    text: str
    options: Options = Options()

    @cached_property
    def key(self) -> str:
        """128 bits in hex, the same in every process and on every machine."""
        parts = "\0".join((self.kind, repr(self.options), self.text))
        return blake2b(parts.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """A spec as it stands in a request."""

    spec: Spec
    place: str  # where in the body, for error.param: "response_format/json_schema/schema"
    strict: bool = False  # OpenAI's word: every keyword enforced, or refused
