"""What others' programs say of the files in deploy/; `make test-tools`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from tests.deploy.linters import install_linters, said

from inferway_bench.processes import Venv

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NO_SCHEMA = ("kustomization.yaml", "inferencepool.yaml", "httproute.yaml", "inferway.yaml")
MANIFESTS = [path for path in DEPLOY.glob("kubernetes/*/*.yaml") if path.name not in NO_SCHEMA]

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
def linters() -> Venv:
    return install_linters()


def test_hadolint_finds_nothing_in_the_containerfile(linters: Venv) -> None:
    assert said(linters.executable("hadolint"), DEPLOY / "Containerfile") == ""


def test_the_compose_file_keeps_the_compose_specification(linters: Venv, tmp_path: Path) -> None:
    merged = tmp_path / "compose.yaml"  # without merge keys, which compose resolves before it looks
    merged.write_text(yaml.safe_dump(yaml.safe_load((DEPLOY / merged.name).read_text())))
    check = linters.executable("check-jsonschema")

    assert "ok" in said(check, "--builtin-schema", "vendor.compose-spec", merged)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_manifests_keep_the_schemas_of_kubernetes(linters: Venv, path: Path) -> None:
    text = said(linters.executable("kubernetes-validate"), "--strict", path)

    assert "passed" in text
    assert "WARN" not in text


def test_prometheus_takes_its_configuration_and_the_alert_rules() -> None:
    assert "SUCCESS" in said("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yaml")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/inferway.service").read_text()
    here = Path(sys.executable).parent  # the program must be there
    (tmp_path / "inferway.service").write_text(unit.replace("/opt/inferway/bin", str(here)))

    assert said("systemd-analyze", "verify", "--man=no", tmp_path / "inferway.service") == ""
