"""A body with long data URLs is read and edited as if each byte of it had been looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

import pytest

from inferway.errors import InvalidRequestError
from inferway.model import MediaName
from inferway.openai_api.edits import (
    with_cache_salt,
    with_media_names,
    with_media_uuids,
    with_model,
)
from inferway.openai_api.long_strings import AFTER_TEXT, LONG_BYTES, shortened
from inferway.openai_api.requests import parse_chat
from inferway_structured.decoding import UNREADABLE

LONG = "data:image/png;base64," + "QUJD" * (LONG_BYTES // 4)
OTHER = LONG[:-4] + "REVG"
TEXT = "x" * (LONG_BYTES + 1)


def part(url: object = LONG, **more: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def chat(*parts: object, **fields: object) -> bytes:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Look"}, *parts]}]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


BODIES: Mapping[str, bytes] = {
    "one": chat(part()),
    "two": chat(part(), part(OTHER)),
    "the same twice": chat(part(), part()),
    "a picture without an object": chat({"type": "image_url", "image_url": LONG}),
    "a name of its own": chat(part(uuid="u")),
    "a name that is null": chat(part(uuid=None), part(OTHER, uuid="v")),
    "a name as long as a picture": chat(part("http://a/b", uuid=LONG)),
    "two names of which the last counts": chat(part()).replace(
        b'"type": "image_url"', b'"uuid": "%b", "uuid": "u"' % OTHER.encode()
    ),
    "a salt as long as a picture": chat(part(), cache_salt=LONG),
    "a salt": chat(part(), cache_salt="s"),
    "a model as long as a picture": chat(part(), model=LONG),
    "a field as long as a picture": chat(part(), chat_template=LONG),
    "a long key": chat(part(), metadata={LONG: 1}),
    "a picture in metadata": chat(part(), metadata={"a": [LONG]}),
    "a picture in a field of no meaning": chat(part(), unknown=LONG),
    "long text": chat({"type": "text", "text": TEXT}),
    "a picture in text": chat({"type": "text", "text": f'he said "{LONG}" and "{LONG}'}),
    "an escape in it": chat(part(LONG + "\n")),
    "an escaped letter in it": chat(part()).replace(b"data:", b"d\\u0061ta:"),
    "a letter beyond ASCII": json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [part("a"), part(LONG + "ä")]}]},
        ensure_ascii=False,
    ).encode(),
    "a control character": chat(part()).replace(b"QUJDQUJD", b"QUJD\x01UJD", 1),
    "a broken letter": chat(part()).replace(b"QUJDQUJD", b"QUJD\xffUJD", 1),
    "no end": chat(part())[:-200],
    "no end of the picture": chat(part())[: LONG_BYTES // 2],
    "a picture outside a string": b'{"a": 1, data:' + b"x" * LONG_BYTES + b'": 2}',
    "another encoding": chat(part()).decode().encode("utf-16"),
    "NaN": chat(part(), temperature=float("nan")),
    "no object": json.dumps([LONG]).encode(),
}


def outcome(run: Callable[[], object]) -> object:
    """What comes of it: for a message, its kind alone, since it may say a length."""
    try:
        return run()
    except InvalidRequestError as e:
        return type(e), e.param
    except (*UNREADABLE, KeyError) as e:  # KeyError: no picture has that name
        return type(e)


def renamed(given: str) -> str:
    return f"<{len(given)}{given[-8:]}>"


EDITS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "media uuids": (with_media_uuids, (renamed,)),
    "media names": (with_media_names, ([MediaName(0, 1, "new", 7)],)),
    "media fetched": (with_media_names, ([MediaName(0, 1, "new", 7, "data:,x")],)),
    "cache salt": (with_cache_salt, (lambda given: renamed(given or ""),)),
    "model": (with_model, ("another",)),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_gives_the_same_bytes(edit: str, body: bytes) -> None:
    function, arguments = EDITS[edit]
    plain: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]

    ours = outcome(lambda: function(body, *arguments))

    assert ours == outcome(lambda: plain(body, *arguments))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_chat_is_read_as_python_reads_it(body: bytes) -> None:
    try:
        fields = json.loads(body)
        told = fields["messages"], fields["model"]
    except (ValueError, TypeError, KeyError):
        told = None

    found = outcome(lambda: parse_chat(body))

    assert isinstance(found, tuple) or (found.messages, found.model) == told  # type: ignore[attr-defined]
    assert isinstance(found, tuple) == (told is None)


@pytest.mark.parametrize("name", ["one", "two", "the same twice", "a name of its own"])
def test_plain_pictures_are_left_out(name: str) -> None:
    found = shortened(BODIES[name])

    assert found is not None
    assert len(found.short) < 600
    assert found.restored(found.short) == BODIES[name]


@pytest.mark.parametrize(
    "name",
    ["long text", "an escape in it", "an escaped letter in it", "a letter beyond ASCII",
     "a control character", "a broken letter", "no end of the picture", "another encoding"],
)  # fmt: skip
def test_what_json_reads_otherwise_stays(name: str) -> None:
    assert shortened(BODIES[name]) is None


def test_a_body_of_many_short_strings_is_not_searched_to_its_end() -> None:
    many = [{"type": "text", "text": "a"}] * 10_000

    assert shortened(chat(*many, part())) is None


def test_the_length_of_each_text_is_told_once_it_is_made() -> None:
    told: list[int] = []

    def parse() -> None:
        AFTER_TEXT.set(told.append)
        parse_chat(BODIES["two"])

    copy_context().run(parse)

    assert told == [len(LONG), len(OTHER)]
