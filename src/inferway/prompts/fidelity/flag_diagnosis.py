"""Other ids than the engine's: which of its flags is missing here, and what would mirror it. Pure.

Found by trying: the probes are rendered anew under other flags, one apart at a time; those that
give the engine's ids to the last probe are the engine's. Only if none do is the flag guessed,
from which probes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from inferway.config import ModelSettings
from inferway.model import TokenIds
from inferway.openai_api.requests import Tokenizes
from inferway.prompts.fidelity.probe import (
    PROBES,
    Difference,
    NotRendered,
    Outcome,
    Probe,
    compare,
    our_outcome,
)
from inferway.prompts.served import LocalPrompts


@dataclass(frozen=True, slots=True)
class Cause:
    """The likeliest flag of the engine, and the setting of ours that mirrors it."""

    flag: str
    cure: str


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
    names = ", ".join(differences)
    name, first = next(iter(differences.items()))
    where = "refused by one side" if first.position is None else f"from token {first.position} on"
    return FlagFinding(
        kind=f"{cause.flag}|{cause.cure}|{names}",
        words=(
            f"{len(differences)} of {len(answers)} probes differ ({names}), {name!r} {where}; "
            f"likely flag of the engine: {cause.flag}; fix: {cause.cure}"
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
            return Cause(flag, cure)
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
        return Cause(what, f"give what it was given: --tokenizer {model}=DIR")
    cure = f"give what it was given: --chat-template {model}=FILE"
    if set(differences) == {"tools"}:
        return Cause("--chat-template, in what it makes of tools", cure)
    if set(differences) == {"reasoning"}:
        return Cause("--chat-template, or a vLLM that shows reasoning otherwise", cure)
    if reads_clock:
        cure += "; the template shows the time: do clocks and time zones agree?"
    return Cause("--chat-template", cure)


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
        here = f"refused here ({ours.why})" if isinstance(ours, NotRendered) else "rendered here"
        there = (
            f"refused there ({theirs.why})" if isinstance(theirs, NotRendered) else "rendered there"
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
