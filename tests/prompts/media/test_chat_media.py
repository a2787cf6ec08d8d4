"""A chat with pictures is known to its end, and each picture has its place and its name."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prompts.media.pictures import (
    STRING_TEMPLATE,
    data_url,
    picture,
    png,
    text,
    vision_model,
)

from inferway.errors import UnknownMediaError
from inferway.model import ContextLengths, Reason, Tokenized
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.version_rules import OLDER_RULES

RED = png(200, 150)  # 35 tokens: tools/vision of vLLM 0.32 has counted them
BLUE = png(333, 77, "blue")  # 36
WAV = data_url(b"RIFF", "audio/wav")


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(smollm2, tmp_path_factory.mktemp("vision") / "model")


def prompts_of(renderer: Renderer, folder: Path) -> ModelPrompts:
    request = GetOrCreateTokenizerKeyRequest(str(folder), is_local=True)
    return ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(request))


@pytest.fixture
def prompts(renderer: Renderer, folder: Path) -> ModelPrompts:
    return prompts_of(renderer, folder)


def tokenized(prompts: ModelPrompts, *messages: dict[str, Any], **fields: Any) -> Tokenized:
    body = ChatRequest(model="v", messages=list(messages), **fields)
    return asyncio.run(prompts.tokenize(body))


def pads(prompts: ModelPrompts, found: Tokenized) -> list[int]:
    """Where the tokens of pictures stand."""
    [pad] = prompts.encode("<|image_pad|>")
    places: list[int] = np.flatnonzero(found.token_ids[0] == pad).tolist()
    return places


def plain(prompts: ModelPrompts, written: str) -> list[int]:
    ids: list[int] = prompts.encode(written).tolist()
    return ids


def names(found: Tokenized | UnknownMediaError) -> list[tuple[int, int, str | None]]:
    return [each[:3] for each in found.names]


def digest(url: str, salt: str = "") -> str:
    return hashlib.sha256(url.encode() + (b"\0" + salt.encode() if salt else b"")).hexdigest()


def test_chat_with_pictures_is_known_to_its_end(prompts: ModelPrompts) -> None:
    found = tokenized(
        prompts,
        user(text("Look: "), picture(RED), text(" and "), picture(BLUE)),
        {"role": "assistant", "content": "Two."},
        user(picture(RED), text("again?")),
    )

    [pad] = prompts.encode("<|image_pad|>")
    expected: list[int] = []
    for piece in (
        *("<|im_start|>user\nLook: <|vision_start|>", 35, "<|vision_end|> and <|vision_start|>"),
        *(
            36,
            "<|vision_end|><|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\n",
        ),
        *("<|vision_start|>", 35, "<|vision_end|>again?<|im_end|>\n<|im_start|>assistant\n"),
    ):
        expected += [pad] * piece if isinstance(piece, int) else plain(prompts, piece)
    assert found.token_ids[0].tolist() == expected
    assert found.reason is Reason.KV_AWARE
    assert [(each.identifier, each.length) for each in found.media] == [
        (digest(RED), 35),
        (digest(BLUE), 36),
        (digest(RED), 35),
    ]
    assert pads(prompts, found) == [
        at for each in found.media for at in range(each.offset, each.offset + each.length)
    ]
    assert names(found) == [
        (0, 1, digest(RED)),
        (0, 3, digest(BLUE)),
        (2, 0, digest(RED)),
    ]


def test_placeholders_stand_in_front_where_the_template_takes_text(
    renderer: Renderer, smollm2: Path, tmp_path: Path
) -> None:
    prompts = prompts_of(renderer, vision_model(smollm2, tmp_path / "model", STRING_TEMPLATE))

    found = tokenized(prompts, user(text("Look"), picture(RED), text("here")))

    [pad] = prompts.encode("<|image_pad|>")
    assert found.token_ids[0].tolist() == [
        *plain(prompts, "<|im_start|>user\n<|vision_start|>"),
        *[pad] * 35,
        *plain(prompts, "<|vision_end|>\nLook\nhere<|im_end|>\n<|im_start|>assistant\n"),
    ]


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(picture("https://example.org/cat.png"), id="behind-a-url"),
        pytest.param(picture("file:///srv/cat.png"), id="a-file"),
        pytest.param(picture(data_url(b"BM no picture")), id="no-picture"),
        pytest.param(picture(None, uuid="never-seen"), id="by-a-name-alone"),
        pytest.param(picture(png(500, 2)), id="refused-by-the-processor"),
    ],
)
def test_chat_is_known_up_to_the_first_picture_that_is_not(
    prompts: ModelPrompts, unknown: dict[str, Any]
) -> None:
    whole = tokenized(prompts, user(text("Look: "), picture(RED), text(" and ")))
    found = tokenized(
        prompts, user(text("Look: "), picture(RED), text(" and "), unknown, picture(BLUE))
    )

    written = "<|im_start|>user\nLook: <|vision_start|><|vision_end|> and <|vision_start|>"
    assert found.reason is Reason.MEDIA_PREFIX
    assert len(found.token_ids[0]) == len(plain(prompts, written)) + 35
    assert [each.identifier for each in found.media] == [digest(RED)]
    shared = len(found.token_ids[0]) - 1
    assert found.token_ids[0][:shared].tolist() == whole.token_ids[0][:shared].tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_processor_kwargs": {"max_pixels": 10_000}},
        {"media_io_kwargs": {"image": {"image_mode": "L"}}},
    ],
)
def test_chat_with_processor_options_is_known_up_to_its_first_picture(
    prompts: ModelPrompts, fields: dict[str, Any]
) -> None:
    found = tokenized(prompts, user(text("Look: "), picture(RED)), **fields)

    assert (found.reason, list(found.media)) == (Reason.MEDIA_PREFIX, [])
    assert names(found) == [(0, 1, digest(RED))]


def test_sound_beside_a_picture_ends_what_is_known(prompts: ModelPrompts) -> None:
    sound = {"type": "audio_url", "audio_url": {"url": WAV}}
    found = tokenized(prompts, user(text("Hear: "), picture(RED), sound))

    assert (found.reason, list(found.media)) == (Reason.MEDIA_PREFIX, [])
    assert names(found) == [(0, 1, digest(RED)), (0, 2, digest(f"audio:{WAV}"))]


def test_prompt_that_is_cut_at_its_start_is_unknown_but_its_pictures_are_named(
    prompts: ModelPrompts,
) -> None:
    with pytest.raises(UnknownMediaError) as refused:
        tokenized(prompts, user(picture(RED)), truncate_prompt_tokens=5)

    assert names(refused.value) == [(0, 0, digest(RED))]


def test_names_are_of_the_bytes_and_of_the_salt_whatever_uuid_the_client_gives(
    prompts: ModelPrompts,
) -> None:
    for url, salt in ((RED, ""), (BLUE, ""), (RED, "s")):
        found = tokenized(
            prompts, user(picture(url, uuid="mine"), text("?")), cache_salt=salt or None
        )

        assert names(found) == [(0, 0, digest(url, salt))]
        assert found.media[0].identifier == digest(url, salt)


def test_a_uuid_alone_stands_for_the_picture_that_came_with_it_under_the_same_salt(
    prompts: ModelPrompts,
) -> None:
    whole = tokenized(prompts, user(picture(RED, uuid="mine")), cache_salt="s")

    again = tokenized(prompts, user(picture(None, uuid="mine")), cache_salt="s")
    other = tokenized(prompts, user(picture(None, uuid="mine")), cache_salt="t")

    assert again.token_ids[0].tolist() == whole.token_ids[0].tolist()
    assert names(again) == names(whole) == [(0, 0, digest(RED, "s"))]
    assert (other.reason, names(other)) == (Reason.MEDIA_PREFIX, [])


def test_clients_text_that_is_a_placeholder_takes_a_picture_as_it_does_in_the_engine(
    prompts: ModelPrompts,
) -> None:
    found = tokenized(prompts, user(text("<|image_pad|> is what? "), picture(RED)))

    assert found.media[0].offset == len(plain(prompts, "<|im_start|>user\n"))
    assert len(pads(prompts, found)) == 36  # the second stays as it is


def test_rule_that_was_contradicted_is_dropped_and_that_is_said_once(
    prompts: ModelPrompts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "inferway")
    prompts.media.drop_rule("an engine counts 40 tokens")
    prompts.media.drop_rule("an engine counts 41 tokens")

    found = tokenized(prompts, user(text("Look: "), picture(RED)))

    assert (found.reason, list(found.media)) == (Reason.MEDIA_PREFIX, [])
    assert [record.getMessage().count("40 tokens") for record in caplog.records] == [1]


def test_large_pictures_leave_the_event_loop(renderer: Renderer, prompts: ModelPrompts) -> None:
    before = renderer.num_off_loop
    large = RED + "A" * 400_000  # behind the end of the file

    tokenized(prompts, user(picture(large)))

    assert renderer.num_off_loop > before


def test_prompt_longer_than_the_context_is_left_to_the_engine(prompts: ModelPrompts) -> None:
    short = prompts.within(ContextLengths(30, 30), OLDER_RULES)

    with pytest.raises(UnknownMediaError):
        tokenized(short, user(picture(RED)))
