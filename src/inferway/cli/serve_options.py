"""The flags of `inferway serve`, and what they say of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import msgspec

from inferway.cli.discovery_options import DISCOVERY_OPTIONS, ports
from inferway.cli.flow_options import FLOW
from inferway.cli.key_options import OFF, ON, given_keys, key_option, number_option
from inferway.cli.surface_options import SURFACE
from inferway.config import Policy, parse_engine
from inferway.errors import ConfigError

POLICIES = get_args(Policy)

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("urls", nargs=-1, metavar="[ENGINE_URL]…"),
    click.option(
        "--engine",
        "engines",
        multiple=True,
        metavar="URL|unix:/PATH[,KEY=VALUE…]",
        help="An engine, the same as a plain ENGINE_URL; repeat the flag for each. Keys: name, "
        "events, replay, block_size, api_key_env, label.NAME. The gateway asks the engine for what "
        "is left out.",
    ),
    *DISCOVERY_OPTIONS,
    click.option(
        "--config", type=click.Path(path_type=Path), help="A YAML file; flags win over it."
    ),
    key_option(
        "--host",
        "host",
        metavar="HOST|unix:/PATH",
        help="Address, or Unix socket, to listen on.  [default: 127.0.0.1]",
    ),
    number_option("--port", "port", "Port to listen on, 0 for a free one."),
    key_option(
        "--tls-cert",
        "tls_cert",
        metavar="FILE",
        help="Speak TLS with clients: a PEM certificate chain.",
    ),
    key_option("--tls-key", "tls_key", metavar="FILE", help="Its PEM key."),
    key_option(
        "--engine-ca",
        "engine_ca",
        metavar="FILE",
        help="PEM certificates that may sign for https engines.  [default: the system's]",
    ),
    click.option(
        "--tokenizer",
        "tokenizers",
        multiple=True,
        metavar="MODEL=PATH",
        help="A model's tokenizer: directory, tokenizer.json or hub id.",
    ),
    click.option(
        "--chat-template",
        "chat_templates",
        multiple=True,
        metavar="MODEL=PATH",
        help="A model's chat template, as its engines were given it: a .jinja file.",
    ),
    key_option(
        "--trust-request-chat-template",
        "trust_request_chat_template",
        **ON,
        help="Render chat templates that requests bring, in a process of their own. Give it if the "
        "engines were given it.",
    ),
    key_option(
        "--index",
        "index.url",
        metavar="URL",
        help="Share the index with other gateways in a Redis or Valkey: redis://, rediss://, unix://.",
    ),
    key_option(
        "--state-dir",
        "state_dir",
        metavar="DIR",
        help="Keep what is known of the engines' caches there, for the next start.",
    ),
    number_option(
        "--heal",
        "heal",
        "Of the requests to engines whose caches are known in part: have them report what they "
        "reuse.",
        "SHARE",
    ),
    key_option(
        "--admin-key-env",
        "admin_key_env",
        metavar="NAME",
        help="Environment variable with the key that scores and admin paths want.",
    ),
    key_option(
        "--api-keys",
        "api_keys",
        metavar="FILE",
        help="Callers need one of these keys (inferway keys); it says their tenant and priority.",
    ),
    *FLOW,
    key_option(
        "--policy",
        "policy",
        type=click.Choice(POLICIES),
        help="How the gateway chooses an engine: by the expected time to the first token, by "
        "cached blocks and load in fixed weights, by turns, or by the fewest requests.  "
        "[default: expected-ttft]",
    ),
    key_option(
        "--scheduling",
        "scheduling",
        metavar="FILE",
        help="A file that says in detail how the gateway chooses an engine: an "
        "EndpointPickerConfig, llm-d's or in its form. Give it instead of --policy.",
    ),
    key_option(
        "--no-scoring", "scoring", **OFF, help="Route by load only; do not look at prompts."
    ),
    key_option(
        "--structured-trial-compile",
        "structured.trial_compile",
        **ON,
        help="Compile the shape that a request asks for once, in a process with limits, before an "
        "engine sees it.",
    ),
    key_option(
        "--report-validity",
        "structured.report_validity",
        **ON,
        help="Say at the end of streams, too, whether the answer has the shape that was asked for.",
    ),
    key_option(
        "--publish",
        "publish",
        metavar="tcp://…",
        help="Publish decisions and KV events over ZMQ; a wildcard address binds, any other "
        "connects.",
    ),
    key_option(
        "--publish-text", "publish_text", **ON, help="Put prompts and messages on those topics too."
    ),
    key_option(
        "--access-log",
        "access_log",
        metavar="FILE",
        help='Write one line for each answered request to this file; "-" is standard error, '
        '"none" writes no such lines.  [default: -]',
    ),
    *SURFACE,
    key_option(
        "--log-level",
        "log_level",
        help="Log what is at least as severe: debug, info, warning or error.  [default: info]",
    ),
    number_option(
        "--scrape-seconds",
        "scrape_seconds",
        "How often each engine's load is read.  [default: 0.002 for each engine, at least 0.2]",
    ),
)


def serve_options(command: _Command) -> _Command:
    """Decorates a command with all of them; it gets `config`, and what `overrides` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(
    *,
    urls: tuple[str, ...],
    engines: tuple[str, ...],
    tokenizers: tuple[str, ...],
    chat_templates: tuple[str, ...],
    **flags: object,
) -> dict[str, Any]:
    """Only what was said, by the settings' names. Raises ConfigError."""
    given = given_keys(flags)
    if urls or engines:
        listed = [_given(parse_engine(spec, "engine")) for spec in urls]
        given["engines"] = listed + [_given(parse_engine(spec)) for spec in engines]
    if tokenizers or chat_templates:
        given["models"] = _models(tokenizers, chat_templates)
    pods = given.get("discovery", {}).get("kubernetes", {})
    if "ports" in pods:
        pods["ports"] = ports(pods["ports"])
    if given.get("access_log") == "none":
        given["access_log"] = None
    return given


def _given(settings: msgspec.Struct) -> dict[str, object]:
    """Only what was said: the rest has its defaults."""
    fields: dict[str, object] = msgspec.to_builtins(settings)
    return {name: value for name, value in fields.items() if value is not None}


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
