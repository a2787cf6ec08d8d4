"""Do we render what an engine renders? What is asked of it, and what a difference tells. Pure.

An engine's flags cannot be seen from outside, and some change its prompts: `--chat-template`,
`--chat-template-content-format`, `--default-chat-template-kwargs`, `--tokenizer`,
`--exclude-tools-when-tool-choice-none`. So an engine is asked for the ids of a few chats and
texts of ours (`return_token_ids`, vLLM's own answer is the oracle), each of which goes another
way through templates and tokenizers; and, later, for those of single live prompts.

Which flag it is that makes a difference, likely_flag.py finds out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from inferway.errors import RenderError, RequestError
from inferway.model import Reason, TokenIds
from inferway.openai_api.requests import (
    CHAT,
    COMPLETION,
    CountsMessages,
    CountTokensRequest,
    PromptBody,
    Tokenizes,
    parse_chat,
    parse_completion,
    parse_count_tokens,
)

JsonObject = dict[str, Any]

# Keeps the probes' blocks apart from everybody's prompts: what hits in an engine's cache, and
# what does not, stays as it was.
CACHE_SALT = "inferway-probe"

_WHOLE = (Reason.KV_AWARE, Reason.REMOTE)


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that the probe sends to an engine; `fields` are those that shape the prompt."""

    name: str
    path: str
    fields: JsonObject

    def body(self, model: str) -> JsonObject:
        """Return the body that the engine is sent: it computes one token and returns the prompt's
        ids."""
        return {"model": model, "cache_salt": CACHE_SALT, **self.fields, **_CHEAP}


_CHEAP: JsonObject = {"max_tokens": 1, "stream": False, "return_token_ids": True}

# Whitespace at both ends, in rows and before digits; several scripts; a sequence of joined
# signs; what several models use as special tokens.
_RICH = (
    "  Where's the 2nd  café?\n\n\tΩ привет 北京 👩‍👩‍👧 12345 x=f(y)\n<|im_end|><|im_start|>user"
    "</s><s>[INST]<|eot_id|><bos><end_of_turn><think>\n \n"
)
_SYSTEM = {"role": "system", "content": "You are terse. \n"}
_USER = {"role": "user", "content": _RICH}
_ASSISTANT = {"role": "assistant", "content": " Here:\n\n```py\nx = 1\n```\n"}
_AGAIN = {"role": "user", "content": "And then?"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What is the weather?",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Whose 'weather'?"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "unit": "C"}'},
}

