"""The ways to run `inferway serve` in deploy/: Kubernetes, compose, systemd."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.program import Program
from tests.integration.recorders import Recorder, in_front_of

from inferway.cli.serve import serve
from inferway.config import ServeSettings, load_settings
from inferway_sim.cli.simulate import simulate

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes" / "serve"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())

Tree = dict[str, Any]


def manifests() -> dict[str, Tree]:
    """Kind -> the one object of it, of all that kustomize applies."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    found = [m for name in listed for m in yaml.safe_load_all((KUBERNETES / name).read_text())]
    return {manifest["kind"]: manifest for manifest in found}


def pod() -> Tree:
    spec: Tree = manifests()["Deployment"]["spec"]["template"]["spec"]
    return spec


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / "inferway.service")
    return parser["Service"]


def config_of(command: list[str], folder: Path) -> ServeSettings:
    """What `serve` makes of the flags, with the file of that name in `folder`."""
    assert command[0] == "serve"
    words = [word for argument in command[1:] for word in argument.split("=", 1)]
    name = Path(words[words.index("--config") + 1]).name
    words[words.index("--config") + 1] = str(folder / name)
    flags = serve.make_context("serve", words).params
    return load_settings(flags["config"], {})


def test_the_pods_settings_and_its_ports_agree() -> None:
    [container] = pod()["containers"]
    told = config_of([*container["command"][1:], *container["args"]], KUBERNETES)
    annotations = manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert container["ports"] == [{"name": "http", "containerPort": told.port}]
    assert annotations["prometheus.io/port"] == str(told.port)
    assert [port["targetPort"] for port in manifests()["Service"]["spec"]["ports"]] == ["http"]
    assert told.host == "0.0.0.0"
    assert told.timeouts.drain + 5 < pod()["terminationGracePeriodSeconds"]


async def test_probes_ask_what_the_gateway_answers() -> None:
    [container] = pod()["containers"]
    probes = [value["httpGet"]["path"] for key, value in container.items() if key.endswith("Probe")]

    async with in_front_of(Recorder()) as front:
        statuses = {path: (await front.ask(path, method="GET"))[0] for path in probes}

    assert statuses.keys() == {"/health", "/ready"}
    assert set(statuses.values()) == {200}


def test_the_pod_mounts_the_settings_that_are_generated() -> None:
    made = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    volumes = {v["name"]: v for v in pod()["volumes"]}
    mounted = {m["name"]: m["mountPath"] for m in pod()["containers"][0]["volumeMounts"]}

    assert [m["name"] for m in made] == [volumes["config"]["configMap"]["name"]]
    assert made[0]["files"] == ["inferway.yaml"]
    assert pod()["containers"][0]["args"] == [f"--config={mounted['config']}/inferway.yaml"]


def test_the_account_may_read_pods_and_nothing_else() -> None:
    account = manifests()["ServiceAccount"]["metadata"]["name"]

    assert pod()["serviceAccountName"] == account
    assert [s["name"] for s in manifests()["RoleBinding"]["subjects"]] == [account]
    assert manifests()["RoleBinding"]["roleRef"]["name"] == manifests()["Role"]["metadata"]["name"]
    assert manifests()["Role"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]


