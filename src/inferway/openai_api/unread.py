"""A body that nobody here makes a prompt of: which model it is for, and little else.

body                                      its model
JSON, or no content type                  the member `model`; must be a JSON object
multipart/form-data                       the first field `model`
anything else                             not known, unless it happens to be a JSON object

A form that is a JSON object is read as one: not every engine asks what a body says that it is. Of
forms vLLM reads `vllm_xargs`, too (speech to text), in which a client may not say all (trust).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from typing import Any

import msgspec

from inferway.errors import InvalidRequestError
from inferway.openai_api.edits import with_model
from inferway.openai_api.lenient import json_object
from inferway.openai_api.requests import decode_body
from inferway.openai_api.shapes import Guided

_MAX_PARTS = 1000  # Starlette takes no more
_MAX_PART_HEAD_BYTES = 4096
_MAX_MODEL_BYTES = 1024
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_BEFORE_AN_OBJECT = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"  # UTF-16 and -32, byte order marks
_JSON = re.compile(rb"\s*(?:application/(?:[\w.+-]+\+)?json)?\s*(?:;|$)", re.IGNORECASE)
_DISPOSITION = b"content-disposition:"


class _Members(Guided, frozen=True, kw_only=True):
    """What we look at of a JSON object."""

    model: str | None = None
    cache_salt: Any = None  # not every path has one
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
    """The bytes of a body that is not parsed, and the few members that were found in them."""

    raw: bytes
    model: str | None = None
    members: _Members = _NOTHING
    place: tuple[int, int] | None = None  # where a form's field names the model
    edits: tuple[bytes, ...] = ()  # what of the client's bytes was changed

    is_form: bool = False

    @property
    def is_json(self) -> bool:
        return self.members is not _NOTHING and not self.is_form

    def with_model(self, model: str) -> bytes:
        """Return the bytes with another model. The body must name one."""
        if self.place is None:
            return with_model(self.raw, model)
        start, end = self.place
        return b"%b%b%b" % (self.raw[:start], model.encode(), self.raw[end:])


def read_unread(raw: bytes, content_type: bytes = b"") -> UnreadBody:
    """Raises InvalidRequestError for what says that it is JSON, and is no JSON object."""
    if not raw:
        return UnreadBody(raw)
    boundary = _boundary(content_type)
    if boundary is not None and raw.startswith((b"--", b"\r\n")):  # no JSON begins so
        return _read_form(raw, boundary)
    is_json = _JSON.match(content_type) is not None
    try:
        members = decode_body(raw, _MEMBERS)
    except InvalidRequestError:
        if is_json or begins_an_object(raw):
            raise
        return UnreadBody(raw) if boundary is None else _read_form(raw, boundary)
    return UnreadBody(raw, members.model or None, members)


def begins_an_object(raw: bytes) -> bool:
    """Return whether the bytes begin a JSON object, in any encoding of JSON that Python's parser
    reads."""
    return raw.lstrip(_BEFORE_AN_OBJECT)[:1] == b"{"


def _boundary(content_type: bytes) -> bytes | None:
    if not content_type.lstrip().lower().startswith(b"multipart/"):
        return None
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise InvalidRequestError("content-type: multipart without a boundary")
    return found[1] or found[2]


def _read_form(raw: bytes, boundary: bytes) -> UnreadBody:
    """Raises InvalidRequestError for one of which not all fields can be known."""
    place, xargs = None, {}
    for names, start, end in _fields(raw, boundary):
        if "model" in names and place is None and end <= start + _MAX_MODEL_BYTES:
            place = start, end
        elif "vllm_xargs" in names:
            xargs.update(_object_of(raw[start:end]))
    members = _Members(vllm_xargs=xargs) if xargs else _NOTHING
    model = None if place is None else raw[slice(*place)].decode("utf-8", "replace")
    return UnreadBody(raw, model or None, members, place, is_form=True)


def _object_of(value: bytes) -> dict[str, Any]:
    """As vLLM reads a field that is JSON; empty for what it refuses."""
    try:
        return json_object(value)
    except InvalidRequestError:
        return {}


def _fields(raw: bytes, boundary: bytes) -> Iterator[tuple[list[str], int, int]]:
    """Of each part that is whole (RFC 7578): its names, of which an engine takes one, and where its
    value stands. A part cannot contain the delimiter, so that no file is taken for a field."""
    delimiter = b"\r\n--" + boundary
    at = 0 if raw.startswith(delimiter[2:]) else raw.find(delimiter) + 2
    num = 0
    while at != 1:
        head = raw.find(b"\r\n\r\n", at, at + _MAX_PART_HEAD_BYTES)
        end = -1 if head < 0 else raw.find(delimiter, head + 2)
        if end < 0:
            if head < 0 and raw.find(b"\r\n\r\n", at) >= 0:
                raise InvalidRequestError(
                    f"form: the head of a part is over the limit of {_MAX_PART_HEAD_BYTES} bytes"
                )
            return
        num += 1
        if num > _MAX_PARTS:
            raise InvalidRequestError(f"form: over the limit of {_MAX_PARTS} parts")
        yield _names(raw[at:head]), min(head + 4, end), end
        at = end + 2


def _names(head: bytes) -> list[str]:
    """As Starlette reads them (python-multipart), whatever way of writing them the client chose."""
    names = []
    for line in head.split(b"\r\n"):
        if line[: len(_DISPOSITION)].lower() == _DISPOSITION:
            message = Message()
            message["content-type"] = line[len(_DISPOSITION) :].strip().decode("latin-1")
            name = message.get_param("name")
            names.append(name[-1] if isinstance(name, tuple) else str(name))
    return names
