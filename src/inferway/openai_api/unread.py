"""A body that nobody here makes a prompt of: which model it is for, and little else.

body                                      its model
JSON, or no content type                  the member `model`; must be a JSON object
multipart/form-data                       the first field `model`
anything else                             not known, unless it happens to be a JSON object
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from inferway.errors import InvalidRequestError
from inferway.openai_api.edits import with_model
from inferway.openai_api.requests import decode_body
from inferway.openai_api.shapes import Guided

_MAX_PARTS = 64
_MAX_PART_HEAD_BYTES = 4096
_MAX_MODEL_BYTES = 1024
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_JSON = re.compile(rb"\s*(?:application/(?:[\w.+-]+\+)?json)?\s*(?:;|$)", re.IGNORECASE)
_NAME = re.compile(
    rb'^content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?model"?\s*(?:;|$)',
    re.IGNORECASE | re.MULTILINE,
)


class _Members(Guided, frozen=True, kw_only=True):
    """What we look at of a JSON object."""

    model: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    priority: Any = None  # in the engine's queue
    vllm_xargs: Any = None
    tools: Any = None
    tool_choice: Any = None
    output_config: Any = None  # Anthropic's


_MEMBERS = msgspec.json.Decoder(_Members)
_NOTHING = _Members()


class UnreadBody(msgspec.Struct, frozen=True):
    """Its bytes, and what was found in them."""

    raw: bytes
    model: str | None = None
    members: _Members = _NOTHING
    place: tuple[int, int] | None = None  # where a form's field names the model
    edits: tuple[bytes, ...] = ()  # what of the client's bytes was changed

    @property
    def is_json(self) -> bool:
        return self.members is not _NOTHING

    def with_model(self, model: str) -> bytes:
        """Its bytes with another model. It must name one."""
        if self.place is None:
            return with_model(self.raw, model)
        start, end = self.place
        return b"%b%b%b" % (self.raw[:start], model.encode(), self.raw[end:])


def read_unread(raw: bytes, content_type: bytes = b"") -> UnreadBody:
    """Raises InvalidRequestError for what says that it is JSON, and is no JSON object."""
    if not raw:
        return UnreadBody(raw)
    boundary = _boundary(content_type)
    if boundary is not None:
        place = _model_field(raw, boundary)
        if place is None:
            return UnreadBody(raw)
        name = raw[slice(*place)].decode("utf-8", "replace")
        return UnreadBody(raw, name or None, place=place)
    is_json = _JSON.match(content_type) is not None
    try:
        members = decode_body(raw, _MEMBERS)
    except InvalidRequestError:
        if is_json or raw.lstrip()[:1] == b"{":
            raise
        return UnreadBody(raw)
    return UnreadBody(raw, members.model or None, members)


def _boundary(content_type: bytes) -> bytes | None:
    if not content_type.lstrip().lower().startswith(b"multipart/"):
        return None
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise InvalidRequestError("content-type: multipart without a boundary")
    return found[1] or found[2]


def _model_field(raw: bytes, boundary: bytes) -> tuple[int, int] | None:
    """Where the value of the first field `model` stands (RFC 7578). A part cannot contain the
    delimiter, so that no file is taken for a field."""
    delimiter = b"\r\n--" + boundary
    at = 0 if raw.startswith(delimiter[2:]) else raw.find(delimiter) + 2
    if at == 1:
        return None
    for _ in range(_MAX_PARTS):
        head = raw.find(b"\r\n\r\n", at, at + _MAX_PART_HEAD_BYTES)
        end = -1 if head < 0 else raw.find(delimiter, head + 2)
        if end < 0:
            return None
        if _NAME.search(raw[at:head].replace(b"\r\n", b"\n")):
            start = head + 4
            return (start, end) if start <= end <= start + _MAX_MODEL_BYTES else None
        at = end + 2
    return None
