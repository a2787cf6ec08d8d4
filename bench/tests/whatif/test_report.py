"""`inferway what-if` on files: what it prints, and what it says of files that are not whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from bench.tests.whatif.recordings import FLEET, TRUE, drawn, recording, written
from click.testing import CliRunner
from tests.test_docs import documented_flags, flags

from inferway_bench.policies.requests import Workload
from inferway_bench.rows import Run, read_run
from inferway_bench.whatif.replay import as_replay, part_of, read_recording
from inferway_bench.whatif.report import what_if
from inferway_bench.whatif.run import recorded_fleet


@pytest.fixture(scope="module")
def workload() -> Workload:
    return drawn()


@pytest.fixture
def directory(tmp_path: Path, workload: Workload) -> Path:
    written(recording(workload), tmp_path)
    return tmp_path


def ran(directory: Path, *words: str) -> Run:
    options = ("--json", "--seeds", "2", "--processes", "1")
    done = CliRunner().invoke(what_if, [str(directory), *options, *words])
    assert done.exit_code == 0, done.output
    return read_run(done.stdout_bytes)


def refused(words: Sequence[str]) -> str:
    done = CliRunner().invoke(what_if, words)
    assert done.exit_code == 1
    return done.output


@pytest.mark.slow
def test_what_was_measured_stands_beside_its_replay_and_what_is_asked(directory: Path) -> None:
    run = ran(directory, "--engines", "2")

    cases = {str(row.keys["case"]): row for row in run.select("cases")}
    assert list(cases) == [
        "measured", "replayed (expected-ttft)", "the model is off by", "2 engines instead of 4",
    ]  # fmt: skip
    measured, replayed, off, fewer = cases.values()
    assert replayed.median("ttft_p90") == pytest.approx(measured.median("ttft_p90"), rel=0.1)
    assert str(off.values["ttft_p90"]).endswith("%")
    assert fewer.median("cost") == pytest.approx(measured.median("cost") / 2)
    assert any("with 2 engines instead of 4 p50" in line for line in run.about)


@pytest.mark.slow
def test_the_fewest_engines_are_said_and_drawn(directory: Path, tmp_path: Path) -> None:
    options = ("--seeds", "2", "--processes", "1", "--size", "p90<10s", "--plot", str(tmp_path))
    done = CliRunner().invoke(what_if, [str(directory), *options])

    assert done.exit_code == 0, done.output
    assert "hold p90 ≤ 10 s" in done.output
    assert "| is 10 s" in done.output
    assert b"engines" in (tmp_path / "what_if_recorded.svg").read_bytes()


def test_a_damaged_file_is_read_up_to_the_damage_and_it_is_said(
    directory: Path, workload: Workload
) -> None:
    (file,) = directory.iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    recorded = read_recording(directory)

    assert 50 < len(recorded.requests) < len(workload.requests)
    assert any("what is before that is replayed" in note for note in part_of(recorded).notes)


def test_costs_that_were_learned_are_taken_where_they_replay_better(
    tmp_path: Path, workload: Workload
) -> None:
    # all come within seconds: next to no request has an engine to itself
    fleet = msgspec.structs.replace(FLEET, num_engines=1)
    requests = [msgspec.structs.replace(each, follows=None) for each in workload.requests]
    burst = Workload("", "", workload.block_tokens, requests)
    costs = {
        "ttft_fixed": (TRUE.request_seconds + TRUE.step_seconds) * 1e3,
        "ttft_own_token": TRUE.prefill_seconds * 1e3,
        "tpot_fixed": TRUE.step_seconds * 1e3,
        "tpot_running_request": TRUE.decode_seconds * 1e3,
    }
    written(recording(burst, fleet=fleet, rate=400.0), tmp_path, costs)

    found = recorded_fleet(as_replay(part_of(read_recording(tmp_path))))

    assert "as expected-ttft had learned them" in found.how
    assert found.spec.engine.prefill_seconds == pytest.approx(TRUE.prefill_seconds, rel=1e-3)


def test_a_folder_without_a_recording_is_refused_with_the_cure(tmp_path: Path) -> None:
    assert "inferway serve --record DIR writes them" in refused([str(tmp_path)])
    assert "inferway serve --record DIR writes them" in refused([str(tmp_path / "nowhere")])


def test_an_slo_is_read_before_anything_else(tmp_path: Path) -> None:
    assert "as p90<1s,p99<3s" in refused([str(tmp_path), "--size", "fast"])


def test_the_flags_are_exactly_the_documented_ones() -> None:
    documented = documented_flags("inferway what-if") | documented_flags("inferway bench")

    assert documented == flags(what_if)
