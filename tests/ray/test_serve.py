"""The router in a real Ray Serve, in front of simulated engines."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from tests.ray.conftest import MODEL, Served, StartApp, process_at, text, until
from tests.ray.inside import EngineInside

from inferway_sim.prepare import prepare_smollm2

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def chats_hit(served: Served, first: int, chats: int = 6) -> list[int]:
    """What each of some new chats finds cached when it is asked again: none of it if the replica
    was drawn."""
    for number in range(first, first + chats):
        assert served.cached(text(number)) < 64
    return [served.cached(text(number)) for number in range(first, first + chats)]


def test_chats_go_where_they_are_held(start_engines: StartApp) -> None:
    served = start_engines("held", replicas=3)
    until(lambda: min(chats_hit(served, next(NUMBERS))) > 500)  # once the router knows them

    assert min(chats_hit(served, next(NUMBERS))) > 500


NUMBERS = iter(range(0, 10**6, 100))


def test_an_answer_comes_as_the_engine_gave_it(start_engines: StartApp) -> None:
    served = start_engines("given")
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    refused = served.post({**chat, "messages": [{"role": "user", "content": [5]}]})
    unknown = served.post({**chat, "model": "unknown"})
    nowhere = served.post({}, "/v1/nowhere")
    status, stream = served.post({**chat, "stream": True, "max_tokens": 3})

    assert refused[0] == 400
    assert unknown[0] == 404
    assert b"unknown" in unknown[1]
    assert nowhere[0] == 404
    assert b"known: POST" in nowhere[1]
    assert status == 200
    assert stream.endswith(b"data: [DONE]\n\n")


def test_engines_inside_their_replicas_are_followed_by_rays_own_announcement(
    start_engines: StartApp,
) -> None:
    from ray.serve.config import RequestRouterConfig

    from inferway_ray.router import ROUTER

    config = RequestRouterConfig(
        request_router_class=ROUTER,
        request_router_kwargs={"model": {"id": MODEL, "root": str(prepare_smollm2())}},
        request_routing_stats_period_s=0.5,
    )
    served = start_engines("inside", EngineInside, config=config, replicas=3)

    until(lambda: min(chats_hit(served, next(NUMBERS))) > 500)

    assert min(chats_hit(served, next(NUMBERS))) > 500


def test_a_router_that_is_told_nonsense_leaves_all_to_ray(start_engines: StartApp) -> None:
    from ray.serve.config import RequestRouterConfig

    from inferway_ray.router import ROUTER

    config = RequestRouterConfig(
        request_router_class=ROUTER, request_router_kwargs={"policy": "nonsense"}
    )
    served = start_engines("nonsense", config=config)

    assert served.cached(text(next(NUMBERS))) == 0


def test_an_engine_that_dies_is_replaced_and_the_router_follows(start_engines: StartApp) -> None:
    from ray import serve

    served = start_engines("dies")
    until(lambda: min(chats_hit(served, next(NUMBERS))) > 500)
    handle = serve.get_deployment_handle("Engine", "dies")

    def metadata() -> list[Any]:
        return sorted(
            each["engine"] for each in handle.broadcast("record_replica_metadata").results()
        )

    before = metadata()
    os.kill(process_at(before[0], b"simulate"), signal.SIGKILL)
    until(lambda: len(after := answers(metadata)) == 2 and before[0] not in after)

    until(lambda: min(chats_hit(served, next(NUMBERS))) > 500)
    assert before[1] in metadata()


def answers(ask: Any) -> list[Any]:
    """What `ask` returns; nothing while a replica is on its way out."""
    try:
        found: list[Any] = ask()
    except Exception:
        return []
    return found


@pytest.mark.parametrize("settings", [{"polizy": "kv-aware"}, {"policy": "kw-aware"}, {"heal": 1}])
def test_what_cannot_hold_is_refused_where_the_deployment_is_written(
    settings: dict[str, Any],
) -> None:
    pytest.importorskip("ray")
    from inferway.errors import ConfigError
    from inferway_ray.router import router_config

    with pytest.raises(ConfigError, match="request_router_kwargs"):
        router_config(**settings)


def test_the_configuration_is_json() -> None:
    pytest.importorskip("ray")
    from inferway_ray.router import router_config

    config = router_config(policy="kv-aware", model="org/model")

    assert json.loads(json.dumps(config.request_router_kwargs)) == {
        "policy": "kv-aware",
        "model": "org/model",
    }
