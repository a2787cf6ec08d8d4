"""What `inferway serve` can be told: every key with its type, its bounds and its default.

docs/configuration.md lists them (a test keeps it true). Flags that set numbers have their bounds.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakValueDictionary

import msgspec

from inferway.errors import ConfigError
from inferway.model import ROLE

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

# The common ways to choose an endpoint; scheduling/load.py says what each one means.
Policy = Literal["expected-ttft", "kv-aware", "round-robin", "least-load"]


UNIX = "unix:"  # before a socket's path, where else a URL or a host stands


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one engine. Whatever is absent, except `url`, is asked of the engine
    itself."""

    url: str  # http://host:port, maybe with a path before that of requests; or unix:/path
    # the URL without http://, or the last part of a socket's path, when absent; must be unique
    name: str | None = None
    events: str | None = None  # KV-event socket; a wildcard (tcp://*:5557) means: we bind
    # or, of TensorRT-LLM, a URL that is asked for its events: http://HOST:PORT/kv_cache_events
    replay: str | None = None  # replay socket
    block_size: Count | None = None  # tokens
    # how it drafts tokens: with eagle and mtp, vLLM drops the last block that a prompt matches
    speculation: Literal["none", "ngram", "eagle", "mtp"] | None = None
    prefix_match_unit: Count | None = None  # tokens of a hash: vLLM's --prefix-match-unit
    attention_chunk_size: Count | None = None  # tokens of a chunk of local attention (Llama 4)
    api_key_env: str | None = None  # environment variable with the engine's API key
    labels: dict[str, str] = {}  # what filters choose by: its role in disaggregated serving
    role: Literal["prefill", "decode", "both"] | None = None  # short for label llm-d.ai/role
    # how it hands KV blocks to others, if it does not tell
    kv_connector: Literal["nixl", "nixl-push", "mooncake", "sglang"] | None = None
    kv_bootstrap: str | None = None  # host:port of Mooncake's or SGLang's bootstrap server
    kv_host: str | None = None  # of its NIXL side channel, if that is another than the URL's

    @property
    def label(self) -> str:
        """The engine's name in headers, metrics and logs."""
        if self.url.startswith(UNIX):
            return self.name or self.url.rpartition("/")[2]
        return self.name or engine_address(self.url)

    @property
    def http_url(self) -> str:
        """The URL that paths are appended to. A Unix socket's path stands in place of the host,
        with its slashes as %2F."""
        if self.url.startswith(UNIX):
            return "http://" + quote(self.url.removeprefix(UNIX), safe="")
        return self.url.rstrip("/")

    @property
    def all_labels(self) -> dict[str, str]:
        """Its labels, with the one that `role` is short for."""
        return self.labels if self.role is None else {**self.labels, ROLE: self.role}

    def authorization(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header that carries the engine's API key. Raises ConfigError if it is unset."""
        key = _secret(self.api_key_env, f"engine {self.label}: api_key_env")
        return ((b"authorization", b"Bearer " + key.encode()),) if key else ()


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one model's prompts: flags of its engines that cannot be seen from outside.
    The probe (prompts/fidelity/probe.py) says when one of them is missing."""

    tokenizer: str | None = None  # directory, tokenizer.json or hub id; else as the engine says
    chat_template: str | None = None  # a file, a template's name in the model, or Jinja itself
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}  # vLLM: --default-chat-template-kwargs
    exclude_tools_when_tool_choice_none: bool = False
    reasoning_effort_map: dict[str, str] = {}  # vLLM 0.33: --reasoning-effort-map


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the probe, which checks that our token ids are those of the engines."""

    join: bool = True  # when an engine joins, with chats of our own
    one_in: Annotated[int, msgspec.Meta(ge=0)] = 1000  # live prompts; 0: none


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the index: how many blocks it may hold, and what they are worth."""

    max_blocks: Count | None = None  # beyond it the least useful are forgotten
    max_bytes: Count | None = None  # the same, in bytes
    tier_weights: tuple[Share, ...] = (1.0, 0.8, 0.5)  # what a block is worth in GPU, CPU, storage


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other gateways in front of the same engines, which this one shares its load with
    (docs/scale.md)."""

    addresses: list[str] = []  # HOST:PORT of each, or a name that all of them are behind
    port: Port | None = None  # where this one tells them; the addresses' when absent
    redis: str | None = None  # instead of addresses: redis://, rediss:// or unix://
    redis_prefix: str = "inferway"  # of the channel's name in that server
    name: str | None = None  # of this gateway, in what others show; the host's when absent


class RewriteTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the models that a rewrite leads to."""

    model: str
    weight: Count = 1


class ModelRewrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests for some models go to others (llm-d: InferenceModelRewrite)."""

    models: list[str] = []  # as requests name them; empty: all
    targets: Annotated[list[RewriteTarget], msgspec.Meta(min_length=1)]


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of what a client may send."""

    body_bytes: Count = 32 * 1024 * 1024
    bodies_bytes: Count = 1024 * 1024 * 1024
    header_bytes: Count = 64 * 1024
    connections: Count = 20_000


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of requests that are with the engines at a time, and of those that may wait for
    that."""

    in_flight: Count | None = 10_000  # in total; null: no limit
    engine_in_flight: Count | None = None  # with each engine; null: no limit
    queue: Annotated[int, msgspec.Meta(ge=0)] = 1000  # that wait
    queue_seconds: Positive = 60.0  # that one waits, unless it says less


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tries on further engines, before an answer has begun."""

    attempts: Count = 3  # engines in all
    statuses: tuple[Annotated[int, msgspec.Meta(ge=400, le=599)], ...] = (502, 503)
    share: Share = 0.2  # of the requests under way, that may be in a further try
    floor: Annotated[int, msgspec.Meta(ge=0)] = 3  # so many always may
    # that a request is refused which two engines had when they were lost; 0: none is
    quarantine_seconds: NotNegative = 600.0


class EjectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions under which a failing engine gets no requests for a while."""

    failures: Count = 5  # in a row
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # or of its requests, lately
    least: Count = 20  # if there were so many
    window: Positive = 30.0  # seconds that are "lately"
    seconds: Positive = 5.0  # out, at first; then twice as long each time
    max_seconds: Positive = 300.0


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of requests that have ended: in memory, and in files if there is a directory."""

    requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10_000  # in memory; 0: none
    directory: str | None = None  # of files, without any text or token ids
    max_bytes: Annotated[int, msgspec.Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024  # of all files
    max_age: Positive = 7 * 86_400.0  # seconds, of a file


class StructuredSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that ask for the shape of their answer (docs/structured.md)."""

    check: bool = True  # what is asked, before an engine sees it; and answers
    trial_compile: bool = False  # in a helper process, with limits
    refuse_unenforced: bool = False  # of requests with `strict`; else named, as without it
    report_validity: bool = False  # on streams too, as a comment before their end
    answer_bytes: Count = 1024 * 1024  # of one answer that is held back until it is judged
    warm_per_second: Annotated[float, msgspec.Meta(ge=0)] = 50.0  # told to each engine; 0: none
    quarantine_seconds: Positive = 600.0


class KvTransferSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that one engine computes for another (docs/kv-transfer.md)."""

    # who asks the prefill engine: we do, or llm-d's sidecar beside the decode engine, by headers;
    # auto: we do where we know the engines' connector
    legs: Literal["auto", "gateway", "sidecar", "off"] = "auto"
    lease_seconds: Positive = 30.0  # of engines that do not tell theirs
    lease_margin_seconds: Positive = 5.0  # so long before its end a lease is not used any more
    hand_over_seconds: Annotated[float, msgspec.Meta(ge=0)] = 60.0  # of a drained engine; 0: never


class SloSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is promised of answers: goodput is counted by it, and engines are wanted for it."""

    ttft_seconds: Positive | None = None  # to the first token
    itl_seconds: Positive | None = None  # between two tokens of an answer, on average
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9  # of requests that are to be in time
    ahead_seconds: Annotated[float, msgspec.Meta(ge=0)] = 60.0  # that an engine takes to start

    @property
    def is_any(self) -> bool:
        """Whether anything is promised."""
        return self.ttft_seconds is not None or self.itl_seconds is not None


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines are the ready pods of an InferencePool, or of a selector."""

    pool: str | None = None
    group: str = "inference.networking.k8s.io"  # of the pool
    selector: dict[str, str] | str = {}  # instead of a pool: labels of its pods, as kubectl has it
    ports: list[Port] = []  # with a selector: where its pods listen
    namespace: str | None = None  # absent: $NAMESPACE, else our pod's, else default
    api: str | None = None  # the API server's URL; absent: as every pod is told


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sources of engines beside the list of the settings; these engines come and go while the
    gateway runs."""

    file: str | None = None  # YAML or JSON with `engines`; followed
    dns: list[str] = []  # http://NAME:PORT: every address of the name is an engine
    ray: list[str] = []  # APP/DEPLOYMENT: the engines of its replicas in the cluster of RAY_ADDRESS
    kubernetes: KubernetesSettings | None = None

    @property
    def is_any(self) -> bool:
        """Whether there is any source beside the list."""
        return bool(self.file is not None or self.dns or self.ray or self.kubernetes is not None)

    def why_none_answers(self, asked: Sequence[str] = ()) -> str:
        """Return in words where engines are looked for, or which URLs were asked, and what to
        do."""
        if asked:
            return f"no engine has answered yet; asked {', '.join(asked)}; see inferway doctor"
        places = [] if self.file is None else [f"the file {self.file} (discovery.file)"]
        places += [f"the addresses of {url} (discovery.dns)" for url in self.dns]
        places += [f"the Ray deployment {name} (discovery.ray)" for name in self.ray]
        if (kubernetes := self.kubernetes) is not None:
            what = f"InferencePool {kubernetes.pool}" if kubernetes.pool else "selector"
            pods = f"the ready pods of the {what} in the namespace {kubernetes.namespace or 'own'}"
            places.append(f"{pods} (discovery.kubernetes)")
        if not places:
            return "no engine is known: none is given; give one, as inferway serve http://HOST:PORT"
        where = ", ".join(places)
        return f"no engine is known: none is in {where}; start engines there, or give their URLs"


class PickerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`inferway epp`: the endpoint picker behind a proxy (docs/endpoint-picker.md)."""

    grpc_port: Port = 9002
    grpc_health_port: Port = 9003
    health_checking: bool = False  # answers health checks on the first port, too
    secure: bool = True  # TLS, by a certificate of our own unless one is given
    cert_path: str | None = None  # a directory with tls.crt and tls.key
    reload_cert: bool = False  # when they change
    heed_subset: bool = True  # false: whatever addresses the gateway allows
    fallbacks: Annotated[int, msgspec.Meta(ge=0)] = 0  # addresses told behind the first
    report_cost: Literal["prompt", "completion", "total"] | None = None  # tokens, to the gateway
    mode_override: bool = False  # answers that need no change do not pass us, if the proxy allows
    conformance: bool = False  # a client's header may choose the endpoint: for tests of gateways


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timeouts, in seconds."""

    keep_alive: Positive = 75.0  # a client's idle connection
    request_body: Positive = 60.0  # from a request's first byte to its last
    connect: Positive = 2.0  # to an engine
    first_byte: Positive = 600.0  # of an engine's answer: prefill and queueing
    hold_head: Positive = 30.0  # that a stream's head waits for its first event, if no comments go
    stream_keep_alive: NotNegative = 15.0  # of silence, then a stream's client gets a comment
    idle_stream: Positive = 300.0  # between two pieces of an answer, or events of a stream
    silent_engine: Positive = 7.0  # that what can go nowhere else waits for an engine in silence
    drain: Positive = 30.0  # for running answers at shutdown


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of `inferway serve`."""

    engines: list[EngineSettings]
    host: str = "127.0.0.1"  # or unix:/path
    port: Port = 8080
    workers: Count | Literal["auto"] = 1  # processes that answer requests; auto: one for each core
    tls_cert: str | None = None  # PEM certificate chain for clients; with tls_key
    tls_key: str | None = None
    engine_ca: str | None = None  # PEM certificates trusted to sign https engines', beside none
    engine_cert: str | None = None  # PEM certificate chain that https engines see; with engine_key
    engine_key: str | None = None
    models: dict[str, ModelSettings] = {}  # model -> how its prompts become tokens
    policy: Policy | None = None  # how endpoints are chosen, by a word; expected-ttft when absent
    scheduling: str | dict[str, Any] | None = None  # the same as a file, or written out
    scoring: bool = True  # false: by load only, prompts are not looked at
    # the engines' KV events: auto: while something needs to know what engines hold
    follow_events: Literal["auto", "always"] = "auto"
    trust_request_chat_template: bool = False  # as the engines' flag of that name says
    publish: str | None = None  # ZMQ PUB address; a wildcard binds, else we connect
    publish_text: bool = False  # prompts and messages go onto the published topics too
    explain_text: bool = False  # admins may see texts of prompts that are in memory
    access_log: str | None = "-"  # a file, "-" for standard error, null for none
    access_log_probes: bool = False  # answers to probes and scrapes have lines, too
    log_format: Literal["text", "json"] = "text"  # of all that is written to standard error
    log_level: str = "info"
    scrape_seconds: Positive | None = (
        None  # between two looks at an engine's load; else max(0.2, 2 ms x engines)
    )
    model_rewrites: list[ModelRewrite] = []  # the first that matches decides
    objectives: dict[str, int] = {}  # name -> priority; negative: refused when engines are full
    probe: ProbeSettings = ProbeSettings()
    tokens_once: Literal["auto", "on", "off"] = "auto"  # engines get the ids of their prompts
    continue_streams: bool = True  # where an engine is lost, another one ends its answers
    index: IndexSettings = IndexSettings()
    peers: PeerSettings = PeerSettings()
    state_dir: str | None = None  # where what is known of the engines' caches outlives us
    heal: Share = 0.0  # of the requests to engines that are known in part: report all they reuse
    admin_key_env: str | None = None  # environment variable with the key for scores and admin paths
    admin_port: Port | None = None  # those paths and metrics there, and then not on `port`
    ui: bool = True  # the page for operators at `/`, where admin paths are
    allow_paths: list[str] = []  # forwarded beside those that are known: [METHOD ]/path
    trust_kv_transfer_params: bool = False  # clients may say where engines fetch blocks from
    trust_priority: bool = False  # clients may say which priority engines give a request
    salt_per_tenant_env: str | None = None  # environment variable with a secret: no shared blocks
    cors_origins: list[str] = []  # of browsers' pages that may ask; "*": all
    otlp: str | None = None  # where OpenTelemetry's spans go: OTLP over HTTP
    remote_render_ms: Annotated[float, msgspec.Meta(ge=0)] = 50.0  # 0: engines are not asked
    api_keys: str | None = None  # a file of callers' keys, hashed (inferway keys)
    limits: LimitSettings = LimitSettings()
    flow: FlowSettings = FlowSettings()
    kv_transfer: KvTransferSettings = KvTransferSettings()
    slo: SloSettings = SloSettings()
    retries: RetrySettings = RetrySettings()
    ejection: EjectionSettings = EjectionSettings()
    structured: StructuredSettings = StructuredSettings()
    records: RecordSettings = RecordSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    picker: PickerSettings = PickerSettings()
    timeouts: TimeoutSettings = TimeoutSettings()

    def admin_key(self) -> str | None:
        """The key that admin paths require, or None. Raises ConfigError if its environment variable
        is unset."""
        return _secret(self.admin_key_env, "admin_key_env")

    def salt_secret(self) -> str | None:
        """The secret that tenants' salts are made with, or None. Raises ConfigError if its
        environment variable is unset."""
        return _secret(self.salt_per_tenant_env, "salt_per_tenant_env")

    def engine_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to https engines, or None if there is none.
        Certificates that are added to the file of `engine_ca` later are trusted, and those of
        `engine_cert` shown, from the next call on, also by those who hold the context. Raises
        ConfigError."""
        context = self.read_engine_tls()
        files = (self.engine_ca, self.engine_cert, self.engine_key)
        if context is None or not any(files):
            return context
        shared = _SHARED.setdefault(files, context)
        if shared is not context:
            if self.engine_ca is not None:
                shared.load_verify_locations(self.engine_ca)
            self._load_engine_cert(shared)
        return shared

    def read_engine_tls(self) -> ssl.SSLContext | None:
        """The same, without effect on anybody. Raises ConfigError."""
        files = (self.engine_ca, self.engine_cert)
        if not any(files) and not any(e.url.startswith("https:") for e in self.engines):
            return None
        try:
            context = ssl.create_default_context(cafile=self.engine_ca)
        except OSError as e:  # SSLError is one
            what = getattr(e, "reason", None) or e.strerror
            raise ConfigError(
                f"engine_ca {self.engine_ca!r}: {what}; expected a file of PEM certificates"
            ) from e
        self._load_engine_cert(context)
        return context

    def _load_engine_cert(self, context: ssl.SSLContext) -> None:
        if self.engine_cert is None:
            return
        try:
            context.load_cert_chain(self.engine_cert, self.engine_key, password=lambda: b"")
        except (OSError, ValueError) as e:
            what = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
            raise ConfigError(
                f"engine_cert {self.engine_cert!r}, engine_key {self.engine_key!r}: {what};"
                " expected a PEM certificate chain and its PEM key without a password"
            ) from e


# One for the files of engine_ca, engine_cert and engine_key while it is in use: OpenSSL adds
# certificates to it, and takes none out.
_SHARED: WeakValueDictionary[tuple[str | None, ...], ssl.SSLContext] = WeakValueDictionary()


def engine_address(url: str) -> str:
    """Return an engine's URL without its scheme and a slash at its end."""
    parts = urlsplit(url)
    return parts.netloc + parts.path.rstrip("/")


def _secret(variable: str | None, key: str) -> str | None:
    if variable is None:
        return None
    secret = os.environ.get(variable)
    if not secret:
        raise ConfigError(
            f"{key} {variable!r} is not set in the environment; export it, or leave it out"
        )
    return secret


def unix_path(host: str) -> str | None:
    """The path that stands where a host does (EngineSettings.http_url); None: it is a host."""
    return unquote(host) if host.startswith("%2F") else None
