"""An item gets the name of the bytes that its engine will find in it, or none."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import pytest
from tests.prompts.media.pictures import data_url, picture, png

from inferway.prompts.media.items import MediaItem, MediaItems

RED = png(200, 150)
BLUE = png(20, 20, "blue")
WAV = data_url(b"RIFF", "audio/wav")
URL = "https://example.org/cat.png"


def items(*parts: dict[str, Any], known: MediaItems | None = None) -> list[MediaItem]:
    return (known or MediaItems()).of([{"role": "user", "content": [*parts]}], None)


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def both(kind: str | None, **members: Any) -> dict[str, Any]:
    """A part that has a red picture, beside what else is given."""
    given = {} if kind is None else {"type": kind}
    return {**given, "image_url": {"url": RED}, **members}


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (picture(RED), RED),
        (picture(RED, uuid="mine"), RED),
        (picture(RED, uuid=""), RED),
        (picture(RED, uuid=5), RED),
        (picture(RED, uuid={"a": 1}), RED),
        ({"type": "image_url", "image_url": RED}, RED),
        ({"type": "input_image", "image_url": RED}, RED),
        ({"image_url": RED}, RED),
        ({"type": "audio_url", "audio_url": {"url": WAV}}, f"audio:{WAV}"),
        ({"type": "video_url", "video_url": {"url": RED}}, f"video:{RED}"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "audio:data:audio/wav;base64,AAAA",
        ),
        # vLLM goes by the first field that it knows once there is a uuid, and by the type before
        (both("audio_url", audio_url={"url": WAV}, uuid="mine"), RED),
        (both("audio_url", audio_url={"url": WAV}), None),
        (both("image_embeds", image_embeds="AAAA"), None),
        (both("prompt_embeds", data="AAAA"), None),
        (both("no-such-type"), None),
        (both(None, audio_url={"url": WAV}), RED),
        ({"type": "image_embeds", "image_embeds": "AAAA", "audio_url": WAV, "uuid": "x"}, None),
        ({"type": 5, "image_url": {"url": RED}}, None),
        ({"type": ["image_url"], "image_url": {"url": RED}}, None),
        ({"type": {}, "image_url": {"url": RED}}, None),
        ({"type": "image_url", "image_url": [RED]}, None),
        ({"type": "image_url", "image_url": {"url": 5}}, None),
        ({"type": "image_url", "image_url": {"url": None}}, None),
        ({"type": "input_audio", "input_audio": {"data": [], "format": "wav"}}, None),
        ({"type": "input_audio", "input_audio": {"data": 5}}, None),
        (picture(f" {RED}"), None),
        (picture(URL, uuid="mine"), None),
        ({}, None),
    ],
)
def test_name_is_of_the_content_that_the_engine_takes(
    part: dict[str, Any], named: str | None
) -> None:
    [item] = items(part)

    assert item.name == (None if named is None else digest(named))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": "AAAA", "uuid": "mine"},
        {"type": "image_url", "image_url": {"url": URL}, "uuid": "mine"},
        {"type": "image_url", "image_url": {"url": 5}, "uuid": "mine"},
    ],
)
def test_known_uuid_with_other_content_does_not_stand_for_what_is_known(
    part: dict[str, Any],
) -> None:
    known = MediaItems()
    items(picture(RED, uuid="mine"), known=known)

    [item] = items(part, known=known)

    assert (item.name, item.size) == (None, None)


@pytest.mark.parametrize("empty", [None, "", {}, {"url": None}, {"url": ""}])
def test_known_uuid_with_empty_content_stands_for_what_is_known(empty: object) -> None:
    known = MediaItems()
    items(picture(RED, uuid="mine"), known=known)

    [item] = items({"type": "image_url", "image_url": empty, "uuid": "mine"}, known=known)

    assert (item.name, item.size) == (digest(RED), (200, 150))


def test_nobody_can_put_other_bytes_under_the_name_of_a_picture() -> None:
    [item] = items(picture(URL, uuid=digest(RED)))

    assert item.name == digest(f"uuid:{digest(RED)}")
    assert item.url == URL


def test_only_pictures_are_to_be_fetched() -> None:
    found = items(picture(URL), {"type": "video_url", "video_url": {"url": URL}})

    assert [item.url for item in found] == [URL, None]


def test_long_uuids_are_not_remembered_by_their_letters() -> None:
    known = MediaItems()
    items(*[picture(BLUE, uuid="x" * 100_000 + str(n)) for n in range(3)], known=known)

    assert sum(sys.getsizeof(key) for key in known.__dict__["_named"]) < 1_000
    [item] = items(picture(None, uuid="x" * 100_000 + "1"), known=known)
    assert item.name == digest(BLUE)
