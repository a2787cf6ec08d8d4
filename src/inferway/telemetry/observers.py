"""Extensions that look at each request that was decided by its prompt: for the publisher's
subscribers, the alarm, the resolver of orphans, and the probe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import xxhash

from inferway.config import ServeSettings
from inferway.extension import Extension
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import LivePrompt, Prober
from inferway.fleet.silent_zero import SilentZeroAlarm
from inferway.fleet.stream_figures import StreamEvidence
from inferway.model import Candidates, Endpoint, Headers, Prompt, Reason, Target
from inferway.openai_api.requests import standard_fields
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.telemetry.publisher import Publisher, topic_name

log = logging.getLogger("inferway.alarm")


def pod_scores(candidates: Candidates) -> dict[str, float]:
    """endpoint -> blocks held (seed 003's word), each weighed by the tier it lies in."""
    return {
        e.name: pod_score(value)
        for e, value in zip(candidates.endpoints, candidates.weighted_matched_blocks, strict=True)
    }


def pod_score(value: float) -> float:
    """Return whole blocks as a whole number, as the seed shows them."""
    return int(value) if float(value).is_integer() else round(float(value), 3)


# Variables of models' own templates: other names may be a client's words.
_NAMES = frozenset(
    {
        *("date_string", "enable_thinking", "thinking", "thinking_budget", "thinking_mode"),
        *("reasoning_effort", "builtin_tools", "tools_in_user_message", "xml_tools"),
        *("python_tools", "keep_thinking", "preserve_thinking", "clear_thinking"),
        *("add_default_system_prompt", "add_vision_id", "model_identity", "custom_tools"),
    }
)


class DecisionPublisher(Extension):
    """Publishes kv.{model} and kv.chat.{model}; text only when asked for."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        with_text: bool,
    ) -> None:
        self._publisher = publisher
        self._with_text = with_text

    def on_request(self, routed: Routed, seconds: float) -> None:
        model, body = routed.model.name, routed.request.body
        message = self._common(routed)
        chat = body.chat
        if chat is None:
            if self._with_text and body.tells_ids:
                message["prompt"] = body.prompt
            self._publisher.publish(f"kv.{topic_name(model)}", message)
            return
        message["processing_time_ms"] = round(seconds * 1000, 3)
        message["template_vars"] = sorted(
            {"messages", "add_generation_prompt"}
            | {
                name
                for name in chat.chat_template_kwargs or {}
                if self._with_text or name in _NAMES
            }
            | {name for name in ("tools", "documents") if getattr(chat, name)}
        )
        if self._with_text:
            message["messages"] = chat.messages
            local = routed.model.prompts.local
            message["rendered_template"] = None if local is None else local.rendered_text(chat)
        self._publisher.publish(f"kv.chat.{topic_name(model)}", message)

    def _common(self, routed: Routed) -> dict[str, Any]:
        target = routed.decision.targets[0]
        prompts = _chosen_prompts(routed)
        digest = xxhash.xxh3_64()
        for prompt in prompts:
            digest.update(prompt.token_ids.tobytes())
        return {
            "id": routed.request.request_id,
            "model": routed.model.name,
            "timestamp": time.time(),
            "prompt_hash": digest.hexdigest(),
            "prompt_tokens": sum(len(prompt.token_ids) for prompt in prompts),
            "block_keys": [key for prompt in prompts for key in prompt.block_keys],
            "engine": target.endpoint.engine,
            "matched_blocks": target.matched_blocks,
            "pod_scores": pod_scores(routed.candidates),
        }


class AlarmObserver(Extension):
    """Feeds the silent-zero alarm, one per model, and logs what it says."""

    def __init__(self, evidence: Callable[[str], Sequence[StreamEvidence]]) -> None:
        self._evidence = evidence
        self.by_model: dict[str, SilentZeroAlarm] = {}

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        if not routed.prompts:
            return  # by load only: the decision's own reason says why
        model = routed.model.name
        alarm = self.by_model.get(model)
        if alarm is None:
            alarm = self.by_model[model] = SilentZeroAlarm(model)
        # Prompts on their way count for scheduling; what engines told is what is asked here.
        if any(item.found.blocks for items in routed.prompts.values() for item in items):
            alarm.matched()
            return
        if not routed.decision.reason.is_whole:
            return  # what is known may be too short to be found
        if not all(item.is_read for items in routed.prompts.values() for item in items):
            return  # its engine does not look in its cache
        prompts = _chosen_prompts(routed)
        first = next((prompt for prompt in prompts if prompt.block_keys), None)
        warning = alarm.observe(
            prompt_blocks=sum(len(prompt.block_keys) for prompt in prompts),
            first_key=first.block_keys[0] if first else None,
            first_tokens=first.token_ids if first else None,
            streams=lambda: self._evidence(model),
        )
        if warning is not None:
            log.warning("%s", warning)


class WantsPrompts(Protocol):
    """Finds the places of events by prompts (fleet.orphan_resolution.OrphanResolver)."""

    @property
    def wanted(self) -> bool: ...
    def offer(
        self,
        prompts: Mapping[int, Sequence[Prompt]],
        *,
        lora: str | None,
        lora_path: str | None,
        cache_salt: str | None,
    ) -> None: ...


class PromptsForOrphans(Extension):
    """Hands the adopter what was routed, while it is wanted."""

    def __init__(self, adopter: WantsPrompts) -> None:
        self._adopter = adopter

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        if not self._adopter.wanted or not routed.prompts:
            return
        self._adopter.offer(
            {size: [item.prompt for item in items] for size, items in routed.prompts.items()},
            lora=routed.model.lora,
            lora_path=routed.model.lora_path,
            cache_salt=routed.request.body.cache_salt,
        )


# A longer prompt, or body, is not sent a second time.
MAX_LIVE_TOKENS = 32_768
MAX_LIVE_BYTES = 256 * 1024


class LiveProbe(Extension):
    """Has 1 in N live prompts compared with the ids of the engine that answered them, one at a
    time. A prompt that cannot be had when it is its turn leaves its turn to the next."""

    def __init__(self, prober: Prober, random: Random) -> None:
        self._prober = prober
        self._random = random
        self._due = False
        self._busy = False

    def on_request(
        self,
        routed: Routed,
        seconds: float,  # noqa: ARG002
    ) -> RequestListener | None:
        if self._busy or not self._prober.one_in:
            return None
        reason = routed.decision.reason
        strayed = reason is Reason.UNFAITHFUL and self._prober.any_stray
        if not strayed and reason is not Reason.KV_AWARE:
            return None
        self._due = self._due or strayed or self._random.random() * self._prober.one_in < 1
        if not self._due or not _may_be_repeated(routed):
            return None
        self._busy = True
        return _Answered(partial(self._ended, routed))

    def _ended(self, routed: Routed, outcome: str, endpoint: Endpoint | None) -> None:
        """`endpoint`: that has answered what was asked."""
        if outcome != "ok" or endpoint is None or not self._is_of_use(routed, endpoint):
            self._busy = False
            return
        fields = standard_fields(routed.request.raw)
        if fields is None:  # NaN, ...: an engine would not read the same in a copy
            self._busy = False
            return
        self._due = False
        prompts = next(iter(routed.prompts.values()), None)
        path = routed.request.body.path
        live = LivePrompt(
            model=routed.model,
            endpoint=endpoint,
            path=path,
            fields=fields,
            ids=None if prompts is None else [item.prompt.token_ids for item in prompts],
        )
        self._prober.sample(live, self._done)

    def _is_of_use(self, routed: Routed, endpoint: Endpoint) -> bool:
        strayed = not routed.prompts
        if strayed and not self._prober.strayed(routed.model, endpoint):
            return False
        return self._prober.may_ask(endpoint)

    def _done(self) -> None:
        self._busy = False


class _Answered(RequestListener):
    """Tells at the end how a request ended, and the endpoint that has answered it, if one has."""

    __slots__ = ("_endpoint", "_tell")

    def __init__(self, tell: Callable[[str, Endpoint | None], None]) -> None:
        self._tell = tell
        self._endpoint: Endpoint | None = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        del now
        self._endpoint = target.endpoint
        return ()

    def on_head(self, status: int) -> Headers:
        if status >= 400:
            self._endpoint = None  # it has not answered what was asked
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        self._tell(ending.outcome, self._endpoint)


def _may_be_repeated(routed: Routed) -> bool:
    body = routed.request.body
    if not body.tells_ids or any(isinstance(prompt, list) for prompt in body.prompts):
        return False  # no engine tells the ids of others, and ids are not rendered
    prompts: Sequence[Matched] = next(iter(routed.prompts.values()), ())
    if any(item.prompt.media for item in prompts):
        return False  # their ids are compared with each answer's count (media_check)
    num_tokens = sum(len(item.prompt.token_ids) for item in prompts)
    return num_tokens <= MAX_LIVE_TOKENS and len(routed.request.raw) <= MAX_LIVE_BYTES


def looking_at_requests(
    settings: ServeSettings,
    publisher: Publisher | None,
    fleet: Fleet,
    adopter: WantsPrompts,
    watching: Sequence[Extension] = (),
) -> list[Extension]:
    """Return the extensions that the settings ask for. Without scoring there are no prompts to look
    at, also for those who are `watching`."""
    found: list[Extension] = []
    if publisher is not None:
        found.append(DecisionPublisher(publisher, with_text=settings.publish_text))
    if settings.scoring:
        found.append(AlarmObserver(fleet.evidence))
        found.append(LiveProbe(fleet.prober, Random()))
        found.append(PromptsForOrphans(adopter))
        found += watching
    return found


def _chosen_prompts(routed: Routed) -> Sequence[Prompt]:
    """The prompts in the block size of the endpoint that was chosen."""
    blocks = routed.decision.targets[0].prompt_blocks
    prompts: Sequence[Prompt] = ()
    for items in routed.prompts.values():
        prompts = [item.prompt for item in items]
        if sum(len(prompt.block_keys) for prompt in prompts) == blocks:
            break
    return prompts
