"""/v1/structured/{warm,stats,explain}: under /v1, where vLLM's own key check guards.

warm     POST  a spec, or a request that asks for one   the engine core compiles it, if it has time
stats    GET                                            what this server and its engine cores count
explain  POST  as warm                                  verdict, backend, what is not enforced

A warm-up is a favour: it is bounded in rate, number and size, and refused first under load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferway_structured.counts import merged
from inferway_structured.errors import (
    BodyTooLargeError,
    InferwayError,
    InvalidRequestError,
    SaturatedError,
)
from inferway_structured.requests import WANTED, read_specs
from inferway_structured.spec import OutputConstraint, fields_of, json_type
from inferway_structured.turns import ANYBODY, TokenBucket
from inferway_structured.vllm.asgi import Receive, Scope, Send, answer_error, answer_json, read_body
from inferway_structured.vllm.core import UTILITY, with_flags
from inferway_structured.vllm.settings import settings_of

if TYPE_CHECKING:
    from inferway_structured.vllm.front import ApiServerSide

PREFIX = "/v1/structured/"

MAX_BODY_BYTES = 1 << 20
WARM_PER_SECOND = 20.0
MAX_WARMING = 8  # that the engine core has been told of and has not answered


class Endpoints:
    def __init__(self, front: ApiServerSide) -> None:
        self._front = front
        self.warmings = TokenBucket(WARM_PER_SECOND)
        self._num_warming = 0

    async def __call__(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        routes = {
            f"{PREFIX}warm": ("POST", self._warm),
            f"{PREFIX}stats": ("GET", self._stats),
            f"{PREFIX}explain": ("POST", self._explain),
        }
        method, answer = routes.get(path, ("", self._stats))
        if not method:
            known = ", ".join(f"{verb} {name}" for name, (verb, _) in routes.items())
            message = f"the path is unknown; there are {known}"
            told = {"error": {"message": message, "type": "NotFoundError", "code": 404}}
            return await answer_json(send, 404, told)
        if scope["method"] != method:
            message = f"the method {scope['method']} is not allowed for {path}; use {method}"
            told = {"error": {"message": message, "code": 405}}
            return await answer_json(send, 405, told)
        try:
            body = await read_body(receive, MAX_BODY_BYTES)
            if body is not None:
                status, told = await answer(scope["app"].state, body)
                await answer_json(send, status, told)
        except ValueError:
            await answer_error(
                send,
                BodyTooLargeError(
                    f"the body has more than {MAX_BODY_BYTES} bytes, the most that {path} takes; "
                    "send only the fields that ask for the shape"
                ),
            )
        except InferwayError as e:
            await answer_error(send, e)

    async def _warm(self, state: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        asked = await self._asked(state, body)
        if self._num_warming >= MAX_WARMING or not self.warmings.take():
            raise SaturatedError(
                f"this server takes {WARM_PER_SECOND:g} warm-ups a second and {MAX_WARMING} at a "
                "time, and this one is too many; leave it out, the request itself will bring its "
                "shape"
            )
        await self._front.verdicts.examine(asked, compiles=False)
        self._num_warming += 1
        try:
            told = []
            for spec in [each.spec for each in asked]:
                (core,) = await ask_cores(state.engine_client, "warm", fields_of(spec))
                told.append({"key": spec.key, **core})
        finally:
            self._num_warming -= 1
        first = told[0]
        return (202 if all(each["accepted"] for each in told) else 429), {**first, "specs": told}

    async def _stats(self, state: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        del body
        return 200, await stats(self._front, state.engine_client)

    async def _explain(self, state: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        asked = await self._asked(state, body)
        refuse = settings_of(state.vllm_config).refuse_unenforced
        told = [
            await self._front.verdicts.explain(each, refuses_unenforced=refuse) for each in asked
        ]
        return 200, {**told[0], "specs": told}

    async def _asked(self, state: Any, body: bytes) -> list[OutputConstraint]:
        asked = await self._front.verdicts.read(ANYBODY, _read, body)
        config = state.vllm_config.structured_outputs_config
        return [replace(each, spec=with_flags(each.spec, config)) for each in asked]


async def stats(front: ApiServerSide, engine_client: Any) -> dict[str, Any]:
    cores = await ask_cores(engine_client, "stats", {})
    snapshots = [front.counts.snapshot(), *(core["counts"] for core in cores)]
    return {
        "plugin": "inferway",
        "counts": merged(snapshots),
        "cores": [{name: core[name] for name in core if name != "counts"} for core in cores],
    }


async def ask_cores(engine_client: Any, command: str, words: Mapping[str, Any]) -> list[Any]:
    """Return the answers of `EngineCoreSide.utility` in every engine core that this server knows;
    JSON on the way, because vLLM's own encoder lets only few types through."""
    client = engine_client.engine_core
    arguments = (UTILITY, command, json.dumps(words))
    if command != "warm" and hasattr(client, "call_utility_all_async"):
        answers = await client.call_utility_all_async(*arguments)
    else:
        answers = [await client.call_utility_async(*arguments)]
    return [json.loads(answer) for answer in answers]


def _read(body: bytes) -> list[OutputConstraint]:
    """Return the specs in a body. Raises InvalidRequestError or SpecError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"the body is not valid JSON; {WANTED}") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"the body is {json_type(fields)}, not an object; {WANTED}")
    return read_specs(fields)
