"""Load generators that evaluators run first take the gateway for an engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.engines.conftest import Say
from tests.engines.engine import ENVIRONMENT

NUM_PROMPTS = 8
OUTPUT_TOKENS = 8
RUN_SECONDS = 300  # vLLM's imports alone take 20 on two idle cores


def run(command: Sequence[str]) -> str:
    """What it prints. It must succeed, and it must not ask the network."""
    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_vllm_bench_serve_completes_every_request_behind_the_gateway(
    vllm: Path, gateway: str, model_dir: Path, tmp_path: Path, say: Say
) -> None:
    command = [str(vllm), "bench", "serve", "--base-url", gateway, "--tokenizer", str(model_dir)]
    command += ["--dataset-name", "random", "--num-prompts", str(NUM_PROMPTS)]
    command += ["--random-input-len", "100", "--random-output-len", str(OUTPUT_TOKENS)]
    command += ["--max-concurrency", "2", "--save-result"]
    command += ["--result-dir", str(tmp_path), "--result-filename", "result.json"]

    printed = run(command)

    for line in printed[printed.index("Serving Benchmark Result") :].splitlines():
        say(line)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_PROMPTS, 0)
    assert result["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS


def test_guidellm_completes_every_request_behind_the_gateway(
    guidellm: Path, gateway: str, model_dir: Path, tmp_path: Path
) -> None:
    command = [str(guidellm), "run", "--disable-progress"]
    command += ["--backend", f"kind=openai_http,target={gateway}"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={NUM_PROMPTS}"]
    command += [
        "--data",
        f"kind=synthetic_text,prompt_tokens=100,output_tokens={OUTPUT_TOKENS}",
    ]
    command += ["--tokenizer", f"kind=hf_auto,model={model_dir}"]
    command += ["--output", f"kind=json,path={tmp_path / 'result.json'}"]

    run(command)

    [benchmark] = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    # guidellm may break off what is still under way when it has sent as many as it was told: it
    # counts that one as incomplete, or not at all
    assert totals["errored"] == 0
    assert NUM_PROMPTS - 1 <= totals["successful"] <= NUM_PROMPTS
