"""With a port for admins, theirs and the metrics are there, and nowhere else."""

from __future__ import annotations

import pytest
from tests.integration.recorders import Recorder, in_front_of

KEY = {"authorization": "Bearer s3cret"}
ADMINS = {
    "/metrics": "GET",
    "/admin/engines": "GET",
    "/admin/engines/e0/drain": "POST",
    "/query": "POST",
    "/score_completions": "POST",
    "/score_chat_completions": "POST",
    "/v1/load_lora_adapter": "POST",
}


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")


@pytest.mark.parametrize("path", ADMINS)
async def test_a_path_for_admins_is_there_alone(path: str) -> None:
    method = ADMINS[path]
    async with in_front_of(Recorder(), admin_port=0, admin_key_env="ADMIN_KEY") as front:
        here = await front.ask(path, b"{}", method=method, **KEY)
        there = await front.ask(front.admin_url + path, b"{}", method=method, **KEY)
        guess = await front.ask(front.admin_url + path, b"{}", method=method)

    assert here[0] == 404
    assert there[0] in (200, 400)  # 400: the body is none for it
    assert guess[0] == (200 if path == "/metrics" else 401)


async def test_nothing_is_forwarded_from_it() -> None:
    engine = Recorder()
    async with in_front_of(engine, admin_port=0) as front:
        for path in ("/v1/chat/completions", "/tokenize", "/v1/models"):
            assert (await front.ask(front.admin_url + path, b"{}"))[0] == 404
        states = [
            (await front.ask(url + path, method="GET"))[0]
            for url in (front.url, front.admin_url)
            for path in ("/health", "/ready")
        ]

    assert engine.seen == []
    assert states == [200] * 4


async def test_the_metrics_there_count_what_happens_here() -> None:
    async with in_front_of(Recorder(), admin_port=0) as front:
        await front.ask("/tokenize", b'{"model": "m"}')
        _, _, page = await front.ask(front.admin_url + "/metrics", method="GET")

    assert b'inferway_decisions_total{reason="unread"} 1.0' in page
    assert b'inferway_http_answers_total{status="200"} 1.0' in page


async def test_what_it_says_of_known_paths_names_its_own_alone() -> None:
    async with in_front_of(Recorder(), admin_port=0) as front:
        _, _, here = await front.ask("/", method="GET")
        _, _, there = await front.ask(front.admin_url + "/", method="GET")

    assert b"/tokenize" in here
    assert b"/query" not in here
    assert b"/query" in there
    assert b"/tokenize" not in there
