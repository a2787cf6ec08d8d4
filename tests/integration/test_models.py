"""GET /v1/models and /v1/models/NAME: what tools made for vLLM read of an engine."""

from __future__ import annotations

import socket
from typing import Any

import openai
import pytest
from aiohttp import web
from tests.integration.conftest import StartFleet, answering, simulated

from inferway.config import EngineSettings, ModelRewrite, ModelSettings, RewriteTarget

# vLLM 0.32, entrypoints/serve/engine/protocol.py: ModelCard and ModelPermission.
CARD = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
PERMISSION = {
    *("id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs"),
    *("allow_search_indices", "allow_view", "allow_fine_tuning", "organization", "group"),
    "is_blocking",
}


async def test_a_model_has_all_the_fields_that_vllm_gives(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    (model, alias) = (await fleet.get("/v1/models")).body["data"]

    assert set(model) == CARD
    assert set(model["permission"][0]) == PERMISSION
    assert (model["id"], alias["id"]) == ("smollm2", "alias")
    assert model["created"] > 1_600_000_000
    assert model["owned_by"] == "vllm"


async def test_a_simulated_engine_says_the_same_of_its_model_as_the_gateway(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": "/adapters/tuned"})])
    async with fleet.http.get(f"{fleet.engines[0].url}/v1/models") as answer:
        own = (await answer.json())["data"]

    listed = (await fleet.get("/v1/models")).body["data"]

    assert [_without_times(card) for card in listed] == [_without_times(card) for card in own]


def _without_times(card: dict[str, Any]) -> dict[str, Any]:
    (permission,) = card["permission"]
    return {**card, "created": 0, "permission": {**permission, "created": 0}}


async def test_an_adapter_names_its_parent_and_its_own_directory(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": "/adapters/tuned"})])

    card = (await fleet.get("/v1/models/tuned")).body

    assert (card["parent"], card["root"]) == ("smollm2", "/adapters/tuned")


async def test_of_different_context_lengths_the_shortest_is_told(start_fleet: StartFleet) -> None:
    lengths = (2048, 1024, 4096)
    fleet = await start_fleet([simulated(max_model_len=length) for length in lengths])

    assert (await fleet.get("/v1/models/smollm2")).body["max_model_len"] == 1024


async def test_a_name_of_a_rewrite_has_a_card_of_its_own(start_fleet: StartFleet) -> None:
    rule = ModelRewrite(models=["asked"], targets=[RewriteTarget(model="smollm2")])
    fleet = await start_fleet(1, model_rewrites=[rule])

    asked = (await fleet.get("/v1/models/asked")).body
    target = (await fleet.get("/v1/models/smollm2")).body

    assert (asked["id"], asked["root"]) == ("asked", target["root"])
    assert asked["permission"][0]["id"] != target["permission"][0]["id"]


@pytest.mark.parametrize("path", ["org/sub/model", "org%2Fsub%2Fmodel", "org/sub%2fmodel"])
async def test_a_name_with_slashes_is_found_however_they_are_written(
    start_fleet: StartFleet, path: str
) -> None:
    fleet = await start_fleet([simulated(served_model_names=("org/sub/model",))])

    assert (await fleet.get(f"/v1/models/{path}")).body["id"] == "org/sub/model"


async def test_an_unknown_name_is_a_404_with_the_names_there_are(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.get("/v1/models/gpt-9")

    assert answer.status == 404
    assert answer.body["error"] == {
        "message": "model: no engine serves 'gpt-9'; known: alias, smollm2",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_a_model_whose_engines_do_not_answer_is_a_503_to_ask_again(
    start_fleet: StartFleet,
) -> None:
    nobody = EngineSettings(url="http://127.0.0.1:9", name="away")
    fleet = await start_fleet(0, [nobody])

    answer = await fleet.get("/v1/models/m")

    assert answer.status == 503
    assert "no engine has answered yet; asked http://127.0.0.1:9" in answer.body["error"]["message"]
    assert answer.headers["Retry-After"] == "1"


async def test_openais_client_lists_and_retrieves(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(served_model_names=("org/model",))])
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as client:
        names = [model.id async for model in client.models.list()]
        model = await client.models.retrieve("org/model")
        with pytest.raises(openai.NotFoundError, match="known: org/model"):
            await client.models.retrieve("org/other")

    assert names == [model.id] == ["org/model"]


async def test_an_engine_that_tells_little_is_completed(start_fleet: StartFleet) -> None:
    async def engine(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": "sglang"}]})
        return web.Response(status=404)

    async with answering(engine) as url:
        fleet = await start_fleet([], [EngineSettings(url=url)])
        card = (await fleet.get("/v1/models/m")).body

    assert set(card) == CARD
    assert (card["root"], card["owned_by"], card["max_model_len"]) == ("m", "sglang", None)


async def test_settings_for_a_model_that_no_engine_serves_are_one_warning(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    given = {name: ModelSettings(chat_template="default") for name in ("smolm2", "alias", "other")}

    fleet = await start_fleet(2, models=given)
    await fleet.get("/ready")

    [said] = [r.getMessage() for r in caplog.records if "no engine serves" in r.getMessage()]
    assert "no engine serves 'other', 'smolm2', so" in said
    assert "the engines serve 'alias', 'smollm2'" in said


async def test_settings_for_a_model_are_not_warned_of_before_every_engine_has_answered(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = EngineSettings(url=f"http://127.0.0.1:{unused.getsockname()[1]}")

        await start_fleet(1, [away], models={"other": ModelSettings(chat_template="default")})

    assert "cannot be reached" in caplog.text
    assert "no engine serves" not in caplog.text
