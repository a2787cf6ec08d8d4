"""The examples in docs/scores.md do what they are there to show."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartFleet, simulated, until

from inferway.config import EngineSettings

ROOT = Path(__file__).parents[2]
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def block(document: str, language: str, having: str) -> str:
    """The one block of code in a document that has these words."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)
    (found,) = [text for written_in, text in blocks if written_in == language and having in text]
    return str(found)


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_the_indexers_example_says_who_holds_the_chat(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(served_model_names=(MODEL,))] * 2)
    code = block("docs/scores.md", "python", "Indexer")
    for port, engine in zip((8101, 8102), fleet.engines, strict=True):
        code = code.replace(f"http://127.0.0.1:{port}", engine.url)
    assert (await fleet.chat(QUESTION["content"], model=MODEL)).status == 200

    printed = await run(sys.executable, "-W", "error", "-c", code)

    assert re.search(r"127\.0\.0\.1:\d+ 32 of 37 tokens, exact", printed), printed


@pytest.mark.tools  # curl
async def test_the_querys_example_is_answered_as_shown(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, by_hand=lambda e: EngineSettings(url=e.url, name="pod-1"))
    command = block("docs/scores.md", "sh", "/query").replace("http://127.0.0.1:8080", fleet.url)
    command = command.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2")
    shown = json.loads(block("docs/scores.md", "json", "instances"))
    prompt = list(range(1, 19))
    await fleet.post("/v1/completions", {"model": "smollm2", "prompt": prompt, "max_tokens": 1})

    async def asked() -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await run("sh", "-c", command))
        return answer

    async def known() -> bool:
        return bool((await asked())["pod-1"]["longest_matched"])

    await until(known)
    answer = await asked()
    assert {"instances": answer["instances"]} == shown
    assert {**answer["instances"], "default": shown["instances"], **shown} == answer
