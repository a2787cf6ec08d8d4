"""Do we render what an engine renders? What is asked of it, and what a difference tells. Pure.

An engine's flags cannot be seen from outside, and some change its prompts: `--chat-template`,
`--chat-template-content-format`, `--default-chat-template-kwargs`, `--tokenizer`,
`--exclude-tools-when-tool-choice-none`. So an engine is asked for the ids of a few chats and
texts of ours (`return_token_ids`, vLLM's own answer is the oracle), each of which goes another
way through templates and tokenizers; and, later, for those of single live prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferway.config import ModelSettings
from inferway.errors import RenderError, RequestError
from inferway.model import Reason, TokenIds
from inferway.openai_api.read_body import CountsMessages, Tokenizes
from inferway.openai_api.requests import (
    CHAT,
    CountTokensRequest,
    PromptBody,
    parse_chat,
    parse_completion,
    parse_count_tokens,
)
from inferway.prompts.served import LocalPrompts

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


class _Probes(msgspec.Struct):
    """probes.json. Its texts have whitespace at both ends, in rows and before digits; several
    scripts; a sequence of joined signs; what several models use as special tokens. Choices of tools
    other than "none" need flags that not every engine has."""

    probes: tuple[Probe, ...]
    messages: tuple[JsonObject, ...]


_READ = msgspec.json.decode(Path(__file__).with_name("probes.json").read_bytes(), type=_Probes)
PROBES = _READ.probes


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
    """Return a live request's body that asks for the ids of the same prompt and for one token;
    None for a request of which such a copy would prove nothing."""
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
    """Return a live difference in words, without text of the prompt: place, ids, lengths, and
    which fields the request has."""
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
    """Return a key that is equal for live requests whose differences are logged only once."""
    return "|".join([path, *(name for name in _SHAPING if fields.get(name) is not None)])


def _id_at(ids: TokenIds, position: int) -> str:
    return str(int(ids[position])) if position < len(ids) else "missing"


# Do we make of messages the chat that an engine makes of them? No engine tells the ids of their
# prompts, but vLLM counts their tokens. Versions of vLLM differ in what they make of a block, and
# an engine may have been started with another effort for no thinking
# (--anthropic-disabled-thinking-effort). So each of these has parts whose texts would be missed, or
# stand twice, in another count.
BODIES = _READ.messages


async def count(prompts: CountsMessages, body: CountTokensRequest) -> int | None:
    """Return how many tokens the prompt has; None if it is not known to its end, or cannot be
    had."""
    try:
        tokenized = await prompts.tokenize(await prompts.chat_of(body))
    except (RequestError, RenderError):
        return None
    return len(tokenized.token_ids[0]) if tokenized.reason is Reason.KV_AWARE else None


async def our_count(prompts: CountsMessages, body: Mapping[str, Any]) -> int | None:
    """Return what `count` does, for a body that is sent to an engine."""
    return await count(prompts, parse_count_tokens(msgspec.json.encode(body)))


# Which of the engine's flags is missing here, and what would mirror it, is found by trying: the
# probes are rendered anew under other flags, one apart at a time; those that give the engine's ids
# to the last probe are the engine's. Only if none do is the flag guessed, from which probes differ.


# The likeliest flag of the engine, and the setting of ours that mirrors it.
Cause = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """Some probes gave other ids. `words` has no text of a prompt, `evidence` has."""

    kind: str  # the same for the same cause, seen in the same probes
    words: str
    evidence: str


async def find(
    model: str,
    prompts: LocalPrompts | None,
    answers: Mapping[str, Outcome],
    differences: Mapping[str, Difference],
) -> FlagFinding:
    """Return what differs from the engine and the most likely cause. `answers` are the engine's
    outcomes by probe, `differences` those of them that are not ours, by probe: at least one."""
    cause = await _proven_cause(model, prompts, answers, differences) if prompts else None
    if cause is None:
        cause = _guess(model, differences, reads_clock=prompts is not None and prompts.reads_clock)
    flag, cure = cause
    names = ", ".join(differences)
    name, first = next(iter(differences.items()))
    where = "refused by one side" if first.position is None else f"from token {first.position} on"
    return FlagFinding(
        kind=f"{flag}|{cure}|{names}",
        words=(
            f"{len(differences)} of {len(answers)} probes differ ({names}), {name!r} {where}; "
            f"likely flag of the engine: {flag}; fix: {cure}"
        ),
        evidence=_evidence(name, first, prompts),
    )


async def _proven_cause(
    model: str,
    prompts: LocalPrompts,
    answers: Mapping[str, Outcome],
    differences: Mapping[str, Difference],
) -> Cause | None:
    """The first flag under which every probe gives the engine's ids."""
    order = sorted(PROBES, key=lambda probe: probe.name not in differences)
    probes = [probe for probe in order if probe.name in answers]
    for flag, cure, alternative in prompts.alternatives(model):
        if await _all_agree(alternative, probes, answers):
            return flag, cure
    return None


