"""Writes tests/golden/vllm/responses.json anew: what a real engine answers at /v1/responses.

INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.record_responses
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines import client
from tests.engines.conftest import CACHE
from tests.engines.engine import MODEL, RealEngine, wait_until_ready

from inferway_sim.prepare import prepare_smollm2

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm" / "responses.json"


def main() -> None:
    vllm = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "vllm"
    with TemporaryDirectory() as directory:
        log = Path(directory) / "engine.log"
        engine = RealEngine(vllm, prepare_smollm2(weights=True), log, CACHE)
        try:
            engine.start()
            wait_until_ready([engine], print)
            asked = {"model": MODEL, "input": "Say hello.", "temperature": 0}
            url = f"{engine.url}/v1/responses"
            whole = client.post(url, {**asked, "max_output_tokens": 4}).json
            body = {**asked, "max_output_tokens": 3, "stream": True}
            with client.open_stream(url, body) as stream:
                events = stream.read().decode()
        finally:
            engine.kill()
    GOLDEN.write_text(json.dumps({"whole": whole, "stream": events}, indent=1) + "\n")


if __name__ == "__main__":
    main()
