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
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from inferway.errors import InvalidRequestError
from inferway.openai_api.edits import with_model
from inferway.openai_api.lenient import json_object
from inferway.openai_api.requests import decode_body
from inferway.openai_api.shapes import Guided

_MAX_PARTS = 1000  # Starlette takes no more
_MAX_PART_HEAD_BYTES = 4096
_MAX_MODEL_BYTES = 1024
_CHARSET = rb'(?:\s*;\s*charset="?utf-?8"?)?'
_FORM = re.compile(
    rb"multipart/form-data%b\s*;\s*boundary="
    rb'(?:"([\w\'()+,./:=? -]{0,69}[\w\'()+,./:=?-])"|([\w\'()+,./:=?-]{1,70}))%b'
    % (_CHARSET, _CHARSET),
    re.IGNORECASE | re.ASCII,
)
# A value in quotes, without what one parser takes for an escaped quote and another for its end.
_QUOTED = rb'"(?:[^"\\\r\n]|\\[^"\r\n])*"'
_FORM_DATA = re.compile(rb"content-disposition:[ \t]*form-data", re.IGNORECASE)
_PARAMETER = re.compile(
    rb"[ \t]*;[ \t]*(name|filename|filename\*)=(%b|[\w.'%%!#$&+^`|~-]+)" % _QUOTED,
    re.IGNORECASE | re.ASCII,
)
_HEADER_LINE = re.compile(rb"[A-Za-z0-9-]+:[^\r\n\0]*")
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


def read_query(query: str) -> UnreadBody:
    """Return the model that a query names, of several the last one, as engines read it, and where
    it stands: a rule may put another one there."""
    at, place, model = 0, None, None
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if name == "model" and equals:
            start = at + len(name) + 1
            place, model = (start, start + len(value)), unquote_plus(value) or None
        at += len(part) + 1
    return UnreadBody(query.encode(), model, place=place, is_form=True)


def begins_an_object(raw: bytes) -> bool:
    """Return whether the bytes begin a JSON object, in any encoding of JSON that Python's parser
    reads."""
    return raw.lstrip(_BEFORE_AN_OBJECT)[:1] == b"{"


def _boundary(content_type: bytes) -> bytes | None:
    """Return the boundary of a form; None if the body is none. Raises InvalidRequestError for a
    content type that another parser might read otherwise."""
    if b"multipart" not in content_type.lower():
        return None
    found = _FORM.fullmatch(content_type.strip())
    if found is None:
        raise InvalidRequestError(
            f"content-type {content_type[:100].decode('latin-1')!r}: expected"
            " multipart/form-data; boundary=..., with at most charset=utf-8 beside it"
        )
    return found[1] or found[2]


def _read_form(raw: bytes, boundary: bytes) -> UnreadBody:
    """Raises InvalidRequestError for one of which not all fields can be known."""
    place, xargs = None, {}
    for name, start, end in _fields(raw, boundary):
        if name == "model" and place is None and end <= start + _MAX_MODEL_BYTES:
            place = start, end
        elif name == "vllm_xargs":
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


def _fields(raw: bytes, boundary: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield of each part its name, and where its value stands (RFC 7578). A part cannot contain the
    delimiter, so that no file is taken for a field. Raises InvalidRequestError for a form that an
    engine might read otherwise: Starlette, Django and we differ on comments in headers, names given
    twice, and what stands between the parts."""
    delimiter = b"\r\n--" + boundary
    at = len(delimiter) - 2 if raw.startswith(delimiter[2:]) else len(delimiter)
    if not raw.startswith((delimiter[2:], delimiter)):
        raise _unclear(0, "expected the boundary that content-type names, at the body's start")
    for number in range(1, _MAX_PARTS + 1):
        if raw.startswith(b"--", at):
            if raw[at + 2 :].strip(b"\r\n"):
                raise _unclear(number, "expected nothing behind the last boundary")
            return
        head = raw.find(b"\r\n\r\n", at, at + _MAX_PART_HEAD_BYTES)
        if head < 0 or not raw.startswith(b"\r\n", at):
            raise _unclear(
                number, f"expected a head of at most {_MAX_PART_HEAD_BYTES} bytes and an empty line"
            )
        end = raw.find(delimiter, head + 2)
        if end < 0:
            raise _unclear(number, "expected the boundary behind it")
        yield _name(raw[at + 2 : head], number), min(head + 4, end), end
        at = end + len(delimiter)
    raise InvalidRequestError(f"form: over the limit of {_MAX_PARTS} parts")


def _name(head: bytes, number: int) -> str:
    """Return the name of a part with this head."""
    names = []
    for line in head.split(b"\r\n"):
        if not _HEADER_LINE.fullmatch(line):
            raise _unclear(number, "expected header lines of the form Name: value")
        if line[: len(_DISPOSITION)].lower() == _DISPOSITION:
            names.append(_parameters(line, number)[b"name"])
    if len(names) != 1:
        raise _unclear(number, f"{len(names)} lines Content-Disposition; expected one")
    if b"\\" in names[0]:
        raise _unclear(number, "expected a name without escapes")
    return names[0].strip(b'"').decode("utf-8", "replace")


def _parameters(line: bytes, number: int) -> dict[bytes, bytes]:
    """Return the parameters of a line Content-Disposition, each of which stands there once."""
    found = _FORM_DATA.match(line)
    given: list[tuple[bytes, bytes]] = []
    while found is not None and found.end() < len(line):
        found = _PARAMETER.match(line, found.end())
        if found is not None:
            given.append((found[1].lower(), found[2]))
    if found is None or len(dict(given)) != len(given) or b"name" not in dict(given):
        raise _unclear(
            number, 'expected Content-Disposition: form-data; name="..."; filename="..."'
        )
    return dict(given)


def _unclear(number: int, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"form: part {number}: {what}")
