"""Edits of a body, a client's or an engine's: bytes in, bytes out.

A body is not written anew: each change is spliced into the JSON that came, and every other byte
stays, with its order, spelling, spaces and numbers. Where a name stands twice in an object, the
last one counts, as in the engines' parsers.

The exception is a body that only Python's parser reads (lenient.py: UTF-16, NaN, ...): a change
writes it anew, as ASCII from which that parser reads the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import chain, groupby
from operator import attrgetter
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import numpy as np

from inferway.errors import InvalidRequestError
from inferway.model import MediaName
from inferway.openai_api.lenient import json_bytes, json_object
from inferway.openai_api.long_strings import LONG_BYTES, shortened
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import WholeEvents, with_data

MAX_BYTES = 1 << 20  # a larger body is not worth a report: this runs on the event loop

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NEXT = re.compile(rb"[ \t\r\n]*(.)", re.DOTALL)
# With their quotes: without them `uuid` stands in every second picture of 10 MB, as base64.
_MEDIA_NAMES = re.compile(rb'"(?:uuid|mm_hashes)"')
_OF_NUMBERS = re.compile(rb"\[[ \t\r\n]*[-0-9]")
_NOTHING = msgspec.Raw(b"")


class _Xargs(msgspec.Struct):
    vllm_xargs: msgspec.Raw = _NOTHING


class _Model(msgspec.Struct):
    model: msgspec.Raw = _NOTHING


class _Salt(msgspec.Struct):
    cache_salt: msgspec.Raw = _NOTHING


class _Prompt(msgspec.Struct):
    prompt: msgspec.Raw = _NOTHING


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[msgspec.Raw]] = {}


class _Hashed(msgspec.Struct):
    features: _Features | None = None


class _NamedMessage(msgspec.Struct):
    content: msgspec.Raw = _NOTHING


class _NamedChat(msgspec.Struct):
    messages: list[_NamedMessage]


class _Named(msgspec.Struct):
    """Where vLLM names the model: in the outermost object, in `response` of the Responses API's
    events, and in `message` of Anthropic's first one. Names elsewhere, in metadata, are the
    client's own words."""

    model: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING
    message: msgspec.Raw = _NOTHING


_XARGS = msgspec.json.Decoder(_Xargs)
_MODEL = msgspec.json.Decoder(_Model)
_SALT = msgspec.json.Decoder(_Salt)
_PROMPT = msgspec.json.Decoder(_Prompt)
_HASHED = msgspec.json.Decoder(_Hashed)
_CHAT = msgspec.json.Decoder(_NamedChat)
_TEXT = msgspec.json.Decoder(str | None)
_RAW = msgspec.json.Decoder(msgspec.Raw)
_WORD = msgspec.json.Decoder(str)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_PARTS = frozenset({"content", "content_parts"})  # members that have the parts of a message
_MAX_DEPTH = 12  # no API has parts further in
_NAMED = msgspec.json.Decoder(_Named)

_P = ParamSpec("_P")
_Edited = TypeVar("_Edited", bytes, bytes | None)


def _without_long_strings(
    edit: Callable[Concatenate[bytes, _P], _Edited],
) -> Callable[Concatenate[bytes, _P], _Edited]:
    """Return the edit such that it does not look at each byte of pictures in a large body."""

    @wraps(edit)
    def edited(body: bytes, /, *args: _P.args, **kwargs: _P.kwargs) -> _Edited:
        found = shortened(body) if len(body) > LONG_BYTES else None
        if found is not None:
            made = edit(found.short, *args, **kwargs)
            if made is None:
                return made
            if made is found.short:
                return body
            restored = found.restored(made)
            if restored is not None:
                return restored
        return edit(body, *args, **kwargs)

    return edited


