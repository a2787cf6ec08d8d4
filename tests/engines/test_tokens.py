"""The ids we render are the ids the engine sees.

`make fleet` asks 60 of the varied requests, each kind at least once, and all written by hand;
`make fleet-full` asks all and writes docs/results/fleet_tokens.json.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, Request, requests_by_hand
from tests.engines.conftest import FULL
from tests.engines.engine import MAX_MODEL_LEN, RealEngine
from tests.engines.varied import KINDS, TEMPLATES, kind_of, spread, varied_requests

from inferway.errors import RequestError
from inferway.openai_api.requests import parse_chat, parse_completion
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.prepare import prepare_smollm2

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "fleet_tokens.json"

NUM_SPREAD = 60
AT_ONCE = 3  # requests per engine: one is computed, the others are parsed and rendered

# Ids of each of a request's prompts, or that it is refused as the client's fault.
Ids = list[list[int]] | str
REFUSED = "refused"


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    varied = varied_requests()
    chosen = varied if FULL else spread(varied, NUM_SPREAD)
    return [*requests_by_hand(), *chosen]


@pytest.fixture(scope="module")
def our_ids(requests: Sequence[Request], model_dir: Path) -> dict[str, Ids]:
    """By the request's name."""
    renderer, templates = Renderer(), RequestTemplates()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(model_dir)))
    prompts = ModelPrompts(renderer, key, MAX_MODEL_LEN, request_templates=templates)

    async def derive_all() -> dict[str, Ids]:
        return {request.name: await derived(prompts, request) for request in requests}

    try:
        return asyncio.run(derive_all())
    finally:
        templates.close()
        renderer.close()


def asked(request: Request) -> dict[str, Any]:
    return {**request.body, "return_token_ids": True, "max_tokens": 1}


async def derived(prompts: ModelPrompts, request: Request) -> Ids:
    raw = json.dumps(asked(request)).encode()
    try:
        body = (parse_chat if request.path == CHAT else parse_completion)(raw)
        return [ids.tolist() for ids in (await prompts.tokenize(body)).token_ids]
    except RequestError:
        return REFUSED


@pytest.fixture(scope="module")
def engines_ids(requests: Sequence[Request], engines: Sequence[RealEngine]) -> dict[str, Ids]:
    """What the engines saw, by the request's name; all work at once."""
    seen: dict[str, Ids] = {}
    left = iter(requests)

    def work(engine: RealEngine) -> None:
        for request in left:
            seen[request.name] = prompt_token_ids(engine, request)

    with ThreadPoolExecutor(AT_ONCE * len(engines)) as threads:
        list(threads.map(work, [*engines] * AT_ONCE))
    return seen


def prompt_token_ids(engine: RealEngine, request: Request) -> Ids:
    answer = client.post(engine.url + request.path, asked(request))
    if answer.status == 400:
        return REFUSED
    assert answer.status == 200, (request.name, answer.json)
    if request.path == CHAT:
        return [answer.json["prompt_token_ids"]]
    return [choice["prompt_token_ids"] for choice in answer.json["choices"]]


def test_there_are_enough_of_them_and_each_has_its_own_name(requests: list[Request]) -> None:
    assert len({request.name for request in requests}) == len(requests)
    assert len(requests) >= (300 if FULL else NUM_SPREAD) + len(requests_by_hand())
    assert {kind_of(request) for request in requests} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_our_ids_are_the_engines(
    kind: str,
    requests: list[Request],
    our_ids: dict[str, Ids],
    engines_ids: dict[str, Ids],
) -> None:
    of_kind = [request.name for request in requests if kind_of(request) == kind]

    assert {name: our_ids[name] for name in of_kind} == {
        name: engines_ids[name] for name in of_kind
    }


def test_few_are_refused(engines_ids: dict[str, Ids]) -> None:
    """A refusal proves little."""
    refused = sorted(name for name, ids in engines_ids.items() if ids == REFUSED)

    assert len(refused) <= len(engines_ids) // 20, refused


def test_all_are_equal(
    our_ids: dict[str, Ids],
    engines_ids: dict[str, Ids],
    requests: list[Request],
    engines: Sequence[RealEngine],
    say: Callable[[str], None],
) -> None:
    equal = Counter(kind_of(r) for r in requests if our_ids[r.name] == engines_ids[r.name])
    results = {
        "made by": "make fleet-full (tests/engines/test_tokens.py)",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "engine": f"vLLM {client.get(engines[0].url + '/version').json['version']} on the CPU",
        "model": f"SmolLM2-135M-Instruct; requests bring {len(TEMPLATES)} other models' templates",
        "requests": len(requests),
        "equal": equal.total(),
        "refused by both": sum(our_ids[r.name] == engines_ids[r.name] == REFUSED for r in requests),
        "tokens compared": sum(map(num_tokens, engines_ids.values())),
        "equal by kind": {
            kind: f"{equal[kind]} of {number}"
            for kind, number in Counter(map(kind_of, requests)).items()
        },
    }
    say(f"{results['equal']} of {results['requests']} equal")
    if FULL:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")

    assert results["equal"] == results["requests"]


def num_tokens(ids: Any) -> int:
    return 0 if ids == REFUSED else sum(map(len, ids))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_the_packaged_tokenizer_is_the_one_that_engines_load(whole_model: Path, name: str) -> None:
    packaged = json.loads((prepare_smollm2() / name).read_text())

    assert packaged == json.loads((whole_model / name).read_text())
