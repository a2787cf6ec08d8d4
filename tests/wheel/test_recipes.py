"""Recipes of documents that install something, typed as they stand in a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.reader import ROOT, Block, blocks
from tests.wheel.conftest import BUILT_FROM, PACKAGES, succeed


def recipe(document: str, begin: str) -> Block:
    """The first block of the document that begins so."""
    return next(b for b in blocks(ROOT / document) if b.text.startswith(begin))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What distributions are made of, and `deploy`."""
    directory = tmp_path_factory.mktemp("clone")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in PACKAGES.values():
        there = directory / folder.relative_to(ROOT)
        there.mkdir(exist_ok=True)
        for name in BUILT_FROM:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, there / name, ignore=leave)
            else:
                shutil.copy(folder / name, there)
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    return directory


def typed(text: str, checkout: Path, variables: Mapping[str, str]) -> str:
    """What the text prints in a shell. Fails the test with that if it does not succeed."""
    without_ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=checkout,
        env={**without_ours, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}"
    return done.stdout


def test_readmes_recipe_and_the_benchmarks_beside_it(checkout: Path, tmp_path: Path) -> None:
    """In an empty environment. An extra is then added as documents say."""
    succeed("python3", "-m", "venv", str(tmp_path / "venv"))
    bin_first = {"PATH": f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    typed(recipe("README.md", "pip install").text, checkout, bin_first)
    alone = typed("inferway --version; inferway demo --exit", checkout, bin_first)
    typed(recipe("docs/load.md", "pip install").text, checkout, bin_first)
    with_bench = typed("inferway bench --help", checkout, bin_first)
    extra = typed("pip install --dry-run 'inferway[redis]'", checkout, bin_first)

    assert "Traceback" not in alone
    assert "Measure" in with_bench
    assert "Would install redis" in extra


def test_systemds_recipe(checkout: Path, tmp_path: Path) -> None:
    """Without root: `sudo` runs what it is given, `systemctl` notes it, and /opt and /etc are
    elsewhere."""
    (tmp_path / "bin").mkdir()
    for name, does in {"sudo": 'exec "$@"', "systemctl": f'echo "$@" >> {tmp_path}/told'}.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    places = {"/opt/inferway": f"{tmp_path}/opt", " /etc/": f" {tmp_path}/etc/"}
    text = recipe("docs/deploy.md", "sudo ").text
    for place, elsewhere in places.items():
        assert place in text
        text = text.replace(place, elsewhere)

    typed(text, checkout, {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"})

    settings = tmp_path / "etc" / "inferway" / "inferway.yaml"
    succeed(f"{tmp_path}/opt/bin/inferway", "config", "check", str(settings))
    unit = (tmp_path / "etc" / "systemd" / "system" / "inferway.service").read_text()
    starts = "/opt/inferway/bin/inferway serve --config /etc/inferway/inferway.yaml"
    assert f"ExecStart={starts}\n" in unit
    assert (tmp_path / "told").read_text() == "daemon-reload\nenable --now inferway\n"