def with_vllm_xarg(body: bytes, name: str, value: str) -> bytes | None:
    """Return `body`, a JSON object, with `name` among its `vllm_xargs`. None if that is impossible:
    the client says something of `name` itself, or its `vllm_xargs` are no object, or the body is
    too large or no JSON object."""
    if len(body) > MAX_BYTES:
        return None
    try:
        given = _XARGS.decode(body).vllm_xargs
        is_taken = bytes(given).startswith(b"{") and name in _OBJECT.decode(given)
    except UNREADABLE:
        return None
    if is_taken:
        return None
    member = msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
    kind = bytes(given)[:1]
    if not kind:
        return _with_member(body, body.index(b"{"), b'"vllm_xargs":{%b}' % member)
    if kind == b"{":
        return _with_member(body, _place(given, body), member)
    return _with_value(body, given, b"{%b}" % member) if kind == b"n" else None


@_without_long_strings
def with_model(body: bytes, model: str) -> bytes:
    """Return `body`, a JSON object, with `model` as its model. It takes 1 µs a kilobyte.
    Raises InvalidRequestError for a large body that must be written anew."""
    try:
        given = _MODEL.decode(body).model
    except UNREADABLE:
        return _written_anew(body, "model", model)
    return _with_field(body, "model", given, model)


@_without_long_strings
def with_cache_salt(body: bytes, salt: Callable[[str | None], str]) -> bytes | None:
    """Return `body`, a JSON object, with the salt that `salt` makes of its `cache_salt` or of None.
    None if `body` is none, or its salt is neither text nor null. It takes 1 µs a kilobyte."""
    try:
        given = _SALT.decode(body).cache_salt
        made = salt(_TEXT.decode(given) if bytes(given) else None)
    except UNREADABLE:
        return _salted_anew(body, salt)
    return _with_field(body, "cache_salt", given, made)


@_without_long_strings
def with_media_uuids(body: bytes, make: Callable[[str], str]) -> bytes:
    """Return `body`, if it is a JSON object, with the result of `make` for each name of a picture,
    sound or video: the `uuid` of a message's part, and the `mm_hashes` of tokens in; `body` itself
    if it has none. Raises InvalidRequestError for a name that is no text, and for a large body that
    would have to be written anew."""
    # To look for two bytes takes 25 times as long as to look for one.
    has_escapes = b"\\" in body and b"\\u" in body
    may_name = has_escapes or _MEDIA_NAMES.search(body)
    if not may_name and json.detect_encoding(body) == "utf-8":
        return body
    try:
        return _with_uuids(body, make)
    except UNREADABLE:
        return _media_uuids_anew(body, make)


def _with_uuids(body: bytes, make: Callable[[str], str]) -> bytes:
    """Raises DecodeError for what is no standard JSON in UTF-8."""
    given = [*_uuids(_RAW.decode(body), 0, is_part=False), *_hashes(body)]
    pieces, end = [], 0
    for value in sorted(given, key=lambda value: _place(value, body)):
        start = _place(value, body)
        pieces += [body[end:start], msgspec.json.encode(make(_uuid_text(value)))]
        end = start + len(bytes(value))
    return b"".join([*pieces, body[end:]]) if pieces else body


def _uuids(value: msgspec.Raw, depth: int, *, is_part: bool) -> Iterator[msgspec.Raw]:
    """Yield the values of `uuid` in the parts of messages, wherever messages stand in `value`."""
    kind = bytes(memoryview(value)[:1])
    if depth > _MAX_DEPTH or kind not in (b"{", b"["):
        return
    if kind == b"[":
        if _OF_NUMBERS.match(value):  # token ids, of which there may be a million
            return
        for each in _ARRAY.decode(value):
            yield from _uuids(each, depth + 1, is_part=is_part)
        return
    for name, member in _OBJECT.decode(value).items():
        if is_part and name == "uuid":
            if bytes(member) != b"null":
                yield member
        else:
            yield from _uuids(member, depth + 1, is_part=name in _PARTS)


def _hashes(body: bytes) -> list[msgspec.Raw]:
    """Return the names of media among token ids; none of features that engines refuse."""
    try:
        features = _HASHED.decode(body).features
    except msgspec.ValidationError:
        return []
    return [] if features is None else [*chain.from_iterable(features.mm_hashes.values())]


def _uuid_text(value: msgspec.Raw) -> str:
    try:
        return _WORD.decode(value)
    except UNREADABLE:
        raise _no_uuid() from None


