"""`inferway epp`: the endpoint picker behind Envoy, or whatever proxy speaks its protocol.

The flags are those that the reference's manifests use (llm-d, Gateway API Inference Extension), so
that its Deployment's arguments may stay; what we have no use for is taken and said.
"""

from __future__ import annotations

import logging
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from inferway.cli.command import ServerCommand, section, warnings_of
from inferway.cli.flag import option
from inferway.cli.logs import refuse, set_up, set_up_early
from inferway.cli.serve_options import overrides, serve_options
from inferway.cli.setting_options import range_of, section_of
from inferway.config import ServeSettings, load_settings, read_yaml
from inferway.config.setting import PICKER_TLS, PICKING
from inferway.errors import ConfigError
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.picker")

# Flags of the reference that change nothing here -> why.
_NO_USE = {
    "zap-encoder": "--log-format says whether the log is text or JSON",
    "zap-devel": "--log-format says whether the log is text or JSON",
    "zap-stacktrace-level": "a crash is logged with its traceback",
    "zap-time-encoding": "times in the log are ISO 8601 with the zone's offset",
    "zap-log-level": "--log-level says how much is logged",
    "v": "--log-level says how much is logged",
    "grpc-max-recv-msg-size": "limits.body_bytes bounds a body, however it is cut",
    "grpc-max-send-msg-size": "answers are cut into pieces of 62,000 bytes",
    "enable-grpc-stream-metrics": "streams are always counted",
    "ha-enable-leader-election": "replicas all pick, none leads: they see the same events",
    "refresh-prometheus-metrics-interval": "the page is read when it is asked for",
    "metrics-staleness-threshold": "figures lose influence by and by (docs/scheduling.md)",
    "tracing": "picks have spans if --otlp says where they go",
    "enable-pprof": "this is no Go",
    "metrics-endpoint-auth": "/metrics is open; --admin-key-env guards what tells of caches",
    "allow-experimental-plugins": "docs/plugins.md lists what is built",
    **dict.fromkeys(
        (
            *("total-queued-requests-metric", "total-running-requests-metric"),
            *("kv-cache-usage-percentage-metric", "lora-info-metric", "cache-info-metric"),
        ),
        "vLLM's, SGLang's and TensorRT-LLM's names are known",
    ),
    "emit-endpoint-scores": "/metrics and docs/scheduling.md say why",
}

# Flags that say a key in words of their own.
_OWN_WORDS = (
    *("metrics_port", "metrics_cert_dir", "config_file", "config_text"),
    *("refresh_metrics_interval", "drain_timeout"),
)


def _ignored(command: Any) -> Any:
    for name in reversed(_NO_USE):
        flags = [f"--{name}", f"-{name}"] if len(name) == 1 else [f"--{name}"]
        hidden = click.option(
            *flags, name.replace("-", "_"), is_flag=False, flag_value="true", hidden=True
        )
        command = hidden(command)
    return command


