"""What is read of the machine."""

from __future__ import annotations

import pytest

from inferway_bench.machine import command_line, this_machine, vllm_dtype


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 bmi2\n", "float32"),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", "auto"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", "auto"),  # an ARM
    ],
)
def test_vllm_computes_in_what_the_cpu_is_made_for(cpuinfo: str, dtype: str) -> None:
    assert vllm_dtype(cpuinfo) == dtype


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert this_machine().commit == "not a git checkout"


def test_a_stored_command_names_files_elsewhere_and_not_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = [
        "bench",
        "x",
        "--save",
        "docs",
        "x/../a/b.gz",
        "--vllm=/c/d",
        "--data",
        "/e",
        "http://f/g",
    ]
    monkeypatch.setattr("sys.argv", ["/usr/bin/inferway", *typed])

    kept = "inferway bench x --save docs b.gz --vllm=d --data e URL"
    assert command_line() == kept.split()


def test_this_machine_is_described() -> None:
    machine = this_machine()

    assert machine.cores >= 1
    assert "uvloop" in machine.packages