def _media_uuids_anew(body: bytes, make: Callable[[str], str]) -> bytes:
    try:
        plain = json_bytes(json_object(body))
    except InvalidRequestError:
        return body  # no parser of ours takes it, and parsing says why
    if b'"uuid"' not in plain and b'"mm_hashes"' not in plain:
        return body
    if len(body) > MAX_BYTES:
        raise _too_large(body, "uuid")
    try:
        return _with_uuids(plain, make)
    except UNREADABLE:
        raise InvalidRequestError(
            "body: no standard JSON, in which the 'uuid' of a message's part must be set; send JSON"
            " without NaN and lone surrogates"
        ) from None


@_without_long_strings
def with_media_names(body: bytes, names: Sequence[MediaName]) -> bytes:
    """Return `body`, a chat, with these names as the `uuid` of its parts, and with their URLs;
    `body` itself if it has them. Raises InvalidRequestError for a large body that would have to be
    written anew."""
    try:
        return _with_names(body, names)
    except UNREADABLE:
        if len(body) > MAX_BYTES:
            raise _too_large(body, "uuid") from None
        written = json_object(body)
        for name in names:
            part = written["messages"][name.message]["content"][name.part]
            part["uuid"] = name.uuid
            if name.url is not None:
                part["image_url"] = {**_members(part["image_url"]), "url": name.url}
        return json_bytes(written)


def _with_names(body: bytes, names: Sequence[MediaName]) -> bytes:
    messages = _CHAT.decode(body).messages
    edits: list[tuple[int, int, bytes]] = []  # from, to, new
    for number, of_message in groupby(names, key=attrgetter("message")):
        parts = _ARRAY.decode(messages[number].content)
        for name in of_message:
            edits += _edits_of_part(parts[name.part], name, body)
    pieces, end = [], 0
    for start, until, new in sorted(edits):
        pieces += [body[end:start], new]
        end = until
    return b"".join([*pieces, body[end:]]) if pieces else body


def _edits_of_part(
    part: msgspec.Raw, name: MediaName, body: bytes
) -> Iterator[tuple[int, int, bytes]]:
    members, new = _OBJECT.decode(part), msgspec.json.encode(name.uuid)
    given = members.get("uuid")
    if given is None:
        after = _place(part, body) + 1
        yield after, after, b'"uuid":%b,' % new
    elif bytes(given) != new:
        yield _replaced(given, body, new)
    if name.url is not None:
        url = members["image_url"]
        if bytes(url).startswith(b"{"):
            url = _OBJECT.decode(url)["url"]
        yield _replaced(url, body, b'"%b"' % name.url.encode("ascii"))


def _replaced(value: msgspec.Raw, body: bytes, new: bytes) -> tuple[int, int, bytes]:
    start = _place(value, body)
    return start, start + len(bytes(value)), new


def _members(url: object) -> dict[str, object]:
    return url if isinstance(url, dict) else {}


def _no_uuid() -> InvalidRequestError:
    return InvalidRequestError("uuid of a message's part: expected text or null", param="messages")


def _salted_anew(body: bytes, salt: Callable[[str | None], str]) -> bytes | None:
    """None only where no parser of ours takes the body: none may go on without its salt."""
    if len(body) > MAX_BYTES:
        raise _too_large(body, "cache_salt")
    try:
        given = json_object(body).get("cache_salt")
    except InvalidRequestError:
        return None
    if given is not None and not isinstance(given, str):
        return None
    return _written_anew(body, "cache_salt", salt(given))


def _written_anew(body: bytes, name: str, value: str) -> bytes:
    """Raises InvalidRequestError."""
    if len(body) > MAX_BYTES:
        raise _too_large(body, name)
    return json_bytes({**json_object(body), name: value})


def _too_large(body: bytes, name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"body: {len(body)} bytes, in which {name!r} must be set, and which are no standard JSON;"
        f" expected at most {MAX_BYTES}; send JSON in UTF-8, without NaN and lone surrogates"
    )


def with_prompt_token_ids(body: bytes, ids: bytes) -> bytes | None:
    """Return `body`, a JSON object that has a prompt, with `kv_transfer_params` that are `ids`, a
    JSON array, as `prompt_token_ids`, whatever `body` has there. None if it is not in UTF-8."""
    return with_last_members(body, b'"kv_transfer_params":{"prompt_token_ids":%b}' % ids)


