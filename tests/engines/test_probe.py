"""An engine started with another `--chat-template` is found out; given it too, we agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, user
from tests.engines.conftest import CACHE, Say, serve
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.program import Program
from tests.engines.waiting import wait_until

# SmolLM2's own but for its default system prompt, and it shows tools.
OTHER = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ (message['content'] or '') + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SCORE = "/score_chat_completions"
BODY = {"model": MODEL, "messages": [user("What is the capital of France? " * 20)], "max_tokens": 1}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("templates") / "other.jinja"
    path.write_text(OTHER)
    return path


@pytest.fixture(scope="module")
def other(
    vllm: Path, model_dir: Path, template: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[RealEngine]:
    flags = (*CACHE, "--chat-template", str(template))
    engine = RealEngine(vllm, model_dir, new_log("other-template"), flags)
    try:
        engine.start()
        wait_until_ready([engine], say)
        yield engine
    finally:
        engine.kill()


def decisions(gateway: Program) -> dict[str, float]:
    """So many requests were counted under each reason."""
    prefix = "inferway_decisions_total{reason="
    lines = client.get(f"{gateway.url}/metrics").raw.decode().splitlines()
    pairs = [line.removeprefix(prefix).split("} ") for line in lines if line.startswith(prefix)]
    return {reason.strip('"'): float(number) for reason, number in pairs}


def one_more_is_compared(gateway: Program) -> bool:
    """Sends one; it is left out if the engine, or the probe, is busy."""
    assert client.post(gateway.url + CHAT, BODY).status == 200
    page = client.get(f"{gateway.url}/metrics").raw.decode()
    return 'inferway_probes_total{occasion="live",result="agrees"}' in page


def test_engines_that_render_as_their_files_say_agree(gateway: str) -> None:
    found = client.get(f"{gateway}/ready").json["engines"]

    assert [engine["probes"] for engine in found] == [{MODEL: {"state": "agrees", "why": ""}}] * 2


def test_another_chat_template_is_found_named_and_routed_around(
    other: RealEngine, new_log: Callable[[str], Path]
) -> None:
    with serve([other], new_log("unfaithful"), reason="unfaithful") as gateway:
        answers = [client.post(gateway.url + CHAT, BODY) for _ in range(2)]
        counted = decisions(gateway)
        why = client.get(f"{gateway.url}/ready").json["models"][MODEL]["why"]

    lines = [line for line in gateway.log_text().splitlines() if "goes by load only" in line]
    assert [answer.status for answer in answers] == [200, 200]
    assert counted == {"unfaithful": 2}
    assert len(lines) == 1
    assert other.name in lines[0]
    assert "likely flag of the engine: --chat-template; fix: give what it was given" in lines[0]
    assert "You are a helpful AI assistant" in lines[0]
    assert f"--chat-template {MODEL}=FILE" in why


def test_with_the_engines_template_the_model_is_kv_aware(
    other: RealEngine, template: Path, new_log: Callable[[str], Path], tmp_path: Path
) -> None:
    config = tmp_path / "inferway.yaml"
    config.write_text("probe: {one_in: 1}\nengines: []\n")
    flags = ("--config", str(config), "--chat-template", f"{MODEL}={template}")
    with serve([other], new_log("faithful"), *flags) as gateway:
        first = client.post(gateway.url + CHAT, BODY)
        held = first.json["usage"]["prompt_tokens"] // BLOCK_SIZE
        wait_until(
            lambda: client.post(gateway.url + SCORE, BODY).json["pod_scores"][other.name] == held,
            "the gateway knows what the engine holds",
        )
        second = client.post(gateway.url + CHAT, BODY)
        wait_until(lambda: one_more_is_compared(gateway), "live prompts are compared")
        counted = decisions(gateway)

    assert set(counted) == {"kv-aware"}
    assert int(str(second.headers["x-inferway-matched-blocks"])) > 0
    assert second.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
