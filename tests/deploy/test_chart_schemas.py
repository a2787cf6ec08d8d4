"""The chart's objects keep the schemas of Kubernetes, and of those who define the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.deploy.chart import VALUE_SETS, Tree, render, value_set
from tests.deploy.custom_resources import KINDS, complaints
from tests.deploy.linters import install_linters, said

from inferway_bench.processes import Venv

pytestmark = pytest.mark.helm

KUBERNETES = ("1.29.0", "1.33.0", "1.37.0")  # the oldest that the chart allows, and newer ones


@pytest.fixture(scope="module")
def linters() -> Venv:
    return install_linters()


def check(objects: Sequence[Tree], linters: Venv, folder: Path, version: str) -> None:
    """Holds every object against its schema."""
    files = []
    for number, each in enumerate(objects):
        if each["kind"] in KINDS:
            assert complaints(each) == []
            continue
        file = folder / f"{number}.yaml"
        file.write_text(yaml.safe_dump(each))
        files.append(file)
    program = linters.executable("kubernetes-validate")
    text = said(program, "--strict", "--kubernetes-version", version, *files)
    assert text.count("passed") == len(files)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUE_SETS)
def test_objects_keep_their_schemas(linters: Venv, name: str, version: str, tmp_path: Path) -> None:
    check(value_set("4", name).objects, linters, tmp_path, version)


SWITCHES = (
    "picker.enabled",
    "networkPolicy.enabled",
    "metrics.serviceMonitor.enabled",
    "metrics.rules.enabled",
    "metrics.dashboard.enabled",
    "gateway.pdb.enabled",
    "picker.pdb.enabled",
    "picker.pool.create",
    "serviceAccount.create",
    "rbac.create",
    "metrics.annotations",
)
WORDS = {
    "gateway.autoscaling.kind": ("", "hpa", "keda"),
    "picker.autoscaling.kind": ("", "hpa", "keda"),
    "gateway.tls.secretName": ("", "tls"),
    "picker.tls.secretName": ("", "tls"),
    "gateway.adminKey.secretName": ("", "admin"),
    "gateway.apiKeys.secretName": ("", "keys"),
    "picker.httpRoute.gateway": ("", "public"),
    "picker.httpRoute.gatewayNamespace": ("", "gateways"),
    "gateway.config.admin_port": ("null", "8090"),
}
_switched = st.fixed_dictionaries(
    {
        **{name: st.sampled_from(("true", "false")) for name in SWITCHES},
        **{name: st.sampled_from(words) for name, words in WORDS.items()},
    }
)


@given(switched=_switched)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_is_switched_on_the_objects_keep_their_schemas(
    linters: Venv, tmp_path: Path, switched: dict[str, str]
) -> None:
    said_so = [f"{name}={value}" for name, value in switched.items()]
    rendered = render("4", ["--set", ",".join([*said_so, "serviceAccount.name=mine"])])

    check(rendered.objects, linters, tmp_path, KUBERNETES[-1])
    for deployment, _ in rendered.pods():
        rendered.settings(deployment)


def test_a_field_that_nobody_defines_is_found() -> None:
    [monitor, *_] = value_set("4", "everything").of("ServiceMonitor")
    changed = json.loads(json.dumps(monitor))
    changed["spec"]["endpoints"][0]["interwal"] = "5s"

    assert complaints(monitor) == []
    assert len(complaints(changed)) == 1
