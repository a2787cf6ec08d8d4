"""The flags of `inferway serve`, and what they say of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from inferway.cli.discovery_options import DISCOVERY, DISCOVERY_OPTIONS, discovery
from inferway.cli.flow_options import FLOW, FLOW_FLAGS, flow
from inferway.cli.surface_options import SURFACE
from inferway.config import parse_engine
from inferway.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--engine",
        "engines",
        multiple=True,
        metavar="URL|unix:/PATH[,KEY=VALUE…]",
        help="An engine; repeat for each. Keys: name, events, replay, block_size, "
        "api_key_env, label.NAME. What is left out is asked of the engine.",
    ),
    *DISCOVERY_OPTIONS,
    click.option(
        "--config", type=click.Path(path_type=Path), help="A YAML file; flags win over it."
    ),
    click.option(
        "--host",
        metavar="HOST|unix:/PATH",
        help="Address, or Unix socket, to listen on.  [default: 127.0.0.1]",
    ),
    click.option("--port", type=int, help="Port to listen on, 0 for a free one.  [default: 8080]"),
    click.option(
        "--tls-cert", metavar="FILE", help="Speak TLS with clients: a PEM certificate chain."
    ),
    click.option("--tls-key", metavar="FILE", help="Its PEM key."),
    click.option(
        "--engine-ca",
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
    click.option(
        "--trust-request-chat-template",
        is_flag=True,
        help="Render chat templates that requests bring, in a process of their own. Give it if the "
        "engines were given it.",
    ),
    click.option(
        "--index",
        metavar="URL",
        help="Share the index with other gateways in a Redis or Valkey: redis://, rediss://, unix://.",
    ),
    click.option(
        "--state-dir",
        metavar="DIR",
        help="Keep what is known of the engines' caches there, for the next start.",
    ),
    click.option(
        "--heal",
        type=float,
        metavar="SHARE",
        help="Of the requests to engines whose caches are known in part: have them report what "
        "they reuse.  [default: 0]",
    ),
    click.option(
        "--admin-key-env",
        metavar="NAME",
        help="Environment variable with the key that scores and admin paths want.",
    ),
    click.option(
        "--api-keys",
        metavar="FILE",
        help="Callers need one of these keys (inferway keys); it says their tenant and priority.",
    ),
    *FLOW,
    click.option(
        "--scheduling",
        metavar="FILE",
        help="How endpoints are chosen: an EndpointPickerConfig, llm-d's or in its form.",
    ),
    click.option("--no-scoring", is_flag=True, help="Route by load only; do not look at prompts."),
    click.option(
        "--structured-trial-compile",
        is_flag=True,
        help="Compile the shape that a request asks for once, in a process with limits, before an "
        "engine sees it.",
    ),
    click.option(
        "--report-validity",
        is_flag=True,
        help="Say at the end of streams, too, whether the answer has the shape that was asked for.",
    ),
    click.option(
        "--publish",
        metavar="tcp://…",
        help="Publish decisions and KV events over ZMQ; a wildcard address binds, any other "
        "connects.",
    ),
    click.option(
        "--publish-text", is_flag=True, help="Put prompts and messages on those topics too."
    ),
    click.option(
        "--access-log",
        metavar="FILE",
        help='One line per answer; "-" is standard error, "none" is off.  [default: -]',
    ),
    *SURFACE,
    click.option("--log-level", help="debug, info, warning or error.  [default: info]"),
    click.option(
        "--scrape-seconds",
        type=float,
        help="How often each engine's load is read.  [default: 0.002 for each engine, at least "
        "0.2]",
    ),
)

_NESTED = DISCOVERY | FLOW_FLAGS  # what is no key of the top level


def serve_options(command: _Command) -> _Command:
    """Decorates a command with all of them; it gets `config`, and what `overrides` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(
    *,
    engines: tuple[str, ...],
    tokenizers: tuple[str, ...],
    chat_templates: tuple[str, ...],
    trust_request_chat_template: bool,
    no_scoring: bool,
    publish_text: bool,
    structured_trial_compile: bool,
    report_validity: bool,
    index: str | None,
    **flags: object,
) -> dict[str, object]:
    """Only what was said, by the settings' names. Raises ConfigError."""
    given = {
        name: value
        for name, value in flags.items()
        if value is not None and value is not False and value != () and name not in _NESTED
    }
    if found := discovery(flags):
        given["discovery"] = found
    if engines:
        parsed = [parse_engine(spec) for spec in engines]
        given["engines"] = [_given(settings) for settings in parsed]
    if tokenizers or chat_templates:
        given["models"] = _models(tokenizers, chat_templates)
    given |= flow(flags)
    if index is not None:
        given["index"] = {"url": index}
    if trust_request_chat_template:
        given["trust_request_chat_template"] = True
    if no_scoring:
        given["scoring"] = False
    if publish_text:
        given["publish_text"] = True
    structured = {"trial_compile": structured_trial_compile, "report_validity": report_validity}
    if any(structured.values()):
        given["structured"] = {name: True for name, said in structured.items() if said}
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