@click.command(cls=ServerCommand)
@section_of(PICKING)
@section_of(
    PICKER_TLS,
    option(
        "--metrics-cert-dir",
        type=click.Path(),
        metavar="DIR",
        help="Speak TLS on --metrics-port, with tls.crt and tls.key in this directory.",
    ),
)
@section(
    "Names of llm-d for settings of inferway serve",
    option(
        "--metrics-port",
        type=range_of("port"),
        metavar="PORT",
        help="Answer /metrics, /ready and scores on this port.  [default: 9090]",
    ),
    option(
        "--config-file",
        type=click.Path(),
        metavar="FILE",
        help="Choose endpoints as this EndpointPickerConfig says, the same as --scheduling.",
    ),
    option(
        "--config-text",
        metavar="YAML",
        help="Choose endpoints as this text of an EndpointPickerConfig says.",
    ),
    option(
        "--drain-timeout",
        metavar="TIME",
        help="Give streams this time at shutdown, as in 500ms, 30s or 2m.  [default: 30s]",
    ),
    option(
        "--refresh-metrics-interval",
        metavar="TIME",
        help="Read each engine's load once in this time, as in 50ms or 1s; the same as "
        "--scrape-seconds.",
    ),
    example="inferway epp --pool-name vllm --config-file epp.yaml --metrics-port 9090",
)
@_ignored
@serve_options
def epp(config: Path | None, **flags: Any) -> None:
    """Say to Envoy which engine each request goes to (ext_proc, Gateway API).

    It takes the arguments of llm-d's manifests, and the flags of inferway serve.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `run` listens to it; it would end us
    set_up_early(flags["log_format"])
    try:
        _run(config, flags)
    except ConfigError as e:
        refuse("epp", e)


def _run(config: Path | None, flags: dict[str, Any]) -> None:
    import uvloop

    settings, ignored = picker_settings(config, flags)
    set_up(settings.log_level, settings.access_log, settings.log_format)
    for warning in warnings_of(click.get_current_context()):
        log.warning("%s", warning)
    for name in ignored:
        log.warning("the flag --%s changes nothing: %s", name, _NO_USE[name])
    for key in _without_effect(settings):
        log.warning("the setting %s changes nothing: that is the proxy's part", key)
    try:
        import google.protobuf  # noqa: F401
        import hpack  # noqa: F401
    except ImportError as e:
        raise ConfigError(
            f"the picker needs packages that are not installed ({e.name} is one of them): "
            "pip install 'inferway[epp]'"
        ) from None
    from inferway.cluster.hub import built
    from inferway.serving import serve as run

    reread = partial(_settings_alone, config, flags)
    uvloop.run(run(partial(built, settings, picks=True), reread=reread))


def _settings_alone(config: Path | None, flags: dict[str, Any]) -> ServeSettings:
    settings, _ = picker_settings(config, flags)
    return settings


def picker_settings(config: Path | None, flags: dict[str, Any]) -> tuple[ServeSettings, list[str]]:
    """Return the settings of the file with the flags over them, and the flags that change nothing.
    Raises ConfigError."""
    said = {name: value for name, value in flags.items() if value not in (None, ())}
    ignored = [name for name in _NO_USE if name.replace("-", "_") in said]
    theirs = {*_OWN_WORDS, *(name.replace("-", "_") for name in _NO_USE)}
    given = overrides(**{name: value for name, value in flags.items() if name not in theirs})
    scheduling = _scheduling(said)
    if scheduling is not None:
        given["scheduling"], conforms = scheduling
        if conforms:
            given.setdefault("picker", {}).setdefault("conformance", True)
    if "metrics_cert_dir" in said:
        pair = Path(said["metrics_cert_dir"])
        given |= {"tls_cert": str(pair / "tls.crt"), "tls_key": str(pair / "tls.key")}
    if "refresh_metrics_interval" in said:
        given["scrape_seconds"] = _seconds("refresh-metrics-interval", said)
    if "drain_timeout" in said:
        given.setdefault("timeouts", {})["drain"] = _seconds("drain-timeout", said)
    in_file = {} if config is None else read_yaml(config)
    for key, default in (("port", said.get("metrics_port", 9090)), ("host", "0.0.0.0")):
        if key not in given and (key not in in_file or f"metrics_{key}" in said):
            given[key] = default
    settings = load_settings(config, given)
    _check(settings)
    return settings, ignored


# What is done to requests that pass through `inferway serve`: in front of us a proxy passes them.
_FRONT_DOOR = ("allow_paths", "cors_origins", "flow", "retries", "ejection")


def _check(settings: ServeSettings) -> None:
    """Raises ConfigError for what would be believed to protect, and does not."""
    if settings.api_keys is not None:
        raise ConfigError(
            "api_keys: the proxy in front of the picker passes requests on, and would pass those"
            " without a key, too; let the proxy ask for keys"
        )
    if settings.salt_per_tenant_env is not None:
        raise ConfigError(
            "salt_per_tenant_env: a tenant is known by its key, which the picker does not see; let"
            " the proxy set cache_salt"
        )


def _without_effect(settings: ServeSettings) -> list[str]:
    """Keys that were given a value, and are for `inferway serve` alone."""
    plain = ServeSettings(engines=[])
    return [key for key in _FRONT_DOOR if getattr(settings, key) != getattr(plain, key)]


# What the conformance tests' own configuration wants; the rest of it is any.
_CONFORMANCE = ("header-based-testing-filter", "destination-endpoint-served-verifier")


def _scheduling(said: dict[str, Any]) -> tuple[str | dict[str, object], bool] | None:
    """Return a scheduling, and whether it is for conformance tests. Raises ConfigError."""
    if "config_file" in said:
        fields = read_yaml(Path(said["config_file"]))
    elif "config_text" in said:
        fields = _parsed(said["config_text"])
    else:
        return None
    plugins = fields.get("plugins")
    if isinstance(plugins, list) and plugins:
        types = [plugin.get("type") for plugin in plugins if isinstance(plugin, dict)]
        if all(kind in _CONFORMANCE for kind in types):
            return {"plugins": [{"type": "random-picker"}]}, True
    return said.get("config_file") or fields, False


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = msgspec.yaml.decode(text.encode())
    except UNREADABLE as e:
        raise ConfigError(f"--config-text: not valid YAML: {e}") from e
    if not isinstance(found, dict):
        raise ConfigError(f"--config-text: expected keys, got {type(found).__name__}")
    return found


def _seconds(flag: str, said: dict[str, Any]) -> float:
    """Go's durations, of one unit, or plain seconds."""
    text = said[flag.replace("-", "_")]
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)?", text)
    if found is None or not float(found[1]):
        raise ConfigError(f"--{flag} {text!r}: expected 50ms, 1s, or seconds, more than 0")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[found[2] or "s"]


def _say_our_defaults() -> None:
    """Two of `inferway serve`'s flags have other defaults here."""
    for flag in epp.params:
        if not isinstance(flag, click.Option):
            continue
        if flag.name == "host":
            flag.help = "Answer --metrics-port at this address.  [default: 0.0.0.0]"
        elif flag.name == "port":
            flag.help = "Answer /metrics, /ready and scores on this port, as --metrics-port."


_say_our_defaults()
