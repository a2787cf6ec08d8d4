"""Which live prompts are compared: 1 in N, one at a time, none that would cost much."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import numpy as np
import pytest

from inferway.config import EngineSettings, ProbeSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.load import Load
from inferway.fleet.prober import LivePrompt, Prober
from inferway.kv.index.protocol import MatchResult
from inferway.model import Decision, Endpoint, Prompt, Reason, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import COMPLETION, parse_completion
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import RequestOutcome
from inferway.telemetry.observers import MAX_LIVE_TOKENS, AlarmObserver, LiveProbe

THERE = Endpoint("e0", "http://e0", 0)
MODEL = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "not in this test"))


class Noting(Prober):
    """Notes what it is to compare; `finish` ends the oldest comparison."""

    def __init__(self, one_in: int) -> None:
        self.engine = Engine(EngineSettings(url="http://e0", name="e0"), (), healthy=True)
        engines = {"e0": self.engine}
        settings = ProbeSettings(one_in=one_in)
        super().__init__(settings, engines, EngineClient(), lambda _, m: m, lambda: None)
        self.samples: list[LivePrompt] = []
        self._done: list[Callable[[], None]] = []
        self.stray = False

    @property
    def any_stray(self) -> bool:
        return self.stray

    def strayed(self, model: ServedModel, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return self.stray

    def may_ask(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return self.engine.load["waiting"] == 0

    def sample(self, live: LivePrompt, done: Callable[[], None]) -> None:
        self.samples.append(live)
        self._done.append(done)

    def finish(self) -> None:
        self._done.pop(0)()


def routed(
    reason: Reason = Reason.KV_AWARE, num_tokens: int = 3, prompt: object = "secret"
) -> Routed:
    raw = msgspec.json.encode({"model": "m", "prompt": prompt})
    ids = np.arange(num_tokens, dtype=np.uint32)
    known = {} if reason is not Reason.KV_AWARE else {16: [Matched(Prompt(ids, ()), MatchResult())]}
    request = LLMRequest(request_id="r", target_model="m", body=parse_completion(raw), raw=raw)
    return Routed(request, MODEL, known, Decision((), reason), idle([THERE], 16))


@pytest.fixture
def prober() -> Noting:
    return Noting(one_in=1)


@pytest.fixture
def probe(prober: Noting) -> LiveProbe:
    return LiveProbe(prober, Random(1))


def goes_by(
    probe: LiveProbe, request: Routed, outcome: str = "ok", status: int = 200, then: str = "e0"
) -> None:
    """A request is routed, tried at an engine that fails and at `then`, and ends."""
    follower = probe.on_request(request, 0.0)
    if follower is not None:
        for engine in ("failed", then):
            follower.on_attempt(target(engine), 0.0)
        follower.on_head(status)
        follower.on_end(RequestOutcome(outcome, 0.0))


def test_a_prompt_is_compared_with_the_ids_it_was_routed_on(
    probe: LiveProbe, prober: Noting
) -> None:
    goes_by(probe, routed())

    [live] = prober.samples
    assert (live.model, live.endpoint, live.path) == (MODEL, THERE, COMPLETION)
    assert live.fields == {"model": "m", "prompt": "secret"}
    assert live.ids is not None
    assert [ids.tolist() for ids in live.ids] == [[0, 1, 2]]


def test_a_body_that_a_copy_would_change_is_let_go(probe: LiveProbe, prober: Noting) -> None:
    raw = b'{"model": "m", "prompt": "secret", "x": NaN}'
    known = routed()
    request = msgspec.structs.replace(known.request, raw=raw)

    goes_by(probe, msgspec.structs.replace(known, request=request))
    assert prober.samples == []

    goes_by(probe, known)
    assert len(prober.samples) == 1


def test_it_is_sent_only_after_its_answer(probe: LiveProbe, prober: Noting) -> None:
    ended = probe.on_request(routed(), 0.0)

    assert ended is not None
    assert prober.samples == []


def test_one_is_compared_at_a_time(probe: LiveProbe, prober: Noting) -> None:
    goes_by(probe, routed())
    goes_by(probe, routed())
    assert len(prober.samples) == 1

    prober.finish()
    goes_by(probe, routed())

    assert len(prober.samples) == 2


def test_one_in_n_is_taken() -> None:
    prober = Noting(one_in=10)
    probe = LiveProbe(prober, Random(1))

    for _ in range(2000):
        before = len(prober.samples)
        goes_by(probe, routed())
        if len(prober.samples) > before:
            prober.finish()

    assert 150 <= len(prober.samples) <= 250


def test_zero_is_none() -> None:
    prober = Noting(one_in=0)

    goes_by(LiveProbe(prober, Random(1)), routed())

    assert prober.samples == []


@pytest.mark.parametrize("reason", [Reason.MEDIA_PREFIX, Reason.NO_TOKENIZER, Reason.UNFAITHFUL])
def test_prompts_that_are_not_known_whole_are_let_go(
    probe: LiveProbe, prober: Noting, reason: Reason
) -> None:
    goes_by(probe, routed(reason))

    assert prober.samples == []


@pytest.mark.parametrize(
    "request_",
    [routed(num_tokens=MAX_LIVE_TOKENS + 1), routed(prompt="x" * 300_000), routed(prompt=[1, 2])],
    ids=["many tokens", "many bytes", "token ids"],
)
def test_a_prompt_that_costs_much_or_proves_nothing_leaves_its_turn_to_the_next(
    probe: LiveProbe, prober: Noting, request_: Routed
) -> None:
    goes_by(probe, request_)
    assert prober.samples == []

    goes_by(probe, routed())

    assert len(prober.samples) == 1


@pytest.mark.parametrize("outcome", ["upstream_error", "client_gone"])
def test_an_answer_that_failed_leaves_the_turn_to_the_next(prober: Noting, outcome: str) -> None:
    prober.one_in = 10**9
    probe = LiveProbe(prober, Always())
    goes_by(probe, routed(), outcome)
    assert prober.samples == []

    goes_by(probe, routed())

    assert len(prober.samples) == 1


class Always(Random):
    """Picks the first request, and none after it."""

    left = 1

    def random(self) -> float:
        self.left -= 1
        return 0.0 if self.left >= 0 else 0.999


def test_an_engine_with_a_queue_leaves_the_turn_to_the_next(
    probe: LiveProbe, prober: Noting
) -> None:
    prober.engine.load = Load({"running": 1, "waiting": 1, "kv_usage": 0.0})
    goes_by(probe, routed())
    assert prober.samples == []

    prober.engine.load = Load({"running": 1, "waiting": 0, "kv_usage": 0.0})
    goes_by(probe, routed())

    assert len(prober.samples) == 1


def test_while_a_live_prompt_has_strayed_prompts_by_load_are_compared_too(
    prober: Noting,
) -> None:
    prober.one_in, prober.stray = 10**9, True

    goes_by(LiveProbe(prober, Random(1)), routed(Reason.UNFAITHFUL))

    [live] = prober.samples
    assert live.ids is None


def target(engine: str) -> Target:
    return Target(Endpoint(engine, f"http://{engine}", 0), 1.0, 0, 0)


def test_the_engine_that_is_asked_is_the_one_that_has_answered(
    probe: LiveProbe, prober: Noting
) -> None:
    goes_by(probe, routed(), status=400)
    assert prober.samples == []

    goes_by(probe, routed(), then="e1")
    assert [live.endpoint.engine for live in prober.samples] == ["e1"]


@pytest.mark.parametrize("reason", [Reason.MEDIA_PREFIX, Reason.REMOTE_PREFIX])
def test_a_prompt_known_only_in_part_does_not_feed_the_alarm(reason: Reason) -> None:
    alarm = AlarmObserver(lambda _: [])

    alarm.on_request(missed(reason), 0.0)
    assert alarm.by_model["m"].misses == 0

    alarm.on_request(missed(Reason.KV_AWARE), 0.0)
    assert alarm.by_model["m"].misses == 1


def test_a_prompt_that_is_read_from_no_cache_does_not_feed_the_alarm() -> None:
    alarm = AlarmObserver(lambda _: [])

    alarm.on_request(missed(Reason.KV_AWARE, is_read=False), 0.0)

    assert alarm.by_model["m"].misses == 0


def missed(reason: Reason, *, is_read: bool = True) -> Routed:
    """A prompt of two blocks that nobody holds."""
    request = routed()
    prompt = Prompt(np.arange(32, dtype=np.uint32), (1, 2))
    prompts = {16: [Matched(prompt, MatchResult(), is_read=is_read)]}
    decision = Decision((Target(THERE, 0.0, 0, 2),), reason)
    return msgspec.structs.replace(request, prompts=prompts, decision=decision)
