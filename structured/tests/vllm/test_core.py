"""The engine core's side, with a real tokenizer and without vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from structured.tests.compiling import SMOLLM2

from inferway_structured.backends import answer_state
from inferway_structured.backends.stepped import MAX_ANSWERS
from inferway_structured.errors import SaturatedError, SpecError
from inferway_structured.vllm import core as cores
from inferway_structured.vllm.adapter import RequestGrammar
from inferway_structured.vllm.core import BACKEND, EngineCoreSide, mark
from inferway_structured.vllm.settings import Settings

EOS = 2
IMPOSSIBLE = {
    "structures": [{"begin": "<a>", "schema": {"type": "string", "enum": [1]}, "end": "</a>"}],
    "triggers": ["<a>"],
}


class Tokenizer:
    """As much of a Hugging Face tokenizer as is used."""

    eos_token_id = EOS

    def __len__(self) -> int:
        return 49_152

    @property
    def backend_tokenizer(self) -> Any:
        return SimpleNamespace(to_str=(SMOLLM2 / "tokenizer.json").read_text)


@dataclass
class Params:
    """vLLM's StructuredOutputsParams."""

    json: object = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    _backend: str = BACKEND


def config(**flags: bool) -> Any:
    structured = {"disable_any_whitespace": False, "disable_additional_properties": False}
    return SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: 49_152, skip_tokenizer_init=False),
        structured_outputs_config=SimpleNamespace(**{**structured, **flags}, backend="auto"),
        additional_config={},
    )


def request(request_id: str = "r", **params: Any) -> Any:
    sampling = SimpleNamespace(structured_outputs=Params(**params), all_stop_token_ids={EOS})
    return SimpleNamespace(
        request_id=request_id, sampling_params=sampling, structured_output_request=SimpleNamespace()
    )


Make = Callable[..., EngineCoreSide]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[EngineCoreSide] = []

    def core(settings: Settings | None = None, **flags: bool) -> EngineCoreSide:
        made.append(EngineCoreSide(config(**flags), Tokenizer(), settings or Settings()))
        return made[-1]

    yield core
    for each in made:
        each.destroy()


def grammar_of(future: Future[RequestGrammar]) -> RequestGrammar:
    return future.result(timeout=10)


def takes(core: EngineCoreSide, grammar: RequestGrammar, text: str) -> bool:
    tokens = core.vocabulary.ll_tokenizer.tokenize_str(text)
    return grammar.validate_tokens([*tokens, EOS]) == [*tokens, EOS]


def test_one_engine_serves_every_kind_side_by_side(make: Make) -> None:
    core = make()
    asked: list[tuple[dict[str, Any], str, str]] = [
        ({"json": {"type": "object", "properties": {}}}, "{}", "[]"),
        ({"json_object": True}, "{}", "[]"),
        ({"regex": "[0-9]{3}"}, "123", "12a"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"grammar": 'start: "a" "b"'}, "ab", "ba"),
        ({"grammar": 'root ::= "a" "b"'}, "ab", "ba"),
    ]

    for params, text, other in asked:
        grammar = grammar_of(core.begin(request(**params)))

        assert takes(core, grammar, text), params
        assert not takes(core, grammar, other), params


def test_a_refusal_is_the_requests_own_and_its_reason_is_remembered(make: Make) -> None:
    core = make()

    future = core.begin(request("chatcmpl-7-internal", structural_tag=IMPOSSIBLE))

    assert isinstance(future.exception(timeout=10), SpecError)
    told = core.utility("why", {"requests": ["chatcmpl-7"]})
    assert (told["status"], told["place"]) == (400, "/structures/0/schema")
    assert core.utility("why", {"requests": ["chatcmpl-8"]}) == {}


def test_where_grammars_have_no_room_the_next_waits_for_one_to_end(make: Make) -> None:
    core = make()
    word = {"grammar": 'root ::= "a"'}
    answers = [grammar_of(core.begin(request(f"r{at}", **word))) for at in range(MAX_ANSWERS)]

    left, waits = (core.begin(request(name, **word)) for name in ("left", "waits"))
    core.cancel(["left"])
    refused = core.begin(request("at once", **word), may_wait=False)

    assert isinstance(refused.exception(timeout=10), SaturatedError)
    assert (left.cancelled(), waits.done()) == (True, False)
    answers.pop()
    assert takes(core, grammar_of(waits), "a")


