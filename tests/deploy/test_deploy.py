"""What is in deploy/ fits together, and fits the program. Envoy's files run in tests/envoy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferway.config import ServeSettings
from inferway_llmd.cli import epp, picker_settings
from inferway_llmd.ext_proc.health import LIVENESS, READINESS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes" / "picker"

Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    """Kind -> the one object of it, of all that kustomize applies."""
    resources = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    found = [m for name in resources for m in yaml.safe_load_all((KUBERNETES / name).read_text())]
    by_kind = {manifest["kind"]: manifest for manifest in found}
    assert len(by_kind) == len(found)
    return by_kind


def pod() -> Manifest:
    spec: Manifest = manifests()["Deployment"]["spec"]["template"]["spec"]
    return spec


def container() -> Manifest:
    found: Manifest = pod()["containers"][0]
    return found


def settings() -> ServeSettings:
    """What the Deployment's arguments come to."""
    assert container()["command"] == ["inferway", "epp"]
    flags = dict(epp.make_context("epp", list(container()["args"])).params)
    found, ignored = picker_settings(flags.pop("config"), flags)
    assert ignored == []
    return found


def instructions(name: str) -> list[str]:
    text = (DEPLOY / "Containerfile").read_text()
    return re.findall(rf"^{name} (.+)$", text, re.MULTILINE)


def test_every_manifest_is_applied() -> None:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]

    files = {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml"}

    assert set(listed) == files


def test_ports_are_those_that_the_arguments_open() -> None:
    told = settings()
    opened = {
        "grpc": told.picker.grpc_port,
        "grpc-health": told.picker.grpc_health_port,
        "metrics": told.port,
    }

    assert {port["name"]: port["containerPort"] for port in container()["ports"]} == opened
    for port in manifests()["Service"]["spec"]["ports"]:
        assert port["port"] == opened[port["targetPort"]]
    assert {str(port) for port in opened.values()} <= set(instructions("EXPOSE")[0].split())


@pytest.mark.parametrize(("probe", "names"), [("liveness", (LIVENESS,)), ("readiness", READINESS)])
def test_probes_ask_what_is_answered_where_it_is(probe: str, names: tuple[str, ...]) -> None:
    asked = container()[f"{probe}Probe"]["grpc"]

    assert asked["port"] == settings().picker.grpc_health_port
    assert asked["service"] in names


def test_the_pool_is_the_one_that_is_followed_and_asks_us() -> None:
    pool, told = manifests()["InferencePool"], settings().discovery.kubernetes
    assert told is not None

    assert told.pool == pool["metadata"]["name"]
    assert pool["apiVersion"].partition("/")[0] == told.group
    reference = pool["spec"]["endpointPickerRef"]
    assert reference["name"] == manifests()["Service"]["metadata"]["name"]
    assert reference["port"]["number"] == settings().picker.grpc_port


def test_the_route_leads_to_the_pool() -> None:
    [backend] = manifests()["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    pool = manifests()["InferencePool"]

    assert backend["name"] == pool["metadata"]["name"]
    assert backend["kind"] == pool["kind"]
    assert backend["group"] == pool["apiVersion"].partition("/")[0]


def test_selectors_find_the_pods_and_no_engine_is_a_picker() -> None:
    deployment = manifests()["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    engines = manifests()["InferencePool"]["spec"]["selector"]["matchLabels"]

    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert manifests()["Service"]["spec"]["selector"].items() <= labels.items()
    assert not engines.items() <= labels.items()


def test_the_pods_account_may_read_what_is_followed_and_change_nothing() -> None:
    account = manifests()["ServiceAccount"]["metadata"]["name"]
    role, binding = manifests()["Role"], manifests()["RoleBinding"]
    may = {(g, r) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"]}

    assert pod()["serviceAccountName"] == account
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
    assert may >= {
        ("", "pods"),
        ("inference.networking.k8s.io", "inferencepools"),
        *(
            (group, kind)
            for group in ("inference.networking.x-k8s.io", "llm-d.ai")
            for kind in ("inferenceobjectives", "inferencemodelrewrites")
        ),
    }


def test_answers_under_way_have_their_time_at_the_end() -> None:
    assert settings().timeouts.drain < pod()["terminationGracePeriodSeconds"]


def test_the_image_runs_as_the_pod_does() -> None:
    user = pod()["securityContext"]["runAsUser"]

    assert instructions("USER") == [str(user)]
    assert f"--uid {user}" in "".join(instructions("RUN"))


def test_the_image_has_what_it_is_built_from() -> None:
    copied = [line.split()[:-1] for line in instructions("COPY") if not line.startswith("--from")]

    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []


def test_the_images_command_says_how_the_gateway_is_called() -> None:
    [program] = json.loads(instructions("ENTRYPOINT")[0])
    command = json.loads(instructions("CMD")[0])

    said = subprocess.run(
        [Path(sys.executable).with_name(program), *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert said.startswith("Usage: inferway serve")


def test_both_envoys_ask_the_pickers_port_of_everybody() -> None:
    for name in ("envoy.yaml", "envoy-override-host.yaml"):
        config = yaml.safe_load((DEPLOY / "standalone" / name).read_text())
        clusters = {c["name"]: c for c in config["static_resources"]["clusters"]}
        [locality] = clusters["picker"]["load_assignment"]["endpoints"]
        address = locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]

        assert address["port_value"] == settings().picker.grpc_port


@pytest.mark.parametrize("name", ["envoy.yaml", "envoy-override-host.yaml"])
def test_the_commands_in_envoys_files_are_valid(name: str) -> None:
    text = (DEPLOY / "standalone" / name).read_text()
    [command] = re.findall(r"^#   inferway epp (.+)$", text, re.MULTILINE)

    flags = dict(epp.make_context("epp", command.split()).params)
    told, ignored = picker_settings(flags.pop("config"), flags)

    assert not told.picker.secure
    assert ignored == []
    assert ("override" in name) == (told.picker.fallbacks > 0)