def with_last_members(body: bytes, members: bytes) -> bytes | None:
    """Return `body`, a JSON object that is not empty, with `members` behind its own, so that they
    count whatever it says. Nothing is parsed. None if it is not in UTF-8."""
    if not json.detect_encoding(body).startswith("utf-8"):
        return None
    end = body.rindex(b"}")
    return b"%b,%b%b" % (body[:end], members, body[end:])


def with_prompt(body: bytes, ids: bytes) -> bytes | None:
    """Return `body`, a JSON object, with `ids`, a JSON array, in place of its `prompt`. None if it
    has no prompt, or is no standard JSON. It takes 1 µs a kilobyte."""
    try:
        given = _PROMPT.decode(body).prompt
    except UNREADABLE:
        return None
    return _with_value(body, given, ids) if bytes(given) else None


def with_model_named(answer: bytes, model: str) -> bytes:
    """Return an engine's answer, or one event of it, with `model` where it names another; return it
    as it came if it names none, or is no JSON object."""
    try:
        named = _NAMED.decode(answer)
        for inner in ("response", "message"):
            found = getattr(named, inner)
            if bytes(found).startswith(b"{"):
                answer = _with_text(answer, _MODEL.decode(found).model, model)
                named = _NAMED.decode(answer)
    except UNREADABLE:
        return answer
    return _with_text(answer, named.model, model)


def _with_text(body: bytes, value: msgspec.Raw, text: str) -> bytes:
    if not bytes(value).startswith(b'"'):
        return body
    return _with_value(body, value, msgspec.json.encode(text))


def _with_field(body: bytes, name: str, given: msgspec.Raw, value: str) -> bytes:
    """`given`: what stands there; empty if nothing does."""
    new = msgspec.json.encode(value)
    if bytes(given):
        return _with_value(body, given, new)
    return _with_member(body, body.index(b"{"), b'"%b":%b' % (name.encode(), new))


def _with_value(body: bytes, value: msgspec.Raw, new: bytes) -> bytes:
    start = _place(value, body)
    return b"%b%b%b" % (body[:start], new, body[start + len(bytes(value)) :])


def _with_member(body: bytes, brace: int, member: bytes) -> bytes:
    """As the first of the object that begins at `brace`."""
    after = brace + 1
    following = _NEXT.match(body, after)
    comma = b"" if following is not None and following[1] == b"}" else b","
    return b"%b%b%b%b" % (body[:after], member, comma, body[after:])


def _place(value: msgspec.Raw, body: bytes) -> int:
    """Where in `body` the value stands that was decoded from it: a Raw is a view of the decoded
    buffer, so its address tells."""
    return _address(value) - _address(body)


def _address(buffer: bytes | msgspec.Raw) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


MAX_HELD_BYTES = 8 << 20  # a larger answer in one piece, or event, passes as it is


class ModelRenamer:
    """Renames the model in one answer, whose body is fed in order, in pieces cut anywhere. Whole
    events of a stream pass at once; an answer in one piece (JSON) passes at its end."""

    __slots__ = ("_events", "_held", "_is_json", "_max_held", "_model")

    def __init__(self, model: str, max_held: int = MAX_HELD_BYTES) -> None:
        self._model = model
        self._max_held = max_held
        self._events = WholeEvents(max_held)
        self._held = b""  # of an answer in one piece
        self._is_json: bool | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on with the next piece."""
        held, self._held = self._held + chunk, b""
        if self._is_json is None and (begun := held.lstrip()):
            self._is_json = begun.startswith(b"{")
        if self._is_json is False:
            return self._renamed(self._events.whole(held))
        if len(held) > self._max_held:
            return self._renamed(held)
        self._held = held
        return b""

    def end(self) -> bytes:
        """Return the rest of the answer."""
        return self._renamed(self._held + self._events.rest())

    def _renamed(self, data: bytes) -> bytes:
        if b'"model"' not in data:
            return data
        if self._is_json:
            return with_model_named(data, self._model)
        return with_data(data, lambda event: with_model_named(event, self._model))
