"""The flags of `inferway epp`: what they come to, and those of the reference's manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from inferway.cli.main import main
from inferway.config import KubernetesSettings, PickerSettings, ServeSettings
from inferway.errors import ConfigError
from inferway.scheduling.load import load_scheduling
from inferway_llmd.cli import _without_effect, epp, picker_settings

CONFORMANCE = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
schedulingProfiles:
- name: conformance-profile
  plugins:
  - pluginRef: header-based-testing-filter
"""

# llm-d-router, config/charts/routerlib (default-plugins.yaml), in its shape.
DEFAULT_PLUGINS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
"""

# Arguments as manifests have them; {config} is the file they mount.
MANIFESTS = {
    "GIE conformance/resources/base.yaml": (
        *("--pool-name", "primary-inference-pool"),
        *("--pool-namespace", "inference-conformance-app-backend"),
        *("--v", "4", "--zap-encoder", "json"),
        *("--grpc-port", "9002", "--grpc-health-port", "9003", "--config-file", "{conformance}"),
    ),
    "GIE config/charts/epplib, a pool": (
        *("--pool-name", "vllm-qwen3", "--pool-namespace", "default"),
        *("--pool-group", "inference.networking.k8s.io", "--zap-encoder", "json"),
        *("--config-file", "{config}", "--ha-enable-leader-election", "--v=1"),
        *("--tracing=false", "--metrics-endpoint-auth=false"),
    ),
    "GIE config/charts/epplib, SGLang without a pool": (
        *("--endpoint-selector", "app=sglang,role=both", "--endpoint-target-ports", "8000,8001"),
        '--total-queued-requests-metric="sglang:num_queue_reqs"',
        '--total-running-requests-metric="sglang:num_running_reqs"',
        '--kv-cache-usage-percentage-metric="sglang:token_usage"',
        '--cache-info-metric="sglang:cache_config_info"',
        *("--zap-encoder", "json", "--config-file", "{config}", "--tracing=true"),
    ),
    "llm-d-router deploy/components/inference-gateway": (
        *("--pool-name", "pool", "--pool-namespace", "ns", "--v", "4", "--zap-encoder", "json"),
        *("--grpc-port", "9002", "--grpc-health-port", "9003", "--config-file", "{config}"),
        "--metrics-endpoint-auth=false",
    ),
    "llm-d-router config/charts/routerlib, agentgateway": (
        *("--pool-name", "pool", "--pool-namespace", "ns"),
        *("--pool-group", "inference.networking.k8s.io", "--zap-encoder", "json"),
        *("--config-file", "{config}", "--grpc-health-port", "9003", "--health-checking=true"),
        *("--secure-serving=false", "--v=2", "--tracing=true", "--metrics-endpoint-auth=false"),
    ),
}

FLAGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--grpc-port", "1"): {"picker": {"grpc_port": 1}},
    ("--grpc-health-port", "0"): {"picker": {"grpc_health_port": 0}},
    ("--health-checking",): {"picker": {"health_checking": True}},
    ("--secure-serving=false",): {"picker": {"secure": False}},
    ("--cert-path", "/certs"): {"picker": {"cert_path": "/certs"}},
    ("--enable-cert-reload",): {"picker": {"reload_cert": True}},
    ("--fallbacks", "2"): {"picker": {"fallbacks": 2}},
    ("--report-cost", "total"): {"picker": {"report_cost": "total"}},
    ("--conformance",): {"picker": {"conformance": True}},
    ("--disable-endpoint-subset-filter",): {"picker": {"heed_subset": False}},
    ("--metrics-port", "9"): {"port": 9},
    ("--port", "9"): {"port": 9},
    ("--host", "::1"): {"host": "::1"},
    ("--metrics-cert-dir", "/c"): {"tls_cert": "/c/tls.crt", "tls_key": "/c/tls.key"},
    ("--drain-timeout", "1m"): {"timeouts": {"drain": 60.0}},
    ("--refresh-metrics-interval", "50ms"): {"scrape_seconds": 0.05},
    ("--engines-file", "/e.yaml"): {"discovery": {"file": "/e.yaml"}},
    ("--engines-dns", "http://a:1", "--engines-dns", "http://b:1"): {
        "discovery": {"dns": ["http://a:1", "http://b:1"]}
    },
    ("--pool-name", "p", "--pool-group", "g", "--pool-namespace", "n", "--kube-api", "http://k"): {
        "discovery": {
            "kubernetes": {"pool": "p", "group": "g", "namespace": "n", "api": "http://k"}
        }
    },
    ("--endpoint-selector", "app=x, tier=y", "--endpoint-target-ports", "8000, 8001"): {
        "discovery": {"kubernetes": {"selector": "app=x, tier=y", "ports": [8000, 8001]}}
    },
    ("--config-text", "plugins: [{type: random-picker}]"): {
        "scheduling": {"plugins": [{"type": "random-picker"}]}
    },
    ("--config-file", "FILE"): {"scheduling": "FILE"},
}
_ENGINE = ("--engine", "http://127.0.0.1:1")


def parsed(*arguments: str) -> tuple[ServeSettings, list[str]]:
    context = epp.make_context("epp", list(arguments))
    flags = dict(context.params)
    return picker_settings(flags.pop("config"), flags)


def differences(settings: msgspec.Struct, plain: msgspec.Struct) -> dict[str, Any]:
    """Field -> value, where two settings differ."""
    found = {}
    for name in settings.__struct_fields__:
        value, default = getattr(settings, name), getattr(plain, name)
        if value != default:
            nested = isinstance(value, msgspec.Struct) and isinstance(default, msgspec.Struct)
            found[name] = differences(value, default) if nested else msgspec.to_builtins(value)
    return found


@pytest.mark.parametrize("arguments", FLAGS, ids=" ".join)
def test_a_flag_changes_what_it_names_and_nothing_else(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_text(DEFAULT_PLUGINS)
    file = str(tmp_path / "FILE")
    plain, _ = parsed(*_ENGINE)

    settings, ignored = parsed(*_ENGINE, *(file if a == "FILE" else a for a in arguments))

    found = differences(settings, plain)
    kubernetes = found.get("discovery", {}).get("kubernetes")
    if kubernetes is not None:  # there was none to compare it with
        told = settings.discovery.kubernetes
        assert told is not None
        found["discovery"]["kubernetes"] = differences(told, KubernetesSettings())
    expected = {
        name: file if value == "FILE" else value for name, value in FLAGS[arguments].items()
    }
    assert found == expected
    assert ignored == []


def test_every_key_of_the_picker_has_a_flag() -> None:
    covered = {key for settings in FLAGS.values() for key in settings.get("picker", ())}

    assert covered == set(PickerSettings.__struct_fields__)


def test_it_listens_for_everybody_unless_it_is_told_where() -> None:
    settings, _ = parsed(*_ENGINE)

    assert (settings.host, settings.port) == ("0.0.0.0", 9090)


def test_the_files_address_counts_where_no_flag_is_given(tmp_path: Path) -> None:
    config = tmp_path / "inferway.yaml"
    config.write_text(
        "host: 10.0.0.1\nport: 1\npicker:\n  secure: false\n  health_checking: true\n"
    )

    settings, _ = parsed(*_ENGINE, "--config", str(config), "--health-checking=false")

    assert (settings.host, settings.port) == ("10.0.0.1", 1)
    assert differences(settings.picker, PickerSettings()) == {"secure": False}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_references_arguments_may_stay(manifest: str, tmp_path: Path) -> None:
    files = {"config": DEFAULT_PLUGINS, "conformance": CONFORMANCE}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {name: str(tmp_path / name) for name in files}

    settings, ignored = parsed(*(text.format(**paths) for text in MANIFESTS[manifest]))

    assert settings.discovery.kubernetes is not None
    assert settings.picker.conformance == ("conformance" in manifest)
    assert load_scheduling(settings.scheduling).notes is not None
    assert "zap-encoder" in ignored


def test_what_changes_nothing_has_a_reason_and_is_hidden() -> None:
    hidden = [p for p in epp.params if isinstance(p, click.Option) and p.hidden and p.expose_value]
    every = [f"{option.opts[0]}=1" for option in hidden]

    _, ignored = parsed(*_ENGINE, *every)

    assert len(ignored) == len(hidden)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--endpoint-selector", "a in b", "--endpoint-target-ports", "1"), "'a in b': expected"),
        (("--drain-timeout", "1h30m"), "--drain-timeout '1h30m': expected 50ms, 1s, or seconds"),
        (("--drain-timeout", "0s"), "--drain-timeout '0s': expected 50ms, 1s, or seconds, more"),
        (("--config-text", "[]"), "--config-text: expected keys, got list"),
        (("--config-text", "{"), "--config-text: not valid YAML"),
        (("--pool-name", "p", "--endpoint-selector", "a=b"), "give either pool"),
        (("--endpoint-selector", "a=b"), "go together"),
    ],
)
def test_what_cannot_hold_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(*_ENGINE, *arguments)

    assert said in str(raised.value)


def test_what_is_waited_for_at_shutdown_leaves_the_other_times_as_they_are() -> None:
    settings, _ = parsed(*_ENGINE, "--hold-head", "5", "--drain-timeout", "1m")

    assert (settings.timeouts.hold_head, settings.timeouts.drain) == (5.0, 60.0)


def test_ejection_is_the_proxys_part() -> None:
    settings, _ = parsed(*_ENGINE, "--ejection-failures", "3")

    assert _without_effect(settings) == ["ejection"]


def test_keys_that_nobody_would_ask_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="let the proxy ask for keys"):
        parsed(*_ENGINE, "--api-keys", "/keys.json")


def test_a_salt_by_tenant_that_nobody_would_add_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "inferway.yaml"
    config.write_text("salt_per_tenant_env: SECRET\n")

    with pytest.raises(ConfigError, match="let the proxy set cache_salt"):
        parsed(*_ENGINE, "--config", str(config))


def test_no_engine_and_no_pool_ends_the_start() -> None:
    result = CliRunner().invoke(main, ["epp"])

    assert result.exit_code == 2
    assert "inferway epp: no engine" in result.output


def test_serve_finds_engines_in_the_same_places() -> None:
    result = CliRunner().invoke(
        main,
        [*("config", "show", "--pool-name", "p", "--engines-dns", "http://a:1")],
    )

    assert result.exit_code == 0, result.output
    assert 'discovery.kubernetes.pool: "p"  # a flag' in result.output
    assert 'discovery.dns: ["http://a:1"]  # a flag' in result.output
