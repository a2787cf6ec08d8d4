"""Of a chat with parts that are not text, what comes before the first of them is exact."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stored import templates, tokenizer_json

from inferway.config import ModelSettings
from inferway.errors import InferwayError, RenderError
from inferway.model import Reason, Tokenized
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.conversation import chat_input
from inferway.prompts.media.text_before import KnownText, text_before_media
from inferway.prompts.tokenizer.tokenizer import Tokenizer

MakePrompts = Callable[..., ModelPrompts]

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": "http://x"}}
BY_UUID = {"type": "image_url", "image_url": None, "uuid": "cat-1"}
UNTYPED = {"image_url": "http://x"}
FILE = {"type": "file", "file": {"file_id": "f"}}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": content[0] if content == ("Hi",) else list(content)}


CHATS: dict[str, list[dict[str, Any]]] = {
    "in the middle": [message("user", text("Look at this: "), IMAGE, text("What is it?"))],
    "in front": [message("user", IMAGE, text("What is it?"))],
    "behind": [message("user", text("What is it?\n"), IMAGE)],
    "later": [
        {"role": "system", "content": "Be brief. " * 20},
        message("user", "Hi"),
        {"role": "assistant", "content": "Hello! " * 9},
        message("user", text("Look"), IMAGE),
    ],
    "two": [
        message("user", text("One"), IMAGE),
        {"role": "assistant", "content": "A cat."},
        message("user", text("And"), IMAGE, IMAGE),
    ],
    "audio and video": [message("user", text("Hear"), AUDIO, text("see"), VIDEO)],
    "of a tool": [
        message("user", "Hi"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [text("found"), IMAGE]},
    ],
    "by other names": [message("user", text("Look"), BY_UUID), message("user", UNTYPED, FILE)],
}


def render_with(template: ChatTemplate) -> Callable[[ChatRequest], str]:
    return lambda body: template.render(chat_input(body, template, special_tokens=SPECIAL))


def known(template: ChatTemplate, messages: list[dict[str, Any]]) -> KnownText:
    body = ChatRequest(model="m", messages=messages)
    return text_before_media(body, template.content_format, render_with(template))


# What the engine's processor might make of it: the parts as vLLM gives them to a template, and
# the placeholders it writes into text, in front of it or (--interleave-mm-strings) in place.


def as_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = {"input_audio": "audio", "video_url": "video", "file": "file"}

    def part(each: dict[str, Any]) -> dict[str, Any]:
        return (
            each
            if each.get("type") == "text"
            else {"type": kinds.get(str(each.get("type")), "image")}
        )

    return [
        {**m, "content": list(map(part, m["content"]))}
        if isinstance(m["content"], list)
        else {**m, "content": [text(m["content"])]}
        for m in messages
    ]


def as_text(
    messages: list[dict[str, Any]], placeholder: str, in_front: bool
) -> list[dict[str, Any]]:
    def joined(parts: list[dict[str, Any]]) -> str:
        texts = [p["text"] if p.get("type") == "text" else placeholder for p in parts]
        if in_front:
            texts.sort(key=lambda t: t != placeholder)
        return "\n".join(texts)

    return [
        {**m, "content": joined(m["content"])} if isinstance(m["content"], list) else m
        for m in messages
    ]


def engine_texts(template: ChatTemplate, messages: list[dict[str, Any]]) -> Iterator[str]:
    """What the engine may put before its tokenizer."""
    if template.content_format == "openai":
        chats = [as_parts(messages)]
    else:
        chats = [
            as_text(messages, placeholder, in_front)
            for placeholder in ("<image>", "<|vision_start|><|image_pad|><|vision_end|>", "<|im")
            for in_front in (True, False)
        ]
    for chat in chats:
        yield template.render(ChatInput(chat, variables=SPECIAL))


@dataclass(frozen=True)
class Family:
    id: str
    template: ChatTemplate


@pytest.fixture(scope="module")
def families() -> list[Family]:
    """Real templates that know of images, sound or video."""
    return [
        # not bounded: what is heavy, a helper process renders without bounds, too
        Family(row["id"], ChatTemplate(row["chat_template"], bounded=False))
        for row in templates()
        if re.search("image|audio|video", row["chat_template"])
    ]


# What the templates' own models have as added tokens.
_TOKENS = re.compile(r"<\|?[\w▁/-]+\|?>|\[/?[A-Z_]{3,}\]")


@pytest.fixture(scope="module", params=["gpt-2", "phi-3", "t5-small"])
def tokenizer(
    request: Any,
    renderer: Renderer,
    families: list[Family],
    tmp_path_factory: pytest.TempPathFactory,
) -> Tokenizer:
    found = {token for family in families for token in _TOKENS.findall(family.template.source)}
    added = {
        str(100_000 + i): {"content": token, "special": True, "normalized": False}
        for i, token in enumerate(sorted(found))
    }
    directory = tmp_path_factory.mktemp(request.param)
    (directory / "tokenizer.json").write_text(tokenizer_json(request.param))
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(directory)))
    return renderer.loaded(key).tokenizer


def start(tokenizer: Tokenizer, known: KnownText) -> list[int]:
    text = known.text if known.whole else known.text[: known.end]
    found: list[int] = tokenizer.encode_settled(text, known.end, add_special_tokens=False).tolist()
    return found


@pytest.mark.slow
def test_with_73_real_templates_the_engines_ids_begin_with_ours(
    families: list[Family], tokenizer: Tokenizer
) -> None:
    wrong, right, nothing = [], 0, 0
    for family in families:
        for name, messages in CHATS.items():
            try:
                ours = start(tokenizer, known(family.template, messages))
                engines = list(engine_texts(family.template, messages))
            except InferwayError:
                nothing += 1
                continue
            for whole in engines:
                ids = tokenizer.encode(whole, add_special_tokens=False).tolist()
                if ids[: len(ours)] != ours:
                    wrong.append((family.id, name))
                right += bool(ours)

    assert len(families) >= 73
    assert wrong == []
    assert right > 500
    assert nothing < 120  # templates that refuse such a chat


@pytest.mark.slow
@given(rest=st.text() | st.sampled_from(["|>", "d|>\n", ">", "\n", " ", "[/INST]", "</s>x"]))
def test_whatever_a_part_becomes_in_a_text_template(
    families: list[Family], tokenizer: Tokenizer, rest: str
) -> None:
    for family in families:
        if family.template.content_format == "string":
            found = known(family.template, CHATS["later"])
            ours = start(tokenizer, found)
            whole = (found.text[: found.end] + rest).encode("utf-8", "ignore").decode()
            ids = tokenizer.encode(whole, add_special_tokens=False).tolist()

            assert ids[: len(ours)] == ours


CHATML = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %}<|{{ p.type }}_pad|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
PLAIN = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def known_part(template: ChatTemplate, *messages: dict[str, Any]) -> str:
    found = known(template, list(messages))
    return found.text[: found.end]


def test_a_template_of_parts_shows_the_text_before_the_first_of_them() -> None:
    found = known(CHATML, CHATS["in the middle"])

    assert found.text[: found.end] == "<|im_start|>user\nLook at this: "
    assert found.text[found.end :] == "<|image_pad|>What is it?<|im_end|>\n"
    assert found.whole


def test_a_text_template_shows_the_messages_before_it() -> None:
    found = known(PLAIN, CHATS["later"])

    assert found.text[: found.end].endswith("<|im_start|>user\n")
    assert "Hello" in found.text[: found.end]
    assert not found.whole


@pytest.mark.parametrize("part", [IMAGE, AUDIO, VIDEO, BY_UUID, UNTYPED, FILE])
def test_all_parts_that_are_not_text_are_alike(part: dict[str, Any]) -> None:
    shown = known_part(CHATML, message("user", text("Look"), part))

    assert shown == "<|im_start|>user\nLook"


def test_parts_come_to_a_template_with_the_fields_that_vllm_does_not_know() -> None:
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}"
                            "{% endfor %}")  # fmt: skip
    part = {**IMAGE, "detail": "low", "cache_control": 1}

    found = known(template, [message("user", part)])

    assert found.text == "{'type': 'image', 'detail': 'low', 'cache_control': 1}"


@pytest.mark.parametrize(
    "written", ["<image>", "<|image_pad|>", "[IMG]", "(<audio>./</audio>)", "<|vision_start|>"]
)
def test_text_that_looks_like_a_placeholder_ends_what_is_known(written: str) -> None:
    shown = known_part(CHATML, message("user", text(f"Is {written} an image?"), IMAGE))

    assert "<|im_start|>user\nIs (".startswith(shown)
    assert shown.startswith("<|im_start|>user\nIs ")


def test_text_before_a_part_may_depend_on_it() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{% set "
        "ns.seen = true %}{% endif %}{% endfor %}{% endfor %}x".replace("{% set ns.seen = true %}",
        "I see an image. ")
        + "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    )  # fmt: skip

    assert known_part(template, *CHATS["in the middle"]) == ""


def test_a_template_that_refuses_such_a_chat_leaves_it_to_the_engine() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for p in m.content %}{% if p.type != 'text' %}"
        "{{ raise_exception('no') }}{% endif %}{% endfor %}{% endfor %}"
    )

    with pytest.raises(RenderError) as e:
        known(template, CHATS["later"])

    assert e.value.reason == Reason.MEDIA


@pytest.mark.parametrize(
    "part", [{"type": "prompt_embeds", "data": "AAAA"}, {"prompt_embeds": "AAAA"}]
)
def test_embeddings_set_all_blocks_apart(part: dict[str, Any]) -> None:
    with pytest.raises(RenderError) as e:
        known(CHATML, [message("user", text("Look"), part)])

    assert e.value.reason == Reason.MEDIA


# as the gateway sees it


@pytest.fixture(scope="module")
def prompts(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> MakePrompts:
    """A small multimodal model's; `config` is its config.json, `flags` those of its engine."""
    tokens = ["<|im_start|>", "<|im_end|>", "<|image_pad|>"]
    added = {str(100_000 + i): {"content": t, "special": True} for i, t in enumerate(tokens)}
    settings = {"chat_template": CHATML.source, "added_tokens_decoder": added}

    @cache
    def key(config: str) -> str:
        directory = tmp_path_factory.mktemp("model")
        (directory / "tokenizer.json").write_text(tokenizer_json("gpt-2"))
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        (directory / "config.json").write_text(config)
        request = GetOrCreateTokenizerKeyRequest(str(directory))
        return renderer.get_or_create_tokenizer_key(request)

    def make(config: dict[str, Any] | None = None, **flags: Any) -> ModelPrompts:
        given = ModelSettings(**flags)
        return ModelPrompts(renderer, key(json.dumps(config or {})), 4096, flags=given)

    return make


