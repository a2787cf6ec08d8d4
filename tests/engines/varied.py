"""More than 300 requests made of the stored conversations (all seven files of
bench/src/inferway_bench/data/chat): every source and language, real templates, tools and their
calls, and each field of a request that shapes its prompt. A request's kind says what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, islice, zip_longest
from typing import Any

from tests import stored
from tests.engines.chats import (
    BY_HAND,
    Message,
    Request,
    as_parts,
    chat,
    completion,
    up_to_assistant,
    up_to_user,
    user,
    with_tool_calls,
)

# Name -> how many characters of a conversation fit: about 1,000 tokens of SmolLM2, which needs
# two or three for a Chinese character. They are all short for the sake of the time.
SOURCES = {
    "oasst1_en_threads": 3000,
    "mt_bench_101": 3000,
    "arena_hard_v01": 3000,
    "kdconv_zh": 350,
    "glaive_toolcall_en_zh": 1200,
    "swe_agent_demos": 9000,
    "tau_bench_airline_gpt4o": 9000,
}

# Real templates by the beginning of their id, with what they are.
TEMPLATES = {
    "3c71df5f": "Granite 3.3",
    "87a2728c": "Qwen3",
    "a4aee8af": "Qwen3.5",
    "19eacf64": "SmolLM3",
    "d9f5f351": "DeepSeek V3.1",
    "8804f445": "GLM 4.6",
    "967ff7e3": "MiniMax M2",
    "2f6c593d": "Kimi K2 Thinking",
    "6502dd0b": "Gemma 4",
    "e4073232": "Llama 3.2 Vision",
    "5b8f31f1": "Mistral Small 3.2",
    "fbcca444": "Seed-OSS",
    "52ae8e50": "Nemotron Nano v2",
    "f10b9667": "Phi-3",
    "86f47704": "LFM2.5-VL",
    "f298c5c3": "Vicuna",
}
WITH_TOOLS = ("Granite 3.3", "Qwen3", "SmolLM3", "DeepSeek V3.1", "GLM 4.6", "MiniMax M2")
WITH_PARTS = ("Gemma 4", "Qwen3.5", "Llama 3.2 Vision", "LFM2.5-VL")

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


conversations = cache(stored.conversations)


@cache
def templates() -> dict[str, str]:
    found = {row["id"][:8]: row["chat_template"] for row in stored.templates()}
    return {name: found[id] for id, name in TEMPLATES.items()}


def chats_of(source: str, every: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each `every`-th conversation of a source that is not too long, cut where it gets too long;
    its first message is not the assistant's."""
    for each in conversations(source)[::every]:
        messages = _opened(_within(with_tool_calls(each["messages"]), SOURCES[source]))
        if any(message["role"] == "user" for message in messages):
            yield each["id"], {**each, "messages": messages}


def _within(messages: Sequence[Message], num_chars: int) -> list[Message]:
    kept: list[Message] = []
    for message in messages:
        num_chars -= len(message.get("content") or "") + len(json.dumps(message.get("tool_calls")))
        if num_chars < 0:
            break
        kept.append(_as_openai(message))
    return kept


def _as_openai(message: Message) -> Message:
    """SWE-agent lists the calls that a message answers; there is one each."""
    if "tool_call_ids" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_call_ids"}
    return {**rest, "tool_call_id": message["tool_call_ids"][0]}


def _opened(messages: list[Message]) -> list[Message]:
    return messages[1:] if messages and messages[0]["role"] == "assistant" else messages


def talks() -> Iterator[tuple[str, list[Message]]]:
    """Conversations of user and assistant only, from all sources that have such, in turn."""
    plain = [chats_of(source, 11) for source in islice(SOURCES, 4)]
    for id, each in filter(None, chain.from_iterable(zip_longest(*plain))):
        yield id, up_to_user(each["messages"])


