"""The flags of `inferway serve`, and what they say of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import msgspec

from inferway.cli.command import section
from inferway.cli.discovery_options import DISCOVERY, ports
from inferway.cli.engine_options import ENGINE, ENGINE_TLS, ENGINE_URLS, listed
from inferway.cli.flag import Flag, LineList, OneOf, option, removed_option
from inferway.cli.flow_options import FAILURES, LIMITS
from inferway.cli.key_options import OFF, ON, given_keys, key_option, number_option
from inferway.cli.surface_options import OBSERVABILITY, SECURITY
from inferway.config import Policy
from inferway.config.removed import FOLLOWERS, INDEX_IN_REDIS
from inferway.errors import ConfigError

POLICIES = get_args(Policy)

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SECTIONS = (
    section(
        "Engines",
        ENGINE_URLS,
        ENGINE,
        *ENGINE_TLS,
        number_option(
            "--scrape-seconds",
            "scrape_seconds",
            "Read each engine's load once in this time.  [default: 0.002 for each engine, at least "
            "0.2]",
            "SECONDS",
        ),
        example="inferway serve http://10.0.0.5:8000 http://10.0.0.6:8000,name=second",
    ),
    DISCOVERY,
    section(
        "File of settings",
        option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Read settings from this YAML file; docs/configuration.md lists its keys. Flags "
            "win over it, and it has settings that are no flags.",
        ),
        example="inferway serve --config gateway.yaml --port 9000",
    ),
    section(
        "Listening and TLS",
        key_option(
            "--host",
            "host",
            metavar="HOST|unix:/PATH",
            help="Listen on this address, or on this Unix socket.  [default: 127.0.0.1]",
        ),
        number_option(
            "--port",
            "port",
            "Listen on this port; 0 takes a free one, which the log names.",
            "PORT",
        ),
        key_option(
            "--workers",
            "workers",
            metavar="N|auto",
            help="Answer requests in this many processes; auto: one for each core but one, which "
            "follows the engines.  [default: 1]",
        ),
        removed_option("--followers", FOLLOWERS),
        number_option(
            "--admin-port",
            "admin_port",
            "Answer admin paths, scores and /metrics on this port, and no longer on --port.",
            "PORT",
        ),
        key_option(
            "--tls-cert",
            "tls_cert",
            type=click.Path(),
            metavar="FILE",
            help="Speak TLS with clients, with the PEM certificate chain in this file. It needs "
            "--tls-key.",
        ),
        key_option(
            "--tls-key",
            "tls_key",
            type=click.Path(),
            metavar="FILE",
            help="Read the PEM key of --tls-cert from this file.",
        ),
        example="inferway serve http://10.0.0.5:8000 --host 0.0.0.0 --port 80",
    ),
    section(
        "Prompts",
        option(
            "--tokenizer",
            "tokenizers",
            type=LineList(),
            multiple=True,
            metavar="MODEL=PATH",
            help="Use this tokenizer for the model's prompts: a directory, a tokenizer.json or a "
            "hub id. Repeat the flag for more models.",
        ),
        option(
            "--chat-template",
            "chat_templates",
            type=LineList(),
            multiple=True,
            metavar="MODEL=PATH",
            help="Use this chat template, a .jinja file, for the model's prompts, as its engines "
            "do. Repeat the flag for more models.",
        ),
        key_option(
            "--trust-request-chat-template",
            "trust_request_chat_template",
            **ON,
            help="Render chat templates that requests bring, in a process of their own. Give the "
            "flag if the engines were given it.",
        ),
        key_option(
            "--tokens-once",
            "tokens_once",
            type=OneOf(["auto", "on", "off"]),
            help="Send engines the token ids of their prompts, so that they do not tokenize them "
            "again: those that the probe has proven to render as the gateway does, or all that "
            "take ids, or none.  [default: auto]",
        ),
        key_option(
            "--continue-streams/--no-continue-streams",
            "continue_streams",
            default=None,
            help="Have another engine go on with a stream whose engine was lost, where its rest is "
            "the same.  [default: continue-streams]",
        ),
        example="inferway serve http://10.0.0.5:8000 --chat-template org/model=chat.jinja",
    ),
    section(
        "Index of cached blocks",
        removed_option("--index", INDEX_IN_REDIS),
        key_option(
            "--state-dir",
            "state_dir",
            type=click.Path(),
            metavar="DIR",
            help="Keep what is known of the engines' caches in this directory, for the next start.",
        ),
        number_option(
            "--heal",
            "heal",
            "Ask for a full report of reused blocks with this share of the requests to engines "
            "whose caches are known in part.",
            "SHARE",
        ),
        example="inferway serve http://10.0.0.5:8000 --state-dir /var/lib/inferway",
    ),
    section(
        "Several gateways",
        key_option(
            "--peers",
            "peers.addresses",
            metavar="HOST:PORT",
            multiple=True,
            help="Share what is sent and learned with the other gateways in front of the same "
            "engines, at this address or at every address of this name; the own one may be among "
            "them. Repeat the flag for more.",
        ),
        number_option(
            "--peers-port",
            "peers.port",
            "Tell the other gateways on this port.  [default: that of --peers]",
            "PORT",
        ),
        key_option(
            "--peers-redis",
            "peers.redis",
            metavar="URL",
            help="Share what is sent and learned through a Redis or Valkey server instead: "
            "redis://, rediss:// or unix://.",
        ),
        example="inferway serve http://10.0.0.5:8000 --peers gateways.default.svc:7400",
    ),
    section(
        "Scheduling",
        key_option(
            "--policy",
            "policy",
            type=OneOf(POLICIES),
            help="Choose an engine by the expected time to the first token, by cached blocks and "
            "load in fixed weights, by turns, or by the fewest requests.  "
            "[default: expected-ttft]",
        ),
        key_option(
            "--scheduling",
            "scheduling",
            type=click.Path(),
            metavar="FILE",
            help="Choose an engine as this file says in detail: an EndpointPickerConfig, llm-d's "
            "or in its form. Give it instead of --policy.",
        ),
        key_option(
            "--no-scoring",
            "scoring",
            **OFF,
            help="Do not look at prompts, and choose an engine by load only.",
        ),
        key_option(
            "--follow-events",
            "follow_events",
            type=OneOf(["auto", "always"]),
            help="Follow the engines' KV events always, or with --no-scoring only once somebody "
            "asks for scores.  [default: auto]",
        ),
        key_option(
            "--prefill-legs",
            "kv_transfer.legs",
            type=OneOf(["auto", "gateway", "sidecar", "off"]),
            help="Say who asks an engine to compute a prompt that another one answers: the "
            "gateway, llm-d's sidecar beside the other, the gateway where it knows the engines' "
            "connector, or nobody.  [default: auto]",
        ),
        example="inferway serve http://10.0.0.5:8000 http://10.0.0.6:8000 --policy least-load",
    ),
    LIMITS,
    FAILURES,
    section(
        "Structured output",
        key_option(
            "--structured-trial-compile",
            "structured.trial_compile",
            **ON,
            help="Compile the shape that a request asks for once, in a process with limits, before "
            "an engine sees it.",
        ),
        key_option(
            "--report-validity",
            "structured.report_validity",
            **ON,
            help="Say at the end of a streamed answer whether it has the shape that was asked for.",
        ),
        example="inferway serve http://10.0.0.5:8000 --structured-trial-compile",
    ),
    SECURITY,
    OBSERVABILITY,
)


def serve_options(command: _Command) -> _Command:
    """Decorates a command with all of them; it gets `config`, and what `overrides` takes."""
    for part in reversed(_SECTIONS):
        command = part(command)
    return command


def overrides(
    *,
    urls: tuple[str, ...],
    engines: tuple[str, ...],
    tokenizers: tuple[str, ...],
    chat_templates: tuple[str, ...],
    **flags: object,
) -> dict[str, Any]:
    """Return the given flags as nested settings. Raises ConfigError."""
    given = given_keys(flags)
    if urls or engines:
        given["engines"] = [_given(engine) for engine in listed(urls, engines)]
    if tokenizers or chat_templates:
        given["models"] = _models(tokenizers, chat_templates)
    pods = given.get("discovery", {}).get("kubernetes", {})
    if "ports" in pods:
        pods["ports"] = ports(pods["ports"])
    if "workers" in given:
        given["workers"] = _workers(given["workers"])
    if given.get("access_log") == "none":
        given["access_log"] = None
    return given


def environment_of(context: click.Context) -> Mapping[str, str]:
    """Keys that a variable of the environment has set -> the variable."""
    found = {}
    for flag in context.command.params:
        if isinstance(flag, Flag) and flag.name and flag.is_from_environment(context):
            keys = {"tokenizers": "models.*.tokenizer", "chat_templates": "models.*.chat_template"}
            found[keys.get(flag.name, flag.name.replace("__", "."))] = str(flag.variable)
    if context.params.get("urls"):
        found.pop("engines", None)
    return found


def _given(settings: msgspec.Struct) -> dict[str, object]:
    """Only what was said: the rest has its defaults."""
    fields: dict[str, object] = msgspec.to_builtins(settings)
    return {name: value for name, value in fields.items() if value is not None}


def _workers(said: str) -> int | str:
    if said == "auto":
        return said
    if not said.isdecimal() or not int(said):
        raise ConfigError(f"--workers {said!r}: expected a number of processes from 1 on, or auto")
    return int(said)


def _models(tokenizers: Iterable[str], chat_templates: Iterable[str]) -> dict[str, object]:
    """What the flags say of single models, as the key `models` has it."""
    models: dict[str, dict[str, str]] = {}
    for flag, key, texts in (
        ("--tokenizer", "tokenizer", tokenizers),
        ("--chat-template", "chat_template", chat_templates),
    ):
        for text in texts:
            model, path = _pair(flag, text)
            models.setdefault(model, {})[key] = path
    return dict(models)


def _pair(flag: str, text: str) -> tuple[str, str]:
    model, equals, path = text.rpartition("=")
    if not equals or not model or not path:
        raise ConfigError(f"{flag} {text!r}: expected MODEL=PATH")
    return model, path