def tokenize(prompts: ModelPrompts, messages: list[dict[str, Any]], **fields: Any) -> Tokenized:
    return asyncio.run(prompts.tokenize(ChatRequest(model="m", messages=messages, **fields)))


def decoded(prompts: ModelPrompts, tokenized: Tokenized) -> str:
    [ids] = tokenized.token_ids
    return prompts.decode(ids)


def test_a_prompt_is_known_up_to_its_first_image(prompts: Any) -> None:
    made = prompts()

    found = tokenize(made, CHATS["later"])

    assert found.reason is Reason.MEDIA_PREFIX
    assert decoded(made, found).endswith("<|im_end|>\n<|im_start|>user\nLook")


def test_it_has_no_text_to_read(prompts: Any) -> None:
    made = prompts()

    assert made.rendered_text(ChatRequest(model="m", messages=CHATS["later"])) is None
    assert made.rendered_text(ChatRequest(model="m", messages=CHATS["later"][:2])) is not None


def test_up_to_the_message_where_the_engine_is_told_to_give_text(prompts: Any) -> None:
    made = prompts(chat_template_content_format="string")

    assert decoded(made, tokenize(made, CHATS["later"])).endswith("<|im_end|>\n<|im_start|>")


def test_a_chat_of_text_is_known_to_its_end(prompts: Any) -> None:
    assert tokenize(prompts(), [message("user", "Hi")]).reason is Reason.KV_AWARE


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"architectures": ["PaliGemmaForConditionalGeneration"]}, {}),
        ({}, {"truncate_prompt_tokens": 50}),
        ({}, {"truncate_prompt_tokens": -1}),
    ],
    ids=["images in front of the text", "the last tokens", "as many as fit"],
)
def test_where_even_the_first_token_depends_on_an_image_nothing_is_known(
    prompts: Any, config: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(RenderError) as e:
        tokenize(prompts(config), CHATS["later"], **fields)

    assert e.value.reason == Reason.MEDIA


# against the engine's own processors

GOLDEN = Path(__file__).parents[2] / "golden" / "prompts" / "vllm_media.jsonl.gz"


@pytest.mark.slow
def test_44_chats_with_images_begin_as_vllms_own_processors_write_them(
    renderer: Renderer, tmp_path: Path, read_golden: Any
) -> None:
    meta, *rows = read_golden(GOLDEN)
    sources = {row["id"]: row["chat_template"] for row in templates()}
    keys = {}
    for name, model in meta["models"].items():
        directory = tmp_path / name
        directory.mkdir()
        file = json.loads(tokenizer_json(meta["tokenizer"]))
        first = 1 + max(file["model"]["vocab"].values())
        first = max(first, *(1 + token["id"] for token in file["added_tokens"]))
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        file["added_tokens"] += [
            {"id": first + i, "content": token, "special": True, **flags}
            for i, token in enumerate(model["tokens"])
        ]
        (directory / "tokenizer.json").write_text(json.dumps(file))
        config = {"eos_token": "</s>", "chat_template": sources[model["template"]]}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        keys[name] = renderer.get_or_create_tokenizer_key(
            GetOrCreateTokenizerKeyRequest(str(directory))
        )
    unknown = []

    for row in rows:
        settings = ModelSettings(chat_template_content_format="string" if row["flags"] else "auto")
        made = ModelPrompts(renderer, keys[row["model"]], 4096, flags=settings)
        try:
            [ours] = tokenize(made, row["messages"]).token_ids
        except RenderError:
            unknown.append(row["chat"])
            continue

        assert ours.tolist() == row["ids"][: len(ours)], (row["model"], row["flags"], row["chat"])
        assert len(ours) <= row["first_media"]
        assert row["flags"] or len(ours) >= row["first_media"] - 1

    assert len(rows) == 44
    # It is cut where <|image_pad|> is written, and LLaVA's template has no tokens of its own.
    assert unknown == ["a placeholder long before"]
