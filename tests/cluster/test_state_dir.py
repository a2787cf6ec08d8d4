"""What the hub knows of engines' caches is there after its restart, and workers have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.processes import place
from tests.cluster.serving import LONG, Serving
from tests.engines.waiting import wait_until


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_of_a_hub_that_was_started_again_know_what_the_one_before_it_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--state-dir", str(tmp_path / "state"), "--policy", "kv-aware")
    # a replay brings the last batch alone
    with place(
        tmp_path, monkeypatch, *flags, engine_flags=("--kv-events-replay-queue-size", "1")
    ) as at:
        before = at.start()
        before.chat(LONG)
        wait_until(lambda: matched(before) > 3, "it is known", before.gateway.log_text)
        assert before.gateway.stop() == 0

        again = at.start()

        wait_until(
            lambda: again.metric("inferway_snapshot_proof", 'proof="proven"') == 1,
            "the engine has proven it",
            again.gateway.log_text,
        )
        assert again.metric("inferway_snapshot_loaded_blocks") > 0
        wait_until(lambda: matched(again) > 3, "workers know it", again.gateway.log_text)
        assert again.gateway.stop() == 0


def matched(gateway: Serving) -> int:
    return int(gateway.insist(LONG).headers["x-inferway-matched-blocks"])
