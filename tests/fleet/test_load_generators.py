"""`vllm bench serve`, which most evaluators run first, takes the gateway for an engine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.fleet.conftest import Say
from tests.fleet.engine import ENVIRONMENT

NUM_PROMPTS = 8
OUTPUT_TOKENS = 8
BENCH_SECONDS = 300  # vLLM's imports alone take 20 on two idle cores


def test_vllm_bench_serve_completes_every_request_behind_the_gateway(
    vllm: Path, gateway: str, model_dir: Path, tmp_path: Path, say: Say
) -> None:
    command = [str(vllm), "bench", "serve", "--base-url", gateway, "--tokenizer", str(model_dir)]
    command += ["--dataset-name", "random", "--num-prompts", str(NUM_PROMPTS)]
    command += ["--random-input-len", "100", "--random-output-len", str(OUTPUT_TOKENS)]
    command += ["--max-concurrency", "2", "--save-result"]
    command += ["--result-dir", str(tmp_path), "--result-filename", "result.json"]

    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=BENCH_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for line in done.stdout[done.stdout.index("Serving Benchmark Result") :].splitlines():
        say(line)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_PROMPTS, 0)
    assert result["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS
