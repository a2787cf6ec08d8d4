"""The rest of a stream that another engine goes on with: how it is asked for, and how its events
follow those that the client has. Pure.

The engine gets the prompt's token ids and those of the answer so far as its prompt, and what the
client allows less what it has had:

field                       the rest's
kv_transfer_params, prompt  the ids, where vLLM reads them (tokens_once.py)
max_tokens, min_tokens      fewer, by the tokens that are there
thinking                    without its budget, once that is not below max_tokens: vLLM, which
                            counts the thought that is there, would refuse it
seed                        another one: with its own, the random numbers of the start would return
all others of `_AS_IT_IS`   the client's

A field that is in neither list makes the stream one that ends with its engine (`why_not`): it is
unknown here, or vLLM would do something else with the whole answer than with its rest. Penalties,
for example, count the tokens of the answer, and not those of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferway.errors import SeamError
from inferway.openai_api.edits import with_last_members, with_prompt, with_prompt_token_ids
from inferway.openai_api.requests import (
    COMPLETION_TOKENS,
    Body,
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
)
from inferway.openai_api.sent_stream import Cut, Stops
from inferway.openai_api.shapes import shape_fields
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import with_data

_TOOLS = frozenset({"tools", "tool_choice", "use_beam_search"})
# Fields that mean the same for the rest as for the whole.
_AS_IT_IS = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "user", "priority"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias"),
        *("allowed_token_ids", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "cache_salt"),
        *("request_id", "session_id", "stream_interval", "length_penalty", "mm_payload"),
        *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("parallel_tool_calls", "media_io_kwargs", "mm_processor_kwargs", "return_mm_kwargs"),
        # of these the prompt is made, which is there
        *("reasoning_effort", "chat_template_kwargs", "documents", "add_generation_prompt"),
        *("continue_final_message", "add_special_tokens"),
        *("system", "stop_sequences", "context_management"),  # of messages
        # vLLM counts what the prompt has of the thought
        "thinking_token_budget",
    }
)
_CHANGED = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "seed", "thinking"})
# Fields that mean the same if they have one of these values, beside null.
_ONLY: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "use_beam_search": (False,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "bad_words": ([],),
    "include_reasoning": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_weight_versions": (False,),  # since vLLM 0.33
    "routed_experts_prompt_start": (0,),
    "watermarking": (False,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}
_FREE_CHOICES = ("auto", "none")  # of tools; in messages, their type
_NO_BUDGET = {"type": "adaptive"}


def why_not_at_once(body: Body, *, is_rest: bool = False) -> str | None:
    """Return the field that keeps the rest of this streamed answer from being had from another
    engine, as far as its parsed body tells, or "kind"; None if there is none: a microsecond, for
    `why_not` to be asked when an engine is lost. `is_rest`: it is itself the rest of an answer, and
    has ids of ours."""
    if not isinstance(body, ChatRequest | CompletionRequest | MessagesRequest):
        return "kind"
    if body.kv_transfer_params is not None and not is_rest:
        return "kv_transfer_params"
    if isinstance(body, MessagesRequest):
        return None
    if body.n not in (None, 1):
        return "n"
    for name in ("return_token_ids", "echo"):
        if getattr(body, name):
            return name
    for name in ("prompt_logprobs", "truncate_prompt_tokens"):
        if getattr(body, name) is not None:
            return name
    shape = shape_fields(body).keys() - _TOOLS
    if shape:
        return min(shape)
    if isinstance(body, ChatRequest):
        return None if body.tool_choice in (None, "auto", "none") else "tool_choice"
    return "logprobs" if body.logprobs is not None else None if len(body.prompts) == 1 else "prompt"


def why_not(fields: Mapping[str, Any]) -> str | None:
    """Return the first field of a body that keeps its answer from being gone on with; None if
    there is none."""
    for name, value in fields.items():
        if value is None or name in _AS_IT_IS or name in _CHANGED:
            continue
        if name in _IF:
            if not _IF[name](value):
                return name
        elif name not in _ONLY or value not in _ONLY[name]:
            return name
    return None


def keeps_text_back(fields: Mapping[str, Any]) -> bool:
    """Return whether the engine may look for calls of tools in the text, and keep back what may be
    the start of one."""
    return bool(fields.get("tools")) and fields.get("tool_choice") != "none"


def _are_free(tools: object) -> bool:
    """Return whether no tool's call is held to the tool's schema while it is generated."""
    if not isinstance(tools, list):
        return False
    if not all(isinstance(tool, dict) for tool in tools):
        return False
    functions = [tool.get("function", tool) for tool in tools]  # a message's has its fields itself
    return all(isinstance(f, dict) and "name" in f and not f.get("strict") for f in functions)


def _is_free(choice: object) -> bool:
    return (choice.get("type") if isinstance(choice, dict) else choice) in _FREE_CHOICES


def _has_no_format(output: object) -> bool:
    """Return whether the output is asked for with an effort alone, which shapes the prompt."""
    return isinstance(output, dict) and output.get("format") is None


# Fields that mean the same if this holds of their value.
_IF: Mapping[str, Callable[[object], bool]] = {
    "tools": _are_free,
    "tool_choice": _is_free,
    "output_config": _has_no_format,
}


def stops_of(fields: Mapping[str, Any]) -> Stops:
    """Return what the stop strings of a body keep back. `why_not` must have found nothing."""
    stop = fields.get("stop") or []
    strings = [stop] if isinstance(stop, str) else stop
    longest = max([len(each) for each in strings if isinstance(each, str)], default=1)
    most = max(0, longest - 1)
    return Stops(back=most) if fields.get("include_stop_str_in_output") else Stops(lag=most)


def rest_body(
    raw: bytes, fields: Mapping[str, Any], cut: Cut, *, is_completion: bool
) -> bytes | None:
    """Return the body that asks for the rest; None if nothing is left, or it cannot be edited.
    `fields`: those of `raw`, of which `why_not` has found nothing."""
    ids = b"[%b]" % (b",".join([cut.prompt_ids, cut.ids]) if cut.ids else cut.prompt_ids)
    changed: dict[str, object] = {}
    for name in ("max_tokens",) if is_completion else ("max_tokens", "max_completion_tokens"):
        given = fields.get(name, COMPLETION_TOKENS if is_completion else None)
        if given is None:
            continue
        if not _is_int(given) or given <= cut.num_ids:
            return None
        changed[name] = given - cut.num_ids
        if _is_budget_over(fields.get("thinking"), given - cut.num_ids):
            changed["thinking"] = _NO_BUDGET
    least, seed = fields.get("min_tokens"), fields.get("seed")
    for value in (least, seed):
        if value is not None and not _is_int(value):
            return None
    if least:
        changed["min_tokens"] = max(0, least - cut.num_ids)
    if seed is not None:
        changed["seed"] = (seed + cut.num_ids) % 2**63
    body = with_prompt(raw, ids) if is_completion else with_prompt_token_ids(raw, ids)
    if body is None or not changed:
        return body
    return with_last_members(body, msgspec.json.encode(changed)[1:-1])


def _is_budget_over(thinking: object, max_tokens: int) -> bool:
    """Return whether thoughts have a budget that vLLM would refuse with so few tokens."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return isinstance(budget, int) and budget >= max_tokens


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class RestEvents:
    """Fed with the whole events of the rest, returns them as they follow those of the start."""

    def __init__(self, cut: Cut, model: str = "", num_cached: int | None = None) -> None:
        """`model`: what the answer names, if not what the first engine did. `num_cached`: tokens of
        the prompt that the first engine had in its cache; None: unknown."""
        first = msgspec.json.decode(cut.first)
        self._head = {name: first[name] for name in ("id", "created", "model") if name in first}
        if model:
            self._head["model"] = model
        self._overlap = cut.overlap
        self._name, self._other = (
            ("reasoning", "content") if cut.is_thought else ("content", "reasoning")
        )
        self._has_thought = cut.has_thought
        self._is_begun = not cut.ids  # it may begin with anything
        self._num_ids = cut.num_ids
        self._num_prompt_ids = cut.num_prompt_ids
        self._num_cached = num_cached

    def feed(self, events: bytes) -> bytes:
        """Raises SeamError if they say something else than the client was sent already."""
        kept = []
        whole, border, rest = events.rpartition(b"\n\n")
        for event in whole.split(border or None):
            if b"{" in event and event.startswith(b"data:"):
                edited = with_data(event, self._edited)
                if edited != b"data:":
                    kept.append(edited)
            elif event:
                kept.append(event)
        return b"".join([event + border for event in kept]) + rest

    def _edited(self, data: bytes) -> bytes:
        try:
            chunk = msgspec.json.decode(data)
        except UNREADABLE:
            return data
        if not isinstance(chunk, dict) or "choices" not in chunk:
            return data
        chunk.update(self._head)
        if chunk.get("usage"):
            self._count(chunk["usage"])
        for choice in chunk["choices"]:
            if self._is_said(choice):
                return b""
        return b" " + msgspec.json.encode(chunk)

    def _is_said(self, choice: dict[str, Any]) -> bool:
        """Return whether the client has all of this, and else leave out what it has."""
        delta = choice.get("delta")
        place, name = (choice, "text") if delta is None else (delta, self._name)
        text = place.get(name)
        ends = choice.get("finish_reason") is not None
        if not self._is_begun and place.get(self._other):
            raise SeamError(f"it begins with {self._other} where the client has {self._name}")
        self._is_begun = self._is_begun or bool(text)
        if delta is not None and "role" in delta and not text and not ends:
            return True
        if not self._overlap:
            return False
        if text is None and not ends:
            raise SeamError("it says no text where the client has text")
        again = (text or "")[: len(self._overlap)]
        if not self._overlap.startswith(again) or (ends and again != self._overlap):
            raise SeamError("it goes on with other text than the client has")
        self._overlap = self._overlap[len(again) :]
        place[name] = (text or "")[len(again) :]
        return not place[name] and not ends

    def _count(self, usage: dict[str, Any]) -> None:
        """Let the usage be that of the whole answer."""
        made = usage.get("completion_tokens", 0) + self._num_ids
        prompt = self._num_prompt_ids
        usage["prompt_tokens"] = prompt
        if "completion_tokens" in usage:
            usage["completion_tokens"] = made
        usage["total_tokens"] = prompt + made
        made_details = usage.get("completion_tokens_details")
        if made_details and self._has_thought:  # how many of the start's there were, nobody knows
            made_details.pop("reasoning_tokens", None)
            usage["completion_tokens_details"] = made_details or None
        details = usage.get("prompt_tokens_details")
        if details and self._num_cached is None:
            usage["prompt_tokens_details"] = None
        elif details:
            usage["prompt_tokens_details"] = {"cached_tokens": self._num_cached}