PROBES = (
    Probe("chat", CHAT, {"messages": [_SYSTEM, _USER, _ASSISTANT, _AGAIN]}),
    Probe("no system message", CHAT, {"messages": [_AGAIN]}),
    Probe(
        "parts",
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "One, "}, {"type": "text", "text": "two"}],
                }
            ]
        },
    ),
    Probe(
        "tools",
        CHAT,
        {
            "messages": [
                _AGAIN,
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call12345", "content": '{"degrees": 21}'},
            ],
            "tools": [_TOOL],
            "tool_choice": "none",  # another choice needs flags that not every engine has
        },
    ),
    Probe(
        "reasoning",
        CHAT,
        {
            "messages": [
                _AGAIN,
                {"role": "assistant", "reasoning_content": "Hm.", "content": "Four."},
                _AGAIN,
                {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFive."},
                _AGAIN,
            ]
        },
    ),
    Probe(
        "open end",
        CHAT,
        {
            "messages": [_AGAIN, {"role": "assistant", "content": "Then we"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    Probe("texts", COMPLETION, {"prompt": [_RICH, " x"]}),
)


@dataclass(frozen=True, slots=True)
class NotRendered:
    """No ids, because the request cannot be rendered: `why` is for people."""

    why: str


# The ids of each of a request's prompts, or no.
Outcome = Sequence[TokenIds] | NotRendered


async def our_outcome(prompts: Tokenizes, path: str, body: JsonObject) -> Outcome | None:
    """Return the token ids or the refusal that we make of a request; None if we do not render it,
    or only its beginning."""
    raw = msgspec.json.encode(body)
    try:
        parsed: PromptBody = parse_chat(raw) if path == CHAT else parse_completion(raw)
        tokenized = await prompts.tokenize(parsed)
    except RequestError as e:
        return NotRendered(str(e))
    except RenderError:
        return None
    return tokenized.token_ids if tokenized.reason in _WHOLE else None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two outcomes. `position` is the index of the first different token in
    prompt number `prompt`; None if one side refuses, or has another number of prompts."""

    ours: Outcome
    theirs: Outcome
    prompt: int = 0
    position: int | None = None


def compare(ours: Outcome, theirs: Outcome) -> Difference | None:
    """Return the first difference of two outcomes, or None if they are the same. Two refusals are
    the same whatever their texts."""
    if isinstance(ours, NotRendered) or isinstance(theirs, NotRendered):
        same = isinstance(ours, NotRendered) and isinstance(theirs, NotRendered)
        return None if same else Difference(ours, theirs)
    if len(ours) != len(theirs):
        return Difference(ours, theirs)
    for prompt, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        position = first_difference(a, b)
        if position is not None:
            return Difference(ours, theirs, prompt, position)
    return None


def first_difference(a: TokenIds, b: TokenIds) -> int | None:
    """The place of the first token that is not the same; None if there is none."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    if len(differs):
        return int(differs[0])
    return None if len(a) == len(b) else length


# What a copy of a live request must not ask for: more answers, a longer or another one, a place
# in other systems. All else stays, known to us or not: it may shape the prompt.
_DROPPED = {
    *("allowed_token_ids", "bad_words", "best_of", "echo", "frequency_penalty", "ignore_eos"),
    *("include_reasoning", "include_stop_str_in_output", "length_penalty", "logit_bias"),
    *("logprob_token_ids", "logprobs", "max_completion_tokens", "metadata", "min_p", "min_tokens"),
    *("n", "parallel_tool_calls", "presence_penalty", "priority", "prompt_logprobs"),
    *("repetition_detection", "repetition_penalty", "request_id", "response_format"),
    *("return_prompt_text", "return_tokens_as_token_ids", "seed", "service_tier", "session_id"),
    *("skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids", "store"),
    *("stream_interval", "stream_options", "structured_outputs", "temperature"),
    *("thinking_token_budget", "top_k", "top_logprobs", "top_p", "use_beam_search", "user"),
    *("vllm_xargs", "watermarking"),
    *("guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json"),
    *("guided_regex", "guided_whitespace_pattern"),  # older engines
}

# Prompts that another engine's answer, or an upload, is part of; and those of templates that
# clients bring: one that draws lots, or shows the time, would have every engine look unfaithful.
_NOT_COPIED = ("kv_transfer_params", "ec_transfer_params", "prompt_embeds", "chat_template")

# Fields that shape a prompt, and so may be what differs; the log names those a request has.
_SHAPING = (
    *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
    *("continue_final_message", "documents", "reasoning_effort", "suffix", "tools"),
    *("truncate_prompt_tokens", "truncation_side"),
)


def live_copy(fields: JsonObject) -> JsonObject | None:
    """A live request's body that asks for the ids of the same prompt and for one token; None
    for a request that such a copy would not tell anything of."""
    arguments = fields.get("chat_template_kwargs") or {}
    if any(of.get(name) is not None for of in (fields, arguments) for name in _NOT_COPIED):
        return None
    if (fields.get("truncate_prompt_tokens") or 0) < 0:  # the answer's length has a say in it
        return None
    kept = {name: value for name, value in fields.items() if name not in _DROPPED}
    if kept.get("tool_choice") not in (None, "none", "auto"):
        kept["tool_choice"] = "auto"  # as to the prompt the same, but nothing to enforce
    return {**kept, **_CHEAP}


def live_words(path: str, fields: JsonObject, difference: Difference) -> str:
    """A live difference, without a word of the prompt: place, ids, lengths, and which fields
    the request has."""
    what = "a chat" if path == CHAT else "a text"
    shaping = [name for name in _SHAPING if fields.get(name) is not None]
    having = f" with {', '.join(shaping)}" if shaping else ""
    ours, theirs = difference.ours, difference.theirs
    if (
        isinstance(ours, NotRendered)
        or isinstance(theirs, NotRendered)
        or difference.position is None
    ):
        return f"{what}{having}, which one side renders otherwise altogether"
    a, b = ours[difference.prompt], theirs[difference.prompt]
    at = difference.position
    return (
        f"{what}{having}: token {at} is {_id_at(a, at)} here and {_id_at(b, at)} there"
        f" ({len(a)} and {len(b)} tokens)"
    )


def live_kind(path: str, fields: JsonObject) -> str:
    """Equal for live requests whose differences need only be told once."""
    return "|".join([path, *(name for name in _SHAPING if fields.get(name) is not None)])


def _id_at(ids: TokenIds, position: int) -> str:
    return str(int(ids[position])) if position < len(ids) else "missing"


# Do we make of messages the chat that an engine makes of them? No engine tells the ids of their
# prompts, but vLLM counts their tokens. Versions of vLLM differ in what they make of a block, and
# an engine may have been started with another effort for no thinking
# (--anthropic-disabled-thinking-effort). So each of `BODIES` has parts whose texts would be missed,
# or stand twice, in another count.

_BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=0f1e2;"}
_TERSE = {"type": "text", "text": "You are terse, and read files before you change them."}
_REMINDER = {"role": "system", "content": "One file has been opened since: it is b.py."}
_ASKED = {"role": "user", "content": [{"type": "text", "text": "Why does a.py fail?"}]}
_READS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "The file must be read first.", "signature": "c2ln"},
        {"type": "text", "text": "I read it."},
        {"type": "tool_use", "id": "toolu_01ab", "name": "read", "input": {"path": "a.py"}},
    ],
}
_FILE = {
    "role": "user",
    "content": [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_01ab",
            "content": [{"type": "text", "text": "def f():"}, {"type": "text", "text": "  1/0"}],
        },
        {"type": "text", "text": "Be quick."},
    ],
}
_READ = {
    "name": "read",
    "description": "Reads one file of the project.",
    "input_schema": {"properties": {"path": {"type": "string"}}, "required": ["path"]},
}

BODIES: tuple[JsonObject, ...] = (
    {"messages": [_ASKED], "system": [_BILLING, _TERSE]},
    {
        "messages": [_ASKED, _READS, _FILE],
        "system": [_TERSE],
        "tools": [_READ],
        "tool_choice": {"type": "none"},  # another choice needs flags that not every engine has
    },
    {"messages": [_ASKED, _REMINDER, _ASKED], "system": [_TERSE]},
    {"messages": [_ASKED], "thinking": {"type": "disabled"}},
    {"messages": [_ASKED], "output_config": {"effort": "high"}},
)


async def count(prompts: CountsMessages, body: CountTokensRequest) -> int | None:
    """Return how many tokens the prompt has; None if it is not known to its end, or cannot be
    had."""
    try:
        tokenized = await prompts.tokenize(await prompts.chat_of(body))
    except (RequestError, RenderError):
        return None
    return len(tokenized.token_ids[0]) if tokenized.reason is Reason.KV_AWARE else None


async def our_count(prompts: CountsMessages, body: Mapping[str, Any]) -> int | None:
    """The same for a body that is sent to an engine."""
    return await count(prompts, parse_count_tokens(msgspec.json.encode(body)))