def plain_chats() -> Iterator[Request]:
    """As people and programs had them, in SmolLM2's own template."""
    for source, number in zip(SOURCES, (18, 18, 18, 18, 18, 12, 8), strict=True):
        every = max(1, len(conversations(source)) // (2 * number))
        for id, each in islice(chats_of(source, every), number):
            yield chat(f"{source}: {id}", up_to_user(each["messages"]))


def template_chats() -> Iterator[Request]:
    """In templates of other models, the last answer left open or to be given."""
    found = talks()
    for name, source in templates().items():
        for id, messages in islice(found, 5):
            yield chat(f"template of {name}: {id}", messages, chat_template=source)


def tool_chats() -> Iterator[Request]:
    """Tools, their calls and answers, in templates that write them."""
    with_tools = (pair for pair in chats_of("glaive_toolcall_en_zh", 7) if pair[1]["tools"])
    for i, (id, each) in enumerate(islice(with_tools, 36)):
        name = WITH_TOOLS[i % len(WITH_TOOLS)]
        fields = {"tools": _tools(each), "chat_template": templates()[name]}
        yield chat(f"tools for {name}: {id}", each["messages"], **fields)
    for source, number in (("tau_bench_airline_gpt4o", 6), ("swe_agent_demos", 3)):
        called = (
            pair
            for pair in chats_of(source, 1)
            if any(message.get("tool_calls") for message in pair[1]["messages"])
        )
        for i, (id, each) in enumerate(islice(called, number)):
            name = WITH_TOOLS[i % len(WITH_TOOLS)]
            yield chat(
                f"calls of {source}: {id}", each["messages"], chat_template=templates()[name]
            )


def _tools(conversation: dict[str, Any]) -> list[Any]:
    return [{"type": "function", "function": function} for function in conversation["tools"]]


def field_chats() -> Iterator[Request]:
    """Each field that shapes a prompt, with changing conversations and templates."""
    found = talks()
    for kind, (number, make) in _FIELDS.items():
        for i in range(number):
            id, messages = next(found)
            while len(messages) < 3:
                id, messages = next(found)
            yield chat(f"{kind}: {id}", **make(i, messages))


Fields = dict[str, Any]


def _with_template(name: str, messages: list[Message], **fields: Any) -> Fields:
    return {"messages": messages, "chat_template": templates()[name], **fields}


def _continued(i: int, messages: list[Message]) -> Fields:
    open_ended: Fields = {"continue_final_message": True, "add_generation_prompt": False}
    said = up_to_assistant(messages)
    if i % 2:
        return {"messages": as_parts(said), **open_ended}
    return _with_template(("Qwen3", "Granite 3.3")[i // 2 % 2], said, **open_ended)


def _thinking(i: int, messages: list[Message]) -> Fields:
    name = ("reasoning", "reasoning_content")[i % 2]
    thought = [
        {**message, name: "They ask,\n so I answer."} if message["role"] == "assistant" else message
        for message in messages
    ]
    return _with_template(("Qwen3", "GLM 4.6", "MiniMax M2")[i % 3], thought)


def _developer(i: int, messages: list[Message]) -> Fields:
    told = {
        "role": "developer",
        "content": ["Be brief.", [{"type": "text", "text": "Rhyme!"}]][i % 2],
    }
    place = (0, 2)[i // 2 % 2]
    asked = [*messages[:place], told, *messages[place:]]
    return _with_template(("Qwen3", "Granite 3.3")[i % 2], asked) if i % 3 else {"messages": asked}


def _tool_choice(i: int, messages: list[Message]) -> Fields:
    tools = _tools(conversations("glaive_toolcall_en_zh")[2])
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    choice = ("none", "auto", "required", named)[i % 4]
    return _with_template(WITH_TOOLS[i % 6], messages[-1:], tools=tools, tool_choice=choice)


def _truncated(i: int, messages: list[Message]) -> Fields:
    fields: Fields = {
        "messages": messages,
        "truncate_prompt_tokens": (7, 40, 100, 5000 // 5)[i % 4],
    }
    if i % 3:
        fields["truncation_side"] = ("left", "right")[i % 2]
    return {**fields, "add_special_tokens": True} if i % 5 == 0 else fields


def _too_long(i: int, messages: list[Message]) -> Fields:
    """More than the context holds, cut to what it does."""
    story = "\n".join(message["content"] for message in messages)
    asked = [user((story * (24_000 // len(story) + 1))[: 24_000 + i])]
    return {
        "messages": asked,
        "truncate_prompt_tokens": -1,
        "truncation_side": ("left", "right")[i % 2],
    }


def _documents(i: int, messages: list[Message]) -> Fields:
    documents = [{"doc_id": "7", "title": f"Part {n}", "text": m["content"][:99]} for n, m in
                 enumerate(messages[:2])]  # fmt: skip
    return _with_template(("Granite 3.3", "SmolLM3")[i % 2], messages[-1:], documents=documents)


def _kwargs(i: int, messages: list[Message]) -> Fields:
    given: Fields = (
        {"enable_thinking": False},
        {"thinking": True, "controls": {"citations": True}},
        {"custom_instructions": "Be kind.", "add_generation_prompt": False},
        {"reasoning_effort": "high", "documents": [{"doc_id": "1", "title": "t", "text": "x"}]},
        {"bos_token": "<B>", "namespace": 1, "tokenize": False, "max_length": 3},
        {"tools": _tools(conversations("glaive_toolcall_en_zh")[2])},
    )[i % 6]
    return _with_template(WITH_TOOLS[i % 6], messages, chat_template_kwargs=given)


_FIELDS: dict[str, tuple[int, Callable[[int, list[Message]], Fields]]] = {
    "parts": (4, lambda _, m: {"messages": as_parts(m)}),
    "parts for parts": (4, lambda i, m: _with_template(WITH_PARTS[i % 4], as_parts(m))),
    "text for parts": (4, lambda i, m: _with_template(WITH_PARTS[i % 4], m)),
    "empty parts": (
        2,
        lambda _, m: {"messages": [*m[:-1], user(["", {"type": "text", "text": "a"}])]},
    ),
    "continue_final_message": (6, _continued),
    "add_generation_prompt": (3, lambda _, m: {"messages": m, "add_generation_prompt": False}),
    "add_special_tokens": (3, lambda _, m: {"messages": m, "add_special_tokens": True}),
    "truncate_prompt_tokens": (10, _truncated),
    "too long": (4, _too_long),
    "developer": (6, _developer),
    "reasoning": (6, _thinking),
    "reasoning_effort": (
        7,
        lambda i, m: _with_template(
            ("SmolLM3", "Qwen3", "Granite 3.3")[i % 3], m, reasoning_effort=EFFORTS[i]
        ),
    ),
    "chat_template_kwargs": (6, _kwargs),
    "documents": (4, _documents),
    "tool_choice": (8, _tool_choice),
    "name": (2, lambda _, m: {"messages": [{**each, "name": "Ada"} for each in m]}),
    "system": (3, lambda i, m: {"messages": [{"role": "system", "content": " ø\n" * i}, *m]}),
    "cache_salt": (2, lambda i, m: {"messages": m, "cache_salt": f"tenant {i}"}),
    "no effect": (
        3,
        lambda i, m: {
            "messages": m,
            **(
                {"response_format": {"type": "json_object"}, "n": 2, "seed": 1},
                {"include_reasoning": False, "logprobs": True, "top_logprobs": 2, "user": "u"},
                {"bad_words": ["x"], "stop": ["y"], "skip_special_tokens": False, "echo": True},
            )[i],
        },
    ),
    "forwarded ids": (
        3,
        lambda i, m: {
            "messages": m,
            "kv_transfer_params": {"prompt_token_ids": list(range(500, 540 + i))},
            "echo": i == 2,
        },
    ),
}


def completions() -> Iterator[Request]:
    """Texts of all sources and token ids as prompts, one or several."""
    for source in SOURCES:
        texts = [each["messages"][-1].get("content") or "-" for _, each in
                 islice(chats_of(source, 1), 5)]  # fmt: skip
        cut = [text[: SOURCES[source] // 2] for text in texts]
        yield completion(f"text: {source}", cut[0])
        yield completion(f"text without special tokens: {source}", cut[1], add_special_tokens=False)
        yield completion(f"texts: {source}", cut[2:])
        yield completion(f"cut text: {source}", cut[3], truncate_prompt_tokens=20)
        yield completion(
            f"text cut right: {source}", cut[4], truncate_prompt_tokens=9, truncation_side="right"
        )
    for i in range(3):
        ids = [(j * 7919 + i) % 49_000 for j in range(50 + i)]
        yield completion(f"ids: {i}", ids)
        yield completion(f"lists of ids: {i}", [ids, ids[:7]])
        yield completion(
            f"cut ids: {i}",
            ids,
            truncate_prompt_tokens=11,
            truncation_side=("left", "right")[i % 2],
        )


KINDS = (
    BY_HAND,
    *SOURCES,
    *(f"template of {name}" for name in TEMPLATES.values()),
    *(f"tools for {name}" for name in WITH_TOOLS),
    *("calls of tau_bench_airline_gpt4o", "calls of swe_agent_demos"),
    *_FIELDS,
    *("text", "text without special tokens", "texts", "cut text", "text cut right"),
    *("ids", "lists of ids", "cut ids"),
)


def varied_requests() -> list[Request]:
    return [
        *plain_chats(),
        *template_chats(),
        *tool_chats(),
        *field_chats(),
        *completions(),
    ]


def spread(requests: Sequence[Request], number: int) -> list[Request]:
    """The first of each kind, the second of each, and so on."""
    by_kind: dict[str, list[Request]] = {}
    for request in requests:
        by_kind.setdefault(kind_of(request), []).append(request)
    turns = chain.from_iterable(zip_longest(*by_kind.values()))
    return list(islice(filter(None, turns), number))


def kind_of(request: Request) -> str:
    return request.name.partition(":")[0]