@pytest.mark.parametrize(
    ("why", "status"), [(answer_state.TOO_LONG, 400), ("letters raised RuntimeError", 500)]
)
def test_an_answer_that_is_cut_off_is_the_clients_fault_if_its_shape_is_to_blame(
    make: Make, why: str, status: int
) -> None:
    core = make()

    core._end("chatcmpl-7-internal", why)

    told = core.utility("why", {"requests": ["chatcmpl-7"]})
    assert told["status"] == status
    assert why in told["message"]


def test_what_cannot_be_read_ends_its_request_too(make: Make) -> None:
    future = make().begin(request(regex="a", choice=["b"]))

    assert isinstance(future.exception(timeout=10), SpecError)


def test_flags_of_the_engine_hold_for_every_request(make: Make) -> None:
    core = make(disable_any_whitespace=True, disable_additional_properties=True)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    grammar = grammar_of(core.begin(request(json=schema)))

    assert takes(core, grammar, '{"a":1}')
    assert not takes(core, grammar, '{"a": 1}')
    assert not takes(core, grammar, '{"a":1,"b":2}')


def test_a_client_that_has_left_takes_its_compile_with_it(make: Make) -> None:
    core = make(Settings(compile_delay_seconds=0.3))
    core.begin(request("a", regex="a"))
    core.begin(request("b", regex="b"))
    waiting = core.begin(request("c", regex="c"))

    core.cancel(["c", "unknown"])

    assert core.counts.builds_dropped.value() == 1
    assert not waiting.done()


def test_what_was_warmed_is_held_and_says_what_it_took(make: Make) -> None:
    core = make()
    words = {"kind": "regex", "text": "[ab]{3}", "options": {}}

    assert core.utility("warm", words)["accepted"]
    grammar_of(core.begin(request(regex="[ab]{3}")))

    assert core.utility("warm", words)["compile_ms"] > 0
    (held,) = core.utility("stats", {})["held"]
    assert held["backend"] == "llguidance"
    assert json.dumps(core.utility("stats", {}))


class Manager:
    """vLLM's StructuredOutputManager, just made."""

    def __init__(self, tokenizer: object) -> None:
        self.backend: Any = None
        self.tokenizer = tokenizer
        self.vllm_config = config()
        self._use_async_grammar_compilation = True


def test_it_stands_where_vllm_would_build_its_own_backend() -> None:
    manager = Manager(Tokenizer())

    cores.take_over(manager, manager.vllm_config)
    asking = request(regex="a")
    ours = cores.begin(manager, asking)

    assert ours
    assert grammar_of(asking.structured_output_request.grammar).backend == "llguidance"
    manager.backend.destroy()


def test_a_tokenizer_that_nobody_here_can_use_leaves_it_to_vllm() -> None:
    manager = Manager(SimpleNamespace(eos_token_id=EOS))

    cores.take_over(manager, manager.vllm_config)
    asking = request(regex="a")
    ours = cores.begin(manager, asking)

    assert (manager.backend, ours) == (None, False)
    assert asking.sampling_params.structured_outputs._backend == "xgrammar"


def test_the_verdict_of_a_compile_is_told_and_the_request_finds_it_compiled(make: Make) -> None:
    core = make()
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    spec = core.spec_of(Params(json=schema))

    told = json.loads(core.judge(spec).result(timeout=10))
    grammar_of(core.begin(request(json=schema)))

    assert told == {"backend": "llguidance", "unenforced": [["", "uniqueItems"]]}
    assert core.counts.cache_hits.snapshot() == {"memory": 1}
    assert sum(core.counts.requests.snapshot().values()) == 1


def test_what_a_compile_refuses_is_told_with_its_place(make: Make) -> None:
    core = make()

    told = json.loads(
        core.judge(core.spec_of(Params(structural_tag=json.dumps(IMPOSSIBLE)))).result()
    )

    assert told["status"] == 400
    assert told["message"]
    assert not told["killed"]
    assert core.counts.requests.snapshot() == {}


def test_what_is_held_is_not_read_again(make: Make) -> None:
    core = make()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    first = request(json=schema)
    grammar_of(core.begin(first))
    key = core.spec_of(first.sampling_params.structured_outputs).key
    again = request(json={"read": "never"})
    mark(again.sampling_params.structured_outputs, key)

    grammar = grammar_of(core.begin(again))

    assert takes(core, grammar, '{"a": 1}')
    assert not takes(core, grammar, "1")
    assert core.counts.cache_hits.snapshot() == {"memory": 1}