def test_selectors_find_the_gateways_pods_and_no_engine_is_a_gateway() -> None:
    spec = manifests()["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    followed = load_settings(KUBERNETES / "inferway.yaml", {}).discovery.kubernetes
    assert followed is not None

    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert manifests()["Service"]["spec"]["selector"].items() <= labels.items()
    assert (
        yaml.safe_load((KUBERNETES / "inferway.yaml").read_text())["discovery"]["kubernetes"][
            "selector"
        ]
        .items()
        .isdisjoint(labels.items())
    )


def mounts(services: Tree) -> Iterator[str]:
    """What of this machine is mounted into containers."""
    for service in services.values():
        for volume in service.get("volumes", ()):
            if volume.startswith("."):
                yield volume.split(":")[0]


def test_everything_that_compose_mounts_is_there() -> None:
    found = list(mounts(COMPOSE["services"]))

    assert found
    assert [path for path in found if not (DEPLOY / path).exists()] == []


@pytest.mark.parametrize("profile", ["demo", "gpu", "cpu"])
def test_each_profile_has_the_engines_that_the_gateway_asks(profile: str) -> None:
    told = config_of(COMPOSE["services"]["gateway"]["command"], DEPLOY / "compose")
    engines = [s for s in COMPOSE["services"].values() if s.get("profiles") == [profile]]

    known = {
        f"http://{alias}:8000" for s in engines for alias in s["networks"]["default"]["aliases"]
    }
    assert {engine.url for engine in told.engines} == known
    assert len(engines) == len(known)
    assert all("--port=8000" in service["command"] for service in engines)


def test_all_but_engines_run_with_any_profile() -> None:
    always = {name for name, s in COMPOSE["services"].items() if "profiles" not in s}
    told = config_of(COMPOSE["services"]["gateway"]["command"], DEPLOY / "compose")

    assert always == {"gateway", "prometheus", "grafana"}
    assert COMPOSE["services"]["gateway"]["ports"] == [f"127.0.0.1:8080:{told.port}"]


def test_simulated_engines_of_compose_listen_to_the_other_containers() -> None:
    for name in ("demo-1", "demo-2"):
        words = COMPOSE["services"][name]["command"]
        assert words[0] == "simulate"
        flags = simulate.make_context("simulate", list(words[1:])).params
        assert (flags["host"], flags["port"]) == ("0.0.0.0", 8000)


@pytest.mark.parametrize("name", ["vllm", "simulated"])
def test_engines_in_kubernetes_have_the_labels_and_the_port_that_are_followed(name: str) -> None:
    engines = yaml.safe_load((DEPLOY / f"kubernetes/engines/{name}.yaml").read_text())["spec"]
    followed = load_settings(KUBERNETES / "inferway.yaml", {}).discovery.kubernetes
    assert followed is not None

    [container] = engines["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert engines["template"]["metadata"]["labels"] == followed.selector
    assert engines["selector"]["matchLabels"] == followed.selector
    assert [ports["http"]] == followed.ports
    words = " ".join(container["args"])
    assert f"--port={ports['http']}" in words
    assert f"tcp://*:{ports['events']}" in words
    assert f"tcp://*:{ports['replay']}" in words


def test_the_simulators_flags_in_kubernetes_are_its_own() -> None:
    engines = yaml.safe_load((DEPLOY / "kubernetes/engines/simulated.yaml").read_text())
    [container] = engines["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["inferway", "simulate"]

    flags = simulate.make_context("simulate", list(container["args"])).params

    assert (flags["host"], flags["port"]) == ("0.0.0.0", 8000)


def test_prometheus_scrapes_what_is_there_and_grafana_asks_it() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    targets = {
        t for job in scraped["scrape_configs"] for s in job["static_configs"] for t in s["targets"]
    }
    sources = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )

    assert targets == {"gateway:8080", "engine-1:8000", "engine-2:8000"}
    assert [(DEPLOY / "prometheus" / name).exists() for name in scraped["rule_files"]] == [True]
    assert [source["url"] for source in sources["datasources"]] == ["http://prometheus:9090"]


@pytest.mark.slow
def test_the_commands_of_compose_run_and_the_images_health_check_sees_it(tmp_path: Path) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    [check] = re.findall(r"^HEALTHCHECK .*? CMD (\[.+\])$", text, re.MULTILINE)
    command = [sys.executable, *json.loads(check)[1:]]
    settings = (DEPLOY / "compose/gateway.yaml").read_text()

    with ExitStack() as stack:
        for place in (1, 2):
            name = f"engine-{place}"
            words = [
                w
                for w in COMPOSE["services"][f"demo-{place}"]["command"]
                if not w.startswith(FIXED)
            ]
            engine = stack.enter_context(Program(words, tmp_path / f"{name}.log"))
            settings = settings.replace(f"http://{name}:8000", engine.url)
        (tmp_path / "gateway.yaml").write_text(settings)
        arguments = ["serve", "--config", str(tmp_path / "gateway.yaml"), "--host", "127.0.0.1"]
        gateway = stack.enter_context(Program(arguments, tmp_path / "gateway.log"))
        port = gateway.url.rpartition(":")[2]
        while_up = subprocess.run(command, env={"INFERWAY_PORT": port}, check=False).returncode
        stopped = gateway.stop()
        after = subprocess.run(
            command, env={"INFERWAY_PORT": port}, stderr=subprocess.DEVNULL, check=False
        ).returncode

    assert (while_up, stopped, after) == (0, 0, 1)


FIXED = ("--host", "--port", "--zmq", "--kv-events-replay-endpoint")  # a container's own


def test_the_service_starts_what_there_is_and_gives_answers_their_time() -> None:
    program, *command = unit()["ExecStart"].split()
    told = config_of([*command], DEPLOY / "systemd")

    assert Path(program).name == "inferway"
    assert told.timeouts.drain < int(unit()["TimeoutStopSec"])
    assert unit()["KillMode"] == "mixed"  # not each worker too, whose second signal cuts answers
    assert told.state_dir == f"/var/lib/{unit()['StateDirectory']}"
