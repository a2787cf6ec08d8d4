"""Engines that render other prompts than we do are found out, and the cure cures."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings, ModelSettings, ProbeSettings
from inferway.fleet.prober import LIVE_AGREEMENTS

OTHER = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"

# Renders all probes alike, and one word of clients another way.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
MOODY = PLAIN.replace("{{ m.role }}", "{{ 'xyzzy' in m.content and 'wizard' or m.role }}")


async def state_of(fleet: Fleet, state: str, engine: int = 0) -> bool:
    name = fleet.engines[engine].url.removeprefix("http://")
    return await fleet.metric("inferway_engine_proof", engine=name, state=state) == 1


async def probed(fleet: Fleet, *states: str) -> None:
    """Until the engines' proofs are in these states."""

    async def all_are() -> bool:
        return all([await state_of(fleet, state, i) for i, state in enumerate(states)])

    await until(all_are)


async def reasons(fleet: Fleet) -> dict[str, str]:
    models = (await fleet.get("/ready")).body["models"]
    return {name: model["reason"] for name, model in models.items()}


def load_only_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for m in caplog.messages if "goes by load only" in m]


class TestJoining:
    async def test_an_engine_like_us_is_proven(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(2)

        await probed(fleet, "agrees", "agrees")

        assert await reasons(fleet) == {"smollm2": "kv-aware", "alias": "kv-aware"}
        assert await fleet.metric("inferway_model_faithful", model="smollm2") == 1
        counted = await fleet.metric("inferway_probes_total", occasion="join", result="agrees")
        assert counted == 2

    async def test_another_template_makes_its_model_unfaithful(
        self, start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        fleet = await start_fleet(1, flags=ModelSettings(chat_template=OTHER))
        await probed(fleet, "differs")

        answer = await fleet.chat(LONG)

        assert answer.status == 200
        assert await reasons(fleet) == {"smollm2": "unfaithful", "alias": "unfaithful"}
        assert await fleet.metric("inferway_model_faithful", model="smollm2") == 0
        assert await fleet.metric("inferway_decisions_total", reason="unfaithful") == 1
        [line] = load_only_lines(caplog)
        assert "likely flag of the engine: --chat-template; fix: give what it was given" in line
        assert "'chat', token 2, after '<|im_start|>system'" in line
        assert "there ': You are" in line

    async def test_ready_tells_the_cure_without_the_text(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(1, flags=ModelSettings(chat_template=OTHER))
        await probed(fleet, "differs")

        body = (await fleet.get("/ready")).body

        [engine] = body["engines"]
        assert engine["probes"]["smollm2"]["state"] == "differs"
        assert "it renders prompts of 'smollm2' otherwise than we do" in engine["problems"][0]
        assert "--chat-template smollm2=FILE" in body["models"]["smollm2"]["why"]
        assert "You are" not in str(body)

    async def test_the_engines_template_given_to_us_as_well_is_the_cure(
        self, start_fleet: StartFleet
    ) -> None:
        flags = ModelSettings(chat_template=OTHER)
        fleet = await start_fleet(1, flags=flags, models={"smollm2": flags})
        await probed(fleet, "agrees")

        first, second = await fleet.chat(LONG), await fleet.chat(LONG)

        assert first.status == second.status == 200
        assert await fleet.metric("inferway_decisions_total", reason="kv-aware") == 2

    @pytest.mark.parametrize(
        "flags",
        [
            ModelSettings(chat_template_content_format="openai"),
            ModelSettings(chat_template_kwargs={"shout": True}),
        ],
        ids=["content format", "default arguments"],
    )
    async def test_the_setting_that_the_log_names_is_a_cure(
        self, start_fleet: StartFleet, caplog: pytest.LogCaptureFixture, flags: ModelSettings
    ) -> None:
        caplog.set_level(logging.WARNING)
        template = "{% if shout %}!{% endif %}" + PLAIN
        theirs = msgspec.structs.replace(flags, chat_template=template)
        ours = ModelSettings(chat_template=template)
        fleet = await start_fleet(1, flags=theirs, models={"alias": ours})
        await probed(fleet, "differs")
        [line] = load_only_lines(caplog)
        named = re.search(r"fix: set models: (\{.*?\})\. First", line)
        assert named is not None
        [cure] = msgspec.json.decode(named[1], type=dict[str, dict[str, Any]]).values()

        changed = msgspec.structs.replace(ours, **cure)
        cured = await start_fleet(1, flags=theirs, models={"alias": changed})

        await probed(cured, "agrees")

    async def test_the_model_is_kv_aware_again_when_the_engine_that_differs_is_gone(
        self, start_fleet: StartFleet
    ) -> None:
        without = await start_fleet(0, more=[EngineSettings(url="http://127.0.0.1:9")])
        other = await without.start_engine(simulated(), ModelSettings(chat_template=OTHER))
        fleet = await start_fleet(1, more=[EngineSettings(url=other.url)])

        async def unfaithful() -> bool:
            return (await reasons(fleet))["smollm2"] == "unfaithful"

        async def kv_aware() -> bool:
            return (await reasons(fleet))["smollm2"] == "kv-aware"

        await until(unfaithful)
        why = (await fleet.get("/ready")).body["models"]["smollm2"]["why"]
        assert other.url.removeprefix("http://") in why
        await other.stop()
        await until(kv_aware)

    async def test_an_engine_that_comes_back_is_asked_again(
        self, start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        fleet = await start_fleet(1, flags=ModelSettings(chat_template=OTHER))
        await probed(fleet, "differs")
        port = int(fleet.engines[0].url.rsplit(":", 1)[1])

        async def gone() -> bool:
            return await fleet.metric("inferway_engine_up") == 0

        async def asked_again() -> bool:
            counted = await fleet.metric("inferway_probes_total", occasion="join", result="differs")
            return counted == 2

        await fleet.engines[0].stop()
        await until(gone)
        same = await fleet.start_engine(simulated(port=port), ModelSettings(chat_template=OTHER))
        await until(asked_again)
        await same.stop()
        await until(gone)
        await fleet.start_engine(simulated(port=port))
        await probed(fleet, "agrees")

        assert await reasons(fleet) == {"smollm2": "kv-aware", "alias": "kv-aware"}
        assert len(load_only_lines(caplog)) == 1
        assert any("as by the gateway, now" in message for message in caplog.messages)

    async def test_probes_leave_what_prompts_find_as_it_was(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(2)
        await probed(fleet, "agrees", "agrees")

        assert set((await fleet.scores("And then?")).values()) == {0}
        assert (await fleet.chat("And then?")).cached_tokens == 0

    async def test_an_adapter_goes_as_its_base_model_goes(self, start_fleet: StartFleet) -> None:
        config = simulated(lora_modules={"tuned": "/adapters/tuned"})
        fleet = await start_fleet([config], flags=ModelSettings(chat_template=OTHER))
        await probed(fleet, "differs")

        assert (await reasons(fleet))["tuned"] == "unfaithful"
        counted = await fleet.metric("inferway_probes_total", occasion="join", result="differs")
        assert counted == 1

    async def test_nobody_is_asked_if_that_is_switched_off(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(1, probe=ProbeSettings(join=False, one_in=0))

        await fleet.chat(LONG)

        assert (await fleet.get("/ready")).body["engines"][0]["probes"] == {}
        assert await fleet.metric("inferway_probes_total") == 0


class TestLivePrompts:
    async def test_each_may_be_compared_after_its_answer(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(1, probe=EACH)
        text = {"model": "alias", "prompt": [LONG, "b"], "max_tokens": 4}

        await compared(fleet, "agrees", 1, lambda: fleet.chat(LONG, tools=[TOOL]))
        await compared(fleet, "agrees", 2, lambda: fleet.post("/v1/completions", text))

        assert await state_of(fleet, "unproven")

    async def test_streams_are_compared_too(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(1, probe=EACH)
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": LONG}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 4,
        }

        async def stream() -> None:
            url = f"{fleet.url}/v1/chat/completions"
            async with fleet.http.post(url, json=body) as response:
                await response.read()

        await compared(fleet, "agrees", 1, stream)

    async def test_one_that_differs_takes_its_model_by_load_until_enough_agree(
        self, start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        fleet = await start_fleet(
            1,
            flags=ModelSettings(chat_template=MOODY),
            models={"smollm2": ModelSettings(chat_template=PLAIN)},
            probe=ProbeSettings(one_in=1),
        )
        await probed(fleet, "agrees")

        await compared(fleet, "differs", 1, lambda: fleet.chat("the magic word is xyzzy"))
        assert (await reasons(fleet))["smollm2"] == "unfaithful"
        await compared(fleet, "agrees", LIVE_AGREEMENTS, lambda: fleet.chat("hi", max_tokens=1))

        assert (await reasons(fleet))["smollm2"] == "kv-aware"
        [line] = load_only_lines(caplog)
        assert "has rendered one otherwise than we did: a chat: token 0 is" in line
        assert "xyzzy" not in caplog.text
        by_load = await fleet.metric("inferway_decisions_total", reason="unfaithful")
        assert by_load >= LIVE_AGREEMENTS

    async def test_a_request_that_fails_is_not_compared(self, start_fleet: StartFleet) -> None:
        fleet = await start_fleet(1, probe=EACH)

        refused = await fleet.chat(LONG, logprobs=True)
        assert refused.status == 400
        await compared(fleet, "agrees", 1, lambda: fleet.chat(LONG))

        assert await fleet.metric("inferway_probes_total", result="unproven") == 0


EACH = ProbeSettings(join=False, one_in=1)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def compared(
    fleet: Fleet, result: str, times: int, send: Callable[[], Awaitable[object]]
) -> None:
    """Sends until so many were compared: one is left out if the engine is busy, or we are."""

    async def so_often() -> bool:
        await send()
        counted = await fleet.metric("inferway_probes_total", occasion="live", result=result)
        return counted >= times

    await until(so_often)
