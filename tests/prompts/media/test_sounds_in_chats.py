"""A chat with sounds is known to its end, beside pictures too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines.tiny_sound import FAMILIES
from tests.engines.tiny_vision import write_model
from tests.prompts.media.pictures import STRING_TEMPLATE, picture, png, text
from tests.prompts.media.sounds import sound, wav

from inferway.model import Reason, Tokenized
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer

SECOND, SHORT = wav(16000), wav(8820, 44100)  # 25 tokens, and 5
RED = png(200, 150)  # 35
_PARTS = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|IMAGE|>"
    "{% elif c['type'] == 'audio' %}<|AUDIO|>{% elif 'text' in c %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
_PICTURES_FIRST = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<|IMAGE|>"
    "{% endif %}{% endfor %}{% for c in m['content'] %}{% if c['type'] == 'audio' %}<|AUDIO|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def prompts_of(renderer: Renderer, folder: Path, template: str) -> ModelPrompts:
    write_model(FAMILIES["qwen2_5_omni"], folder)
    (folder / "chat_template.jinja").write_text(template)
    request = GetOrCreateTokenizerKeyRequest(str(folder), is_local=True)
    return ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(request))


@pytest.fixture
def prompts(renderer: Renderer, tmp_path: Path) -> ModelPrompts:
    return prompts_of(renderer, tmp_path / "model", _PARTS)


def tokenized(prompts: ModelPrompts, *parts: dict[str, Any], **fields: Any) -> Tokenized:
    messages = [{"role": "user", "content": list(parts)}]
    return asyncio.run(prompts.tokenize(ChatRequest(model="v", messages=messages, **fields)))


def ids(prompts: ModelPrompts, *pieces: str | int) -> list[int]:
    """Return the tokens of texts, and of media: so many of the placeholder before the number."""
    made: list[int] = []
    for piece in pieces:
        made += [made.pop()] * piece if isinstance(piece, int) else prompts.encode(piece).tolist()
    return made


def test_chat_with_sounds_and_a_picture_is_known_to_its_end(prompts: ModelPrompts) -> None:
    data = sound(SHORT)["audio_url"]["url"].partition(",")[2]
    inline = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}

    found = tokenized(prompts, text("Hear "), sound(SECOND), picture(RED), inline)

    assert found.reason is Reason.KV_AWARE
    assert found.token_ids[0].tolist() == ids(
        prompts, "Hear <|AUDIO|>", 25, "<|IMAGE|>", 35, "<|AUDIO|>", 5
    )
    assert [each.length for each in found.media] == [25, 35, 5]
    assert [each.identifier for each in found.media] == [each.uuid for each in found.names]


def test_items_stand_where_the_template_puts_them(renderer: Renderer, tmp_path: Path) -> None:
    prompts = prompts_of(renderer, tmp_path / "model", _PICTURES_FIRST)

    found = tokenized(prompts, sound(SECOND), picture(RED), text("?"))

    assert found.token_ids[0].tolist() == ids(prompts, "<|IMAGE|>", 35, "<|AUDIO|>", 25, "?")
    first, second = found.names
    assert [each.identifier for each in found.media] == [second.uuid, first.uuid]


def test_placeholders_of_each_modality_are_numbered_in_front_of_a_text(
    renderer: Renderer, tmp_path: Path
) -> None:
    prompts = prompts_of(renderer, tmp_path / "model", STRING_TEMPLATE)

    found = tokenized(prompts, sound(SECOND), picture(RED), text("?"), sound(SHORT))

    assert found.reason is Reason.KV_AWARE
    assert found.token_ids[0].tolist() == ids(
        prompts,
        *("<|im_start|>user\nAudio 1: <|audio_bos|><|AUDIO|>", 25, "<|audio_eos|>\n"),
        *("Audio 2: <|audio_bos|><|AUDIO|>", 5, "<|audio_eos|>\n"),
        *("<|vision_start|><|IMAGE|>", 35, "<|vision_end|>\n?<|im_end|>\n<|im_start|>assistant\n"),
    )


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param({"type": "audio_url", "audio_url": {"url": "https://a/b.wav"}}, id="a-url"),
        pytest.param(sound(b"ID3\x04" + bytes(100)), id="another-format"),
        pytest.param(sound(SECOND[:-1]), id="cut"),
        pytest.param(sound(wav(100)), id="refused-by-the-processor"),
    ],
)
def test_chat_is_known_up_to_the_first_sound_that_is_not(
    prompts: ModelPrompts, unknown: dict[str, Any]
) -> None:
    beside = tokenized(prompts, sound(SECOND), picture(RED), text("and "), unknown, picture(RED))
    alone = tokenized(prompts, sound(SECOND), text("and "), unknown, sound(SECOND))

    assert (beside.reason, alone.reason) == (Reason.MEDIA_PREFIX, Reason.MEDIA_PREFIX)
    assert beside.token_ids[0].tolist() == ids(prompts, "<|AUDIO|>", 25, "<|IMAGE|>", 35, "and ")
    assert alone.token_ids[0].tolist() == ids(prompts, "<|AUDIO|>", 25, "and ")


def test_chat_with_a_video_is_known_up_to_its_first_item(prompts: ModelPrompts) -> None:
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}

    found = tokenized(prompts, text("Hear "), sound(SECOND), video)

    assert (found.reason, list(found.media)) == (Reason.MEDIA_PREFIX, [])


def test_rules_that_an_engine_contradicts_are_dropped_for_sounds_too(
    prompts: ModelPrompts,
) -> None:
    prompts.media.drop_rule("an engine counts 40 tokens")

    found = tokenized(prompts, text("Hear "), sound(SECOND))

    assert (found.reason, list(found.media)) == (Reason.MEDIA_PREFIX, [])
