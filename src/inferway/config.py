"""The settings of `inferway serve`: one YAML file, or the same words as flags.

Structs are the schema: an unknown key, a wrong type or a value out of range is a ConfigError
that names its place. docs/configuration.md lists every key (a test keeps it true).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from inferway.errors import ConfigError

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. Everything but `url` is asked of the engine itself when absent."""

    url: str  # http://host:port
    name: str | None = None  # host:port when absent; must be unique
    events: str | None = None  # KV-event socket; a wildcard (tcp://*:5557) means: we bind
    replay: str | None = None  # replay socket
    block_size: Count | None = None  # tokens
    api_key_env: str | None = None  # environment variable with the engine's API key
    labels: dict[str, str] = {}  # what filters choose by: its role in disaggregated serving

    @property
    def label(self) -> str:
        """What the engine is called in headers, metrics and logs."""
        return self.name or urlsplit(self.url).netloc

    def authorization(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header that carries the engine's API key. Raises ConfigError if it is unset."""
        key = _secret(self.api_key_env, f"engine {self.label}: api_key_env")
        return ((b"authorization", b"Bearer " + key.encode()),) if key else ()


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model's prompts become tokens: the flags of its engines that nobody can see from
    outside. The probe (prompts/probe.py) says when one of them is missing here."""

    tokenizer: str | None = None  # directory, tokenizer.json or hub id; else as the engine says
    chat_template: str | None = None  # a file, a template's name in the model, or Jinja itself
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}  # vLLM: --default-chat-template-kwargs
    exclude_tools_when_tool_choice_none: bool = False


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether our ids are the engines': how often that is looked at."""

    join: bool = True  # when an engine joins, with chats of our own
    one_in: Annotated[int, msgspec.Meta(ge=0)] = 1000  # live prompts; 0: none


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where what the engines hold is remembered, and how much of it."""

    url: str | None = None  # redis://, rediss:// or unix://; absent: this process's memory
    prefix: str = "inferway"  # of every key in that server
    gateway: str | None = None  # this gateway's name there; drawn at each start when absent
    max_blocks: Count | None = None  # in memory; beyond it the least useful are forgotten
    max_bytes: Count | None = None  # the same, in bytes
    tier_weights: tuple[Share, ...] = (1.0, 0.8, 0.5)  # what a block is worth in GPU, CPU, storage


class RewriteTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the models that a rewrite leads to."""

    model: str
    weight: Count = 1


class ModelRewrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests for some models go to others (llm-d: InferenceModelRewrite)."""

    models: list[str] = []  # as requests name them; empty: all
    targets: Annotated[list[RewriteTarget], msgspec.Meta(min_length=1)]


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may send."""

    body_bytes: Count = 32 * 1024 * 1024
    header_bytes: Count = 64 * 1024
    connections: Count = 20_000


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds."""

    keep_alive: Positive = 75.0  # a client's idle connection
    request_body: Positive = 60.0  # from a request's first byte to its last
    connect: Positive = 2.0  # to an engine
    first_byte: Positive = 600.0  # of an engine's answer: prefill and queueing
    idle_stream: Positive = 300.0  # between two pieces of an answer
    drain: Positive = 30.0  # for running answers at shutdown


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `inferway serve` can be told."""

    engines: list[EngineSettings]
    host: str = "127.0.0.1"
    port: Port = 8080
    models: dict[str, ModelSettings] = {}  # model -> how its prompts become tokens
    scheduling: str | dict[str, Any] | None = None  # how endpoints are chosen: a file, or it
    scoring: bool = True  # false: by load only, prompts are not looked at
    trust_request_chat_template: bool = False  # as the engines' flag of that name says
    publish: str | None = None  # ZMQ PUB address; a wildcard binds, else we connect
    publish_text: bool = False  # prompts and messages go onto the published topics too
    access_log: str | None = "-"  # a file, "-" for standard error, null for none
    log_level: str = "info"
    scrape_seconds: Positive | None = (
        None  # between two looks at an engine's load; else max(0.2, 2 ms x engines)
    )
    model_rewrites: list[ModelRewrite] = []  # the first that matches decides
    objectives: dict[str, int] = {}  # name -> priority; negative: refused when engines are full
    probe: ProbeSettings = ProbeSettings()
    index: IndexSettings = IndexSettings()
    state_dir: str | None = None  # where what is known of the engines' caches outlives us
    heal: Share = 0.0  # of the requests to engines that are known in part: report all they reuse
    admin_key_env: str | None = None  # environment variable with the key for scores and admin paths
    remote_render_ms: Annotated[float, msgspec.Meta(ge=0)] = 50.0  # 0: engines are not asked
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()

    def admin_key(self) -> str | None:
        """What admin paths want to see. Raises ConfigError if it is unset."""
        return _secret(self.admin_key_env, "admin_key_env")


_ENGINE_KEYS = [name for name in EngineSettings.__struct_fields__ if name not in ("url", "labels")]
_LABEL = "label."  # before a label's name


def parse_engine(spec: str) -> EngineSettings:
    """`URL[,key=value…]` as --engine takes it."""
    url, *pairs = spec.split(",")
    labels: dict[str, str] = {}
    fields: dict[str, object] = {"url": url, "labels": labels}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if equals and key.startswith(_LABEL):
            labels[key.removeprefix(_LABEL)] = value
            continue
        if not equals or key not in _ENGINE_KEYS:
            raise ConfigError(
                f"--engine {spec!r}: {pair!r} is not KEY=VALUE with KEY one of "
                + ", ".join([*_ENGINE_KEYS, f"{_LABEL}NAME"])
            )
        fields[key] = value
    try:
        return msgspec.convert(fields, EngineSettings, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(f"--engine {spec!r}: {_lower(str(e))}") from e


def load_settings(path: Path | None, overrides: dict[str, object]) -> ServeSettings:
    """The file's settings, and on top of them what the flags say. Checked as a whole."""
    in_file = read_yaml(path) if path else {}
    fields = _laid_over({"engines": [], **in_file}, msgspec.to_builtins(overrides))
    try:
        settings = msgspec.convert(fields, ServeSettings)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{path or 'flags'}: {_lower(str(e))}") from e
    _check(settings)
    return settings


def read_yaml(path: Path) -> dict[str, object]:
    """Raises ConfigError naming the file."""
    try:
        fields = msgspec.yaml.decode(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    except msgspec.DecodeError as e:
        raise ConfigError(f"{path}: not valid YAML: {e}") from e
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: expected keys like `engines:`, got {type(fields).__name__}")
    return fields


def _laid_over(below: object, above: object) -> object:
    """The flags' values, and where they say nothing, the file's. What is of the wrong kind in the
    file stays, to be complained about."""
    if not isinstance(above, dict) or below is None:
        return above
    if not isinstance(below, dict):
        return below
    return below | {name: _laid_over(below.get(name), value) for name, value in above.items()}


def _check(settings: ServeSettings) -> None:
    if not settings.engines:
        raise ConfigError("no engine: give at least one --engine URL, or `engines:` in --config")
    labels = [engine.label for engine in settings.engines]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"engine {label!r} is given twice; each needs a name of its own")
    for name, model in settings.models.items():
        if "chat_template" in model.chat_template_kwargs:
            raise ConfigError(
                f"models: {name}: chat_template_kwargs: 'chat_template' does not belong there; "
                "give it as chat_template"
            )
    index = settings.index
    if index.url is not None and (index.max_blocks or index.max_bytes):
        raise ConfigError(
            "index: max_blocks and max_bytes bound the index in memory; with url, bound the "
            "server (maxmemory), or leave one of the two out"
        )
    for engine in settings.engines:
        _check_url(engine.url)
        for key, endpoint in (("events", engine.events), ("replay", engine.replay)):
            if endpoint is not None and not endpoint.startswith(("tcp://", "ipc://")):
                raise ConfigError(
                    f"engine {engine.label}: {key} {endpoint!r} must start with tcp:// or ipc://"
                )


def _secret(variable: str | None, key: str) -> str | None:
    if variable is None:
        return None
    secret = os.environ.get(variable)
    if not secret:
        raise ConfigError(
            f"{key} {variable!r} is not set in the environment; export it, or leave it out"
        )
    return secret


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise ConfigError(f"engine {url!r}: expected http://HOST:PORT")
    if parts.path.rstrip("/") or parts.query or parts.username:
        raise ConfigError(f"engine {url!r}: expected http://HOST:PORT and nothing after it")


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
