"""A scheduler of a few lines stands for vLLM's: what is asked of it, 0.32's and 0.33's give."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from inferway_structured.counts import Counts
from inferway_structured.vllm.overlap import Overlap
from inferway_structured.vllm.settings import Settings

BLOCK = 16


@dataclass
class Asked:
    """As vLLM's StructuredOutputRequest: None while the grammar is to come."""

    future: Future[object] = field(default_factory=Future)

    @property
    def grammar(self) -> object:
        if not self.future.done():
            return None
        return self.future.exception() or self.future.result()


@dataclass
class Request:
    request_id: str
    num_tokens: int = 100
    structured_output_request: Asked = field(default_factory=Asked)


class Scheduler:
    def __init__(self, *requests: Request, usage: float = 0.1, cached: int = 0) -> None:
        self.requests = {request.request_id: request for request in requests}
        self.connector: object = None
        self.block_size = BLOCK
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=True)
        self.structured_output_manager = SimpleNamespace(_use_async_grammar_compilation=True)
        self.kv_cache_manager = SimpleNamespace(
            usage=usage, get_computed_blocks=lambda _: (None, cached, None)
        )


def refuse() -> None:
    raise AssertionError("the grammar was not refused")


def overlap(**settings: Any) -> tuple[Overlap, Counts]:
    core: Any = SimpleNamespace(settings=Settings(**settings), counts=Counts())
    return Overlap(core), core.counts


def test_a_request_goes_in_and_gets_its_prompt_but_for_the_last_token() -> None:
    request = Request("a")
    scheduler = Scheduler(request)
    over, _ = overlap()

    assert over.lets_in(scheduler, request)
    assert over.most(request, 0, 64, refuse) == 64
    assert over.most(request, 64, 36, refuse) == 35
    assert over.most(request, 99, 1, refuse) == 0


def test_when_the_grammar_is_ready_the_rest_follows_and_what_was_hidden_is_counted() -> None:
    request = Request("a")
    scheduler = Scheduler(request)
    over, counts = overlap()
    over.lets_in(scheduler, request)
    over.most(request, 99, 1, refuse)

    request.structured_output_request.future.set_result("a grammar")

    assert over.most(request, 99, 1, refuse) == 1
    assert counts.compile_hidden_seconds.count() == 1
    assert over.num_held == 0


def test_a_refused_grammar_ends_its_request_before_anything_is_sampled() -> None:
    request = Request("a")
    scheduler = Scheduler(request)
    over, _ = overlap()
    over.lets_in(scheduler, request)

    request.structured_output_request.future.set_exception(ValueError())

    refused: list[str] = []
    assert over.most(request, 99, 1, lambda: refused.append("a")) == 0
    assert refused == ["a"]


def test_no_more_than_the_bound_go_in_and_those_that_left_do_not_count() -> None:
    requests = [Request(name) for name in "abc"]
    scheduler = Scheduler(*requests)
    over, _ = overlap(overlap_held=2)

    assert [over.lets_in(scheduler, request) for request in requests] == [True, True, False]
    del scheduler.requests["a"]
    assert over.lets_in(scheduler, requests[2])


@pytest.mark.parametrize(
    ("scheduler", "settings"),
    [
        (Scheduler(usage=0.9), {}),
        (Scheduler(cached=99 - BLOCK // 2), {}),
        (Scheduler(), {"overlap": False}),
    ],
    ids=["the cache is full", "the prompt is cached", "it is switched off"],
)
def test_a_request_waits_outside_when(scheduler: Scheduler, settings: dict[str, Any]) -> None:
    over, _ = overlap(**settings)

    assert not over.lets_in(scheduler, Request("a"))


@pytest.mark.parametrize("differs", ["connector", "whole prefills", "ranks"])
def test_where_others_have_a_say_in_prefills_nothing_is_overlapped_and_it_is_said_once(
    differs: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler()
    if differs == "connector":
        scheduler.connector = object()
    elif differs == "whole prefills":
        scheduler.scheduler_config.enable_chunked_prefill = False
    else:
        scheduler.structured_output_manager._use_async_grammar_compilation = False

    over = overlap()[0]

    assert not over.lets_in(scheduler, Request("a"))
    assert not over.lets_in(scheduler, Request("b"))
    (said,) = caplog.messages
    assert "does not compute prompts while their grammars compile (overlap), because" in said


def test_one_sent_back_to_the_queue_stays_there_until_its_grammar_is_ready() -> None:
    request = Request("a")
    over, _ = overlap()
    over.lets_in(Scheduler(request), request)

    assert over.holds_back(request)
    request.structured_output_request.future.set_result("a grammar")
    assert not over.holds_back(request)


def test_others_are_given_what_vllm_gives_them() -> None:
    over, _ = overlap()

    assert over.most(Request("b"), 0, 100, refuse) == 100
