"""What is told of each routed request: to the publisher's subscribers, and to the alarm."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from inferway.director import Routed
from inferway.fleet.silent_zero import SilentZeroAlarm, StreamEvidence
from inferway.frontends.publisher import Publisher, topic_name
from inferway.model import Candidates, Prompt
from inferway.openai_api.requests import ChatRequest

log = logging.getLogger("inferway.alarm")


def pod_scores(candidates: Candidates) -> dict[str, int]:
    """engine -> blocks held (seed 003's word); ranks of one engine are written engine/rank."""
    return {
        e.engine if e.rank is None else f"{e.engine}/{e.rank}": int(blocks)
        for e, blocks in zip(candidates.endpoints, candidates.matched_blocks, strict=True)
    }


class DecisionPublisher:
    """Publishes kv.{model} and kv.chat.{model}; text only when asked for."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        with_text: bool,
    ) -> None:
        self._publisher = publisher
        self._with_text = with_text

    def __call__(self, request_id: str, routed: Routed, seconds: float) -> None:
        model, body = routed.model.name, routed.request.body
        message = self._common(request_id, routed)
        if not isinstance(body, ChatRequest):
            if self._with_text:
                message["prompt"] = body.prompt
            self._publisher.publish(f"kv.{topic_name(model)}", message)
            return
        message["processing_time_ms"] = round(seconds * 1000, 3)
        message["template_vars"] = sorted(
            {"messages", "add_generation_prompt", *(body.chat_template_kwargs or {})}
            | {name for name in ("tools", "documents") if getattr(body, name)}
        )
        if self._with_text:
            message["messages"] = body.messages
            message["rendered_template"] = routed.model.prompts.rendered_text(body)
        self._publisher.publish(f"kv.chat.{topic_name(model)}", message)

    def _common(self, request_id: str, routed: Routed) -> dict[str, Any]:
        target = routed.decision.targets[0]
        prompts = _chosen_prompts(routed)
        digest = xxhash.xxh3_64()
        for prompt in prompts:
            digest.update(prompt.token_ids.tobytes())
        return {
            "id": request_id,
            "model": routed.model.name,
            "timestamp": time.time(),
            "prompt_hash": digest.hexdigest(),
            "prompt_tokens": sum(len(prompt.token_ids) for prompt in prompts),
            "block_keys": [key for prompt in prompts for key in prompt.block_keys],
            "engine": target.endpoint.engine,
            "matched_blocks": target.matched_blocks,
            "pod_scores": pod_scores(routed.candidates),
        }


class AlarmObserver:
    """Feeds the silent-zero alarm, one per model, and logs what it says."""

    def __init__(self, evidence: Callable[[str], Sequence[StreamEvidence]]) -> None:
        self._evidence = evidence
        self.alarms: dict[str, SilentZeroAlarm] = {}

    def __call__(self, _: str, routed: Routed, __: float) -> None:
        if not routed.prompts:
            return  # by load only: the decision's own reason says why
        model = routed.model.name
        alarm = self.alarms.get(model)
        if alarm is None:
            alarm = self.alarms[model] = SilentZeroAlarm(model)
        if routed.candidates.matched_blocks.any():
            alarm.matched()
            return
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


def _chosen_prompts(routed: Routed) -> Sequence[Prompt]:
    """The prompts in the block size of the endpoint that was chosen."""
    blocks = routed.decision.targets[0].prompt_blocks
    prompts: Sequence[Prompt] = ()
    for items in routed.prompts.values():
        prompts = [item.prompt for item in items]
        if sum(len(prompt.block_keys) for prompt in prompts) == blocks:
            break
    return prompts