async def _all_agree(
    prompts: Tokenizes, probes: Iterable[Probe], answers: Mapping[str, Outcome]
) -> bool:
    for probe in probes:
        ours = await our_outcome(prompts, probe.path, probe.body("-"))
        if ours is None or compare(ours, answers[probe.name]) is not None:
            return False
    return True


def _guess(model: str, differences: Mapping[str, Difference], *, reads_clock: bool) -> Cause:
    texts = differences.get("texts")
    if texts is not None:
        if _differ_in_edges(texts):
            what = "--tokenizer, whose files add other special tokens around a text"
        else:
            what = "--tokenizer"
        return (what, f"give what it was given: --tokenizer {model}=DIR")
    cure = f"give what it was given: --chat-template {model}=FILE"
    if set(differences) == {"tools"}:
        return ("--chat-template, in what it makes of tools", cure)
    if set(differences) == {"reasoning"}:
        return ("--chat-template, or a vLLM that shows reasoning otherwise", cure)
    if reads_clock:
        cure += "; the template shows the time: do clocks and time zones agree?"
    return ("--chat-template", cure)


def _differ_in_edges(difference: Difference) -> bool:
    """Return whether one side's ids are the other's with one more at either end."""
    if isinstance(difference.ours, NotRendered) or isinstance(difference.theirs, NotRendered):
        return False
    return all(
        len(short) + 1 == len(long)
        and (np.array_equal(long[1:], short) or np.array_equal(long[:-1], short))
        for short, long in (
            sorted(pair, key=len) for pair in zip(difference.ours, difference.theirs, strict=False)
        )
    )


_TOKENS_SHOWN = 8


def _evidence(name: str, difference: Difference, prompts: LocalPrompts | None) -> str:
    """Texts of a probe may be shown: they are ours, and the model's template."""
    ours, theirs = difference.ours, difference.theirs
    if isinstance(ours, NotRendered) or isinstance(theirs, NotRendered):
        here, there = (
            f"refused {where} ({made.why})"
            if isinstance(made, NotRendered)
            else f"rendered {where}"
            for made, where in ((ours, "here"), (theirs, "there"))
        )
        return f"{name!r} is {here} and {there}"
    if difference.position is None:
        return f"{name!r} has {len(ours)} prompts here and {len(theirs)} there"
    start, end = difference.position, difference.position + _TOKENS_SHOWN
    a, b = ours[difference.prompt], theirs[difference.prompt]
    before = a[max(0, start - _TOKENS_SHOWN) : start]
    return (
        f"{name!r}, token {start}, after {_shown(before, prompts)}: "
        f"here {_shown(a[start:end], prompts)}, there {_shown(b[start:end], prompts)}"
    )


def _shown(ids: TokenIds, prompts: LocalPrompts | None) -> str:
    if not len(ids):
        return "nothing"
    text = "" if prompts is None else f"{prompts.decode(ids)!r} "
    return f"{text}{ids.tolist()}"


def other_flags(
    model: str, flags: ModelSettings, variables: Iterable[str], template_names: Iterable[str]
) -> Iterator[tuple[str, str, ModelSettings]]:
    """Yield flags that an engine may have been started with instead of `flags`: their name, how to
    mirror them, and the settings. `variables`: what the template reads of its keyword arguments."""
    for name in flags.__struct_fields__:
        default = getattr(ModelSettings(), name)
        if getattr(flags, name) != default and name != "tokenizer":
            settings = msgspec.structs.replace(flags, **{name: default})
            flag = f"none; the engine was started without {_ENGINE_FLAGS[name]}"
            yield flag, f"remove {name} of models: {model}", settings
    for name, value in _others(flags, variables, template_names):
        if getattr(flags, name) != value:
            mirror = msgspec.json.encode({model: {name: value}}).decode()
            settings = msgspec.structs.replace(flags, **{name: value})
            yield _ENGINE_FLAGS[name], f"set models: {mirror}", settings


_ENGINE_FLAGS = {
    "chat_template": "--chat-template",
    "chat_template_content_format": "--chat-template-content-format",
    "chat_template_kwargs": "--default-chat-template-kwargs",
    "exclude_tools_when_tool_choice_none": "--exclude-tools-when-tool-choice-none",
    "reasoning_effort_map": "--reasoning-effort-map",
}

# Always given to a template, by the request or by the tokenizer.
_NOT_KWARGS = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}

_EFFORTS = ("none", "minimal", "low", "medium", "high", "max")


def _others(
    flags: ModelSettings, variables: Iterable[str], template_names: Iterable[str]
) -> Iterator[tuple[str, Any]]:
    for content_format in ("string", "openai"):
        yield "chat_template_content_format", content_format
    yield "exclude_tools_when_tool_choice_none", True
    for variable in sorted(set(variables) - _NOT_KWARGS):
        if variable.endswith("_token"):
            continue
        for value in _EFFORTS if "effort" in variable else (False, True):
            yield "chat_template_kwargs", {**flags.chat_template_kwargs, variable: value}
    for name in sorted(set(template_names) - {"default"}):
        yield "chat_template", name
