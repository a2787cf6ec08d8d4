"""The chart as two versions of Helm render it: what is made fits together, and fits the program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.deploy.chart import (
    CHART,
    VALUE_SETS,
    Rendered,
    Tree,
    render,
    run,
    said_of,
    value_set,
    with_values,
)

from inferway.config import peers_port
from inferway_llmd.ext_proc.health import LIVENESS, READINESS

pytestmark = pytest.mark.helm

MAJORS = ("4", "3")
READS = ["get", "list", "watch"]


@pytest.fixture(params=[(major, name) for major in MAJORS for name in VALUE_SETS], ids="-".join)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return value_set(*request.param)


def labels_of(deployment: Tree) -> Tree:
    labels: Tree = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def ports_of(pod: Tree) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}


def selected(rendered: Rendered, labels: Tree) -> list[Tree]:
    """The Deployments whose pods have these labels."""
    return [d for d, _ in rendered.pods() if labels.items() <= labels_of(d).items()]


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_finds_nothing_to_say_of_the_chart(major: str, name: str) -> None:
    done = run(major, "lint", "--strict", CHART, *said_of(CHART / "ci" / f"{name}-values.yaml"))

    assert done.returncode == 0, done.stdout
    assert re.findall(r"\[(WARNING|ERROR)\]", done.stdout) == []


@pytest.mark.parametrize("name", VALUE_SETS)
def test_both_versions_render_the_same(name: str) -> None:
    first, second = (value_set(major, name).objects for major in MAJORS)

    assert sorted(map(json.dumps, first)) == sorted(map(json.dumps, second))


@pytest.mark.parametrize("major", MAJORS)
def test_a_packed_chart_renders_as_its_folder_does(major: str, tmp_path: Path) -> None:
    packed = run(major, "package", CHART, "--destination", tmp_path)
    [archive] = tmp_path.glob("*.tgz")
    values = said_of(CHART / "ci" / "everything-values.yaml")

    assert packed.returncode == 0, packed.stderr
    assert render(major, values, chart=archive) == value_set(major, "everything")


def test_each_object_has_a_name_of_its_own_and_a_namespace(rendered: Rendered) -> None:
    names = [
        (each["kind"], each["metadata"]["namespace"], each["metadata"]["name"])
        for each in rendered.objects
    ]

    assert len(set(names)) == len(names)
    assert {len(name) <= 63 for _, _, name in names} == {True}


def test_no_secret_is_written(rendered: Rendered) -> None:
    assert rendered.of("Secret") == []
    for _, pod in rendered.pods():
        for variable in pod["containers"][0]["env"]:
            assert variable["name"].startswith("INFERWAY_") or "valueFrom" in variable


def test_the_program_takes_the_arguments_and_opens_the_ports(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        told, ports = rendered.settings(deployment), ports_of(pod)
        opened = {"http": told.port}
        if pod["containers"][0]["name"] == "picker":
            opened = {
                "grpc": told.picker.grpc_port,
                "grpc-health": told.picker.grpc_health_port,
                "metrics": told.port,
            }
        elif told.admin_port is not None:
            opened["admin"] = told.admin_port
        if told.peers.addresses:
            opened["peers"] = peers_port(told.peers)

        assert ports == opened
        assert told.host == "0.0.0.0"


def test_answers_under_way_have_their_time_at_the_end(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        [_, hook] = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        drain = rendered.settings(deployment).timeouts.drain

        assert drain + int(hook) < pod["terminationGracePeriodSeconds"]


def test_probes_ask_ports_that_are_open(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        [container] = pod["containers"]
        probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
        is_secure = rendered.settings(deployment).tls_cert is not None
        for name, probe in probes.items():
            if "grpc" in probe:
                assert probe["grpc"]["port"] == ports_of(pod)["grpc-health"]
                known = (LIVENESS,) if name == "livenessProbe" else READINESS
                assert probe["grpc"]["service"] in known
            else:
                assert probe["httpGet"]["port"] == "http"
                assert probe["httpGet"]["path"] in ("/health", "/ready")
                assert probe["httpGet"]["scheme"] == ("HTTPS" if is_secure else "HTTP")


def test_files_that_the_settings_name_are_mounted(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        told = rendered.settings(deployment)
        mounted = tuple(mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"])
        named = [told.tls_cert, told.tls_key, told.api_keys, told.picker.cert_path]

        assert all(path.startswith(mounted) for path in named if path is not None)
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes


def test_variables_that_the_settings_name_are_set(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        told = rendered.settings(deployment)
        variables = {variable["name"] for variable in pod["containers"][0]["env"]}
        named = {told.admin_key_env, told.salt_per_tenant_env}
        named |= {engine.api_key_env for engine in told.engines}

        assert named - {None} <= variables


def test_pods_may_do_nothing_that_they_need_not(rendered: Rendered) -> None:
    for _, pod in rendered.pods():
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert writable >= {"/tmp", "/home/inferway"}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_accounts_may_read_what_is_followed_and_nothing_else(rendered: Rendered) -> None:
    for deployment, pod in rendered.pods():
        followed = rendered.settings(deployment).discovery.kubernetes
        name = deployment["metadata"]["name"]

        assert pod["automountServiceAccountToken"] == (followed is not None)
        if followed is None:
            assert rendered.of("Role") == []
            continue
        role, binding = rendered.one("Role", name), rendered.one("RoleBinding", name)
        may = {
            (g, r) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"]
        }
        assert all(rule["verbs"] == READS for rule in role["rules"])
        assert role["metadata"]["namespace"] == followed.namespace
        assert binding["metadata"]["namespace"] == followed.namespace
        assert binding["roleRef"]["name"] == name
        [subject] = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], "serving")
        assert rendered.one("ServiceAccount", pod["serviceAccountName"])
        assert ("", "pods") in may
        assert ((followed.group, "inferencepools") in may) == (followed.pool is not None)


def test_services_lead_to_ports_of_one_deployment(rendered: Rendered) -> None:
    for service in rendered.of("Service"):
        [deployment] = selected(rendered, service["spec"]["selector"])
        ports = ports_of(deployment["spec"]["template"]["spec"])
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports


def test_selectors_find_the_pods_and_no_engine_is_one(rendered: Rendered) -> None:
    for deployment, _ in rendered.pods():
        assert selected(rendered, deployment["spec"]["selector"]["matchLabels"]) == [deployment]
        followed = rendered.settings(deployment).discovery.kubernetes
        if followed is not None and isinstance(followed.selector, dict) and followed.selector:
            assert selected(rendered, followed.selector) == []
    for budget in rendered.of("PodDisruptionBudget"):
        assert len(selected(rendered, budget["spec"]["selector"]["matchLabels"])) == 1
    for policy in rendered.of("NetworkPolicy"):
        assert len(selected(rendered, policy["spec"]["podSelector"]["matchLabels"])) == 1


def test_what_scales_leaves_the_number_of_pods_to_it(rendered: Rendered) -> None:
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
        for each in rendered.of(kind)
    }

    fixed = {d["metadata"]["name"] for d, _ in rendered.pods() if "replicas" in d["spec"]}

    assert scaled | fixed == {d["metadata"]["name"] for d, _ in rendered.pods()}
    assert scaled & fixed == set()


def test_policies_name_ports_that_are_open(rendered: Rendered) -> None:
    for policy in rendered.of("NetworkPolicy"):
        [deployment] = selected(rendered, policy["spec"]["podSelector"]["matchLabels"])
        ports = ports_of(deployment["spec"]["template"]["spec"])
        entered = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}

        assert entered == ports.keys()


def test_prometheus_scrapes_one_service_where_metrics_are(rendered: Rendered) -> None:
    for monitor in rendered.of("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [s for s in rendered.of("Service") if wanted <= s["metadata"]["labels"].items()]
        [deployment] = selected(rendered, service["spec"]["selector"])
        told = rendered.settings(deployment)
        [endpoint] = monitor["spec"]["endpoints"]
        [port] = [p for p in service["spec"]["ports"] if p["name"] == endpoint["port"]]

        assert ports_of(deployment["spec"]["template"]["spec"])[port["targetPort"]] == (
            told.admin_port or told.port
        )
        assert endpoint.get("scheme", "http") == ("https" if told.tls_cert else "http")
        needs_key = told.admin_key_env is not None and told.admin_port is None
        assert ("authorization" in endpoint) == needs_key


def test_annotations_of_pods_name_the_port_of_metrics(rendered: Rendered) -> None:
    for deployment, _ in rendered.pods():
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        told = rendered.settings(deployment)

        assert ("prometheus.io/port" in annotations) == (rendered.of("ServiceMonitor") == [])
        assert annotations.get("prometheus.io/port") in (None, str(told.admin_port or told.port))


def test_the_pool_is_the_one_that_is_followed_and_asks_the_picker(rendered: Rendered) -> None:
    for deployment, _ in rendered.pods():
        followed = rendered.settings(deployment).discovery.kubernetes
        if followed is None or followed.pool is None:
            continue
        for pool in rendered.of("InferencePool"):
            asked = pool["spec"]["endpointPickerRef"]
            service = rendered.one("Service", asked["name"])
            assert pool["metadata"]["name"] == followed.pool
            assert asked["port"]["number"] == service["spec"]["ports"][0]["port"]
            assert selected(rendered, service["spec"]["selector"]) == [deployment]
        for route in rendered.of("HTTPRoute"):
            [backend] = route["spec"]["rules"][0]["backendRefs"]
            assert (backend["kind"], backend["name"]) == ("InferencePool", followed.pool)


def test_alerts_and_dashboard_are_those_of_the_repository() -> None:
    everything = value_set("4", "everything")
    deploy = CHART.parents[1]
    [rules], dashboard = everything.of("PrometheusRule"), (deploy / "grafana/inferway.json")
    shown = everything.one("ConfigMap", "inferway-dashboard")["data"]["inferway.json"]

    assert rules["spec"] == yaml.safe_load((deploy / "prometheus/alerts.yaml").read_text())
    assert json.loads(shown) == json.loads(dashboard.read_text())


def test_the_sets_have_every_kind_of_object() -> None:
    kinds = {each["kind"] for name in VALUE_SETS for each in value_set("4", name).objects}
    templates = "".join(path.read_text() for path in CHART.glob("templates/*.yaml"))

    assert kinds == set(re.findall(r"^kind: (\w+)$", templates, re.MULTILINE))


def test_changed_settings_replace_the_pods() -> None:
    first, second = (
        render("4", ["--set", f"gateway.config.flow.queue={queue}"]) for queue in (10, 11)
    )

    templates = [r.one("Deployment", "inferway")["spec"]["template"] for r in (first, second)]
    assert templates[0]["spec"] == templates[1]["spec"]
    assert templates[0] != templates[1]


def test_values_do_not_replace_what_selectors_and_scrapes_need() -> None:
    theirs = {"app.kubernetes.io/component": "mine", "prometheus.io/port": "1", "a": "b"}
    words = [
        f"{place}.{name.replace('.', chr(92) + '.')}={value}"
        for place in ("pod.labels", "commonLabels", "pod.annotations")
        for name, value in theirs.items()
    ]

    found = render("4", ["--set-string", ",".join(words)])

    [(deployment, _)] = found.pods()
    metadata = deployment["spec"]["template"]["metadata"]
    assert selected(found, deployment["spec"]["selector"]["matchLabels"]) == [deployment]
    assert metadata["labels"]["app.kubernetes.io/component"] == "gateway"
    assert metadata["annotations"]["prometheus.io/port"] == "8081"
    assert metadata["labels"]["a"] == metadata["annotations"]["a"] == "b"


@pytest.mark.parametrize("release", ["a" * 53, "inferway-of-somebody-with-a-very-long-name-x-1"])
def test_long_names_of_releases_are_cut(release: str) -> None:
    found = render("4", said_of(CHART / "ci" / "everything-values.yaml"), release=release)

    assert max(len(each["metadata"]["name"]) for each in found.objects) <= 65
    assert max(len(each["metadata"]["name"]) for each in found.of("Service")) <= 63


WRONG: dict[str, tuple[Tree, str]] = {
    "unknown value": ({"gateway": {"replica": 3}}, "'?/?gateway'?.*replica.*not allowed"),
    "unknown setting": ({"gateway": {"config": {"flow": {"que": 1}}}}, "gateway.config.flow.*que"),
    "setting out of range": (
        {"gateway": {"config": {"flow": {"queue": -1}}}},
        "gateway.config.flow.queue.*(0)",
    ),
    "nobody reaches it": (
        {"gateway": {"config": {"host": "127.0.0.1"}}},
        "gateway.config.host: 127.0.0.1: nobody reaches a pod there; expected 0.0.0.0 or ::",
    ),
    "any port": ({"gateway": {"config": {"port": 0}}}, "gateway.config.port: 0: .*1 to 65535"),
    "no engine": ({"engines": {"fromPods": False}}, "gateway.config names no engine"),
    "no account": ({"serviceAccount": {"create": False}}, "serviceAccount.name: empty; name the"),
    "pool elsewhere": (
        {"engines": {"namespace": "engines"}, "picker": {"enabled": True}},
        "engines.namespace: engines: an InferencePool, its pods",
    ),
    "least above most": (
        {"gateway": {"autoscaling": {"kind": "hpa", "minReplicas": 9}}},
        "gateway.autoscaling.minReplicas: 9: expected at most maxReplicas, which is 8",
    ),
    "share of nothing": (
        {"gateway": {"autoscaling": {"kind": "hpa"}, "resources": {"requests": {"cpu": None}}}},
        "gateway.resources.requests.cpu: absent",
    ),
    "text that is no name": (
        {"gateway": {"tls": {"secretName": "a: b"}}},
        "gateway.tls.secretName",
    ),
    "a gateway that is an engine": (
        {"engines": {"selector": {"tier": "x"}}, "pod": {"labels": {"tier": "x", "a": "b"}}},
        "engines.selector: tier: x: the release's own pods have these labels",
    ),
    "a secret written out": ({"secretEnv": {"HF_TOKEN": "hf_abc"}}, "secretEnv.HF_TOKEN"),
}


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_with_its_place(major: str, name: str, tmp_path: Path) -> None:
    values, words = WRONG[name]

    done = with_values(major, values, tmp_path)

    assert done.returncode != 0
    # Helm 4 has slashes in places where Helm 3 has points
    assert re.search(words, done.stderr.replace("/", "."), re.DOTALL), done.stderr
    assert "hf_abc" not in done.stderr
