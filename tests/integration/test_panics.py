"""A library that panics costs a request its matching, and never its answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.conftest import LONG, StartFleet, until

from inferway.config import ModelSettings, ProbeSettings
from inferway_sim.prepare import prepare_smollm2

# Onig gives up on the one after so many tries of the other, and `tokenizers` panics then.
BACKTRACKS, TRIES = "(a+)+$", "a" * 40 + "b"


def panicking_model(directory: Path) -> Path:
    file = json.loads((prepare_smollm2() / "tokenizer.json").read_bytes())
    split = {"type": "Split", "pattern": {"Regex": BACKTRACKS}, "behavior": "Isolated"}
    parts = [{**split, "invert": False}, file["pre_tokenizer"]]
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    (directory / "tokenizer.json").write_text(json.dumps(file))
    return directory


async def test_a_text_on_which_the_tokenizer_panics_goes_by_load(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    models = {"smollm2": ModelSettings(tokenizer=str(panicking_model(tmp_path)))}
    fleet = await start_fleet(2, models=models, remote_render_ms=0, probe=ProbeSettings(join=False))

    async def ready() -> bool:
        return (await fleet.get("/ready")).status == 200

    await until(ready, 60)  # the tokenizer is loaded, in a helper process first
    for prompt in (TRIES, LONG):
        answer = await fleet.post("/v1/completions", {"model": "smollm2", "prompt": prompt})
        assert answer.status == 200

    assert await fleet.metric("inferway_decisions_total", reason="bad-tokenizer") == 1
    assert await fleet.metric("inferway_decisions_total", reason="kv-aware") == 1
    served = (await fleet.get("/ready")).body["models"]["smollm2"]
    assert served["reason"] == "kv-aware"
    assert served["why"].startswith("but for 1 texts on which its tokenizer has panicked")
