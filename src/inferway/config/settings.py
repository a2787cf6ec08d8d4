"""The settings of `inferway serve`: every key with its type, its bounds, its default, its flag and
its meaning. `python -m tests.generated` writes what follows from them: the tables of
docs/configuration.md and the chart's schema.
"""

from __future__ import annotations

import ssl
from typing import Annotated, Any, Literal
from weakref import WeakValueDictionary

import msgspec

from inferway.config.engine_settings import (
    DiscoverySettings,
    EngineSettings,
    ModelSettings,
    secret_in,
)
from inferway.config.part_settings import (
    EjectionSettings,
    FlowSettings,
    IndexSettings,
    KvTransferSettings,
    LimitSettings,
    MediaSettings,
    ModelRewrite,
    PeerSettings,
    PickerSettings,
    ProbeSettings,
    RecordSettings,
    RetrySettings,
    SloSettings,
    StructuredSettings,
    TimeoutSettings,
)
from inferway.config.setting import (
    ENGINES,
    INDEX,
    LISTENING,
    OBSERVABILITY,
    ONCE,
    PROMPTS,
    RELOADED,
    SCHEDULING,
    SECURITY,
    Count,
    Flag,
    NotNegative,
    Port,
    Positive,
    Share,
)
from inferway.errors import ConfigError

# The common ways to choose an endpoint; scheduling/load.py says what each one means.
Policy = Literal["expected-ttft", "kv-aware", "round-robin", "least-load"]

# A field is a paragraph: its type and flag, what is said of it, its default.
# fmt: off


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of `inferway serve`."""

    engines: Annotated[list[EngineSettings],
        Flag("--engine URL[,KEY=VALUE…]", ENGINES), RELOADED, ONCE,
        "Use this engine, as a plain ENGINE_URL does: http://HOST:PORT[/PATH] or unix:/PATH. Repeat"
        " the flag for each engine. The keys are name, events, replay, block_size, api_key_env,"
        " role, kv_connector, kv_bootstrap, kv_host and label.NAME; the engine itself is asked for"
        " what is left out.",
        "There must be one, unless `discovery` finds engines."] = []
    engine_ca: Annotated[str | None, Flag("--engine-ca FILE", ENGINES),
        "Trust the PEM certificates in this file to sign those of https engines.  [default: the"
        " system's]",
        "The host name is always checked."] = None
    engine_cert: Annotated[str | None, Flag("--engine-cert FILE", ENGINES),
        "Show the PEM certificate chain in this file to https engines that ask for one.",
        "It needs `engine_key`."] = None
    engine_key: Annotated[str | None, Flag("--engine-key FILE", ENGINES),
        "The PEM key of --engine-cert.",
        "It has no password."] = None
    scrape_seconds: Annotated[Positive | None, Flag("--scrape-seconds SECONDS", ENGINES),
        "Read each engine's load once in this time.  [default: 0.002 for each engine, at least"
        " 0.2]",
        "Without a value, [idle engines](scale.md#an-idle-gateway) are read less often. The gateway"
        " scrapes vLLM at `/metrics/` (with a slash), so exclude both paths from vLLM's access log:"
        " `--disable-access-log-for-endpoints /metrics,/metrics/`."] = None
    discovery: Annotated[DiscoverySettings, ONCE,
        "Engines that are added and removed at run time."] = DiscoverySettings()
    host: Annotated[str, Flag("--host HOST|unix:/PATH", LISTENING),
        "Listen on this address, or on this Unix socket."] = "127.0.0.1"
    port: Annotated[Port, Flag("--port PORT", LISTENING),
        "Listen on this port; 0 takes a free one, which the log names."] = 8080
    workers: Annotated[Count | Literal["auto"], Flag("--workers N|auto", LISTENING),
        "Answer requests in this many processes; auto: one for each core but one, which follows the"
        " engines.",
        "See [scale.md](scale.md)."] = 1
    admin_port: Annotated[Port | None, Flag("--admin-port PORT", LISTENING), ONCE,
        "Answer admin paths, scores and /metrics on this port, and no longer on --port.",
        "It listens at `host` (at 127.0.0.1 if `host` is a Unix socket); `0`: a free port, which"
        " the log names."] = None
    tls_cert: Annotated[str | None, Flag("--tls-cert FILE", LISTENING),
        "Speak TLS with clients, with the PEM certificate chain in this file. It needs --tls-key.",
        "Clients must use TLS 1.2 or newer."] = None
    tls_key: Annotated[str | None, Flag("--tls-key FILE", LISTENING),
        "Read the PEM key of --tls-cert from this file.",
        "It has no password."] = None
    models: Annotated[dict[str, ModelSettings],
        "For each model name, how its prompts become tokens."] = {}
    model_rewrites: Annotated[list[ModelRewrite],
        "Rules that send requests for some models to other models."] = []
    trust_request_chat_template: Annotated[bool, Flag("--trust-request-chat-template", PROMPTS),
        "Render chat templates that requests bring, in a process of their own. Give the flag if the"
        " engines were given it."] = False
    tokens_once: Annotated[Literal["auto", "on", "off"], Flag("--tokens-once", PROMPTS),
        "Send engines the token ids of their prompts, so that they do not tokenize them again:"
        " those that the probe has proven to render as the gateway does, or all that take ids, or"
        " none.",
        "`auto` is for prompts of 64 tokens or more; `on` leaves out engines that are known to"
        " render otherwise ([fidelity.md](fidelity.md#tokens-once))."] = "auto"
    continue_streams: Annotated[bool, Flag("--continue-streams/--no-continue-streams", PROMPTS),
        "Have another engine go on with a stream whose engine was lost, where its rest is the"
        " same.",
        "See [reliability.md](reliability.md#streams-that-survive-their-engine)."] = True
    remote_render_ms: Annotated[NotNegative,
        "Milliseconds that a request waits for an engine to render a prompt that the gateway cannot"
        " render ([fidelity.md](fidelity.md#the-engine-renders)); `0`: engines are not"
        " asked."] = 50.0
    media: Annotated[MediaSettings,
        "Pictures that are behind URLs, which the gateway fetches if it may."] = MediaSettings()
    probe: Annotated[ProbeSettings,
        "Comparison of the gateway's token ids with the engines'."] = ProbeSettings()
    index: Annotated[IndexSettings, "Limits of the index of cached blocks."] = IndexSettings()
    state_dir: Annotated[str | None, Flag("--state-dir DIR", INDEX), ONCE,
        "Keep what is known of the engines' caches in this directory, for the next start.",
        "See [reliability.md](reliability.md#snapshots)."] = None
    heal: Annotated[Share, Flag("--heal SHARE", INDEX),
        "Ask for a full report of reused blocks with this share of the requests to engines whose"
        " caches are known in part.",
        "See [how](troubleshooting.md#a-partial-engine)."] = 0.0
    peers: Annotated[PeerSettings, ONCE,
        "Other gateways that this one shares its load with."] = PeerSettings()
    policy: Annotated[Policy | None, Flag("--policy", SCHEDULING),
        "Choose an engine by the expected time to the first token, by cached blocks and load in"
        " fixed weights, by turns, or by the fewest requests.  [default: expected-ttft]",
        "See [scheduling.md](scheduling.md)."] = None
    scheduling: Annotated[str | dict[str, Any] | None, Flag("--scheduling FILE", SCHEDULING),
        "Choose an engine as this file says in detail: an EndpointPickerConfig, llm-d's or in its"
        " form. Give it instead of --policy.",
        "The key also takes the configuration itself ([plugins.md](plugins.md))."] = None
    scoring: Annotated[bool, Flag("--no-scoring", SCHEDULING),
        "Do not look at prompts, and choose an engine by load only."] = True
    follow_events: Annotated[Literal["auto", "always"], Flag("--follow-events", SCHEDULING),
        "Follow the engines' KV events always, or with --no-scoring only once somebody asks for"
        " scores.",
        "See [scores.md](scores.md#without-scoring)."] = "auto"
    objectives: Annotated[dict[str, int],
        "Priority of each objective. A request names its objective in"
        " `x-gateway-inference-objective` (or `x-llm-d-inference-objective`). Requests with a"
        " negative priority may get 429 while the engines are full."] = {}
    kv_transfer: Annotated[KvTransferSettings,
        "Prompts that one engine computes for another."] = KvTransferSettings()
    limits: Annotated[LimitSettings, RELOADED, "Limits of client requests."] = LimitSettings()
    flow: Annotated[FlowSettings, RELOADED,
        "Limits of requests at the engines and in the queue."] = FlowSettings()
    retries: Annotated[RetrySettings, RELOADED, "Further tries on other engines."] = RetrySettings()
    timeouts: Annotated[TimeoutSettings, RELOADED, "Time limits in seconds."] = TimeoutSettings()
    ejection: Annotated[EjectionSettings, RELOADED,
        "When an engine that fails stops getting requests."] = EjectionSettings()
    slo: Annotated[SloSettings,
        "What is promised of answers: for goodput, and the number of engines."] = SloSettings()
    structured: Annotated[StructuredSettings, "Checks of structured output."] = StructuredSettings()
    api_keys: Annotated[str | None, Flag("--api-keys FILE", SECURITY), RELOADED,
        "Demand one of the API keys in this file of every caller; the key says the caller's tenant"
        " and priority. `inferway keys add` writes the file.",
        "See [how](flow-control.md#api-keys)."] = None
    admin_key_env: Annotated[str | None, Flag("--admin-key-env NAME", SECURITY), RELOADED,
        "Demand the key in the environment variable NAME for scores and admin paths. Without it"
        " they are open.",
        "`/score_*`, `/query`, `/admin/*`, `/metrics`, and headers and names of engines in `/ready`"
        " then require `Authorization: Bearer KEY` ([scores.md](scores.md#who-may-ask))."] = None
    salt_per_tenant_env: Annotated[str | None, Flag("--salt-per-tenant NAME", SECURITY),
        "Let no two tenants share cached blocks: their cache salts are made with the secret in the"
        " environment variable NAME.",
        "See [salts of tenants](api.md#tenants-that-share-no-blocks)."] = None
    allow_paths: Annotated[list[str], Flag("--allow-path [METHOD ]/PATH", SECURITY),
        "Forward this path, too, to the least loaded engine. Repeat the flag for more paths; every"
        " unknown path is answered with status 404.",
        "The default method is `POST`; some paths are [built"
        " in](api.md#paths-that-are-forwarded-by-load)."] = []
    cors_origins: Annotated[list[str], Flag("--cors-origin ORIGIN", SECURITY),
        "Allow web pages from this origin, https://HOST, to send requests from a browser; * allows"
        " all. Repeat the flag for more.",
        "See [api.md](api.md#browsers)."] = []
    trust_kv_transfer_params: Annotated[bool, Flag("--trust-kv-transfer-params", SECURITY),
        "Let clients say where engines fetch blocks from. Otherwise such a request is answered with"
        " status 400.",
        "See [api.md](api.md#what-travels-on)."] = False
    trust_priority: Annotated[bool, Flag("--trust-priority", SECURITY),
        "Let clients set the `priority` of a request in its engine's queue. Otherwise such a"
        " request is answered with status 400.",
        "See [api.md](api.md#what-travels-on)."] = False
    ui: Annotated[bool, Flag("--ui/--no-ui", OBSERVABILITY),
        "Serve the page for operators at /, on the admin port if there is one.",
        "Without an admin key or API keys, only browsers on the gateway's own machine see [the"
        " page](guides/page.md)."] = True
    access_log: Annotated[str | None, Flag("--access-log FILE", OBSERVABILITY),
        'Write one line for each answered request to this file; "-" is standard error, "none"'
        " writes no such lines.",
        "In the file of settings, none is `null`. The [access log](observe.md#the-access-log) is"
        " opened again after logrotate has moved it."] = "-"
    access_log_probes: Annotated[bool, Flag("--access-log-probes", OBSERVABILITY),
        "Write a line to the access log for answers to /health, /ready, /metrics and"
        " /ping, too."] = False
    log_format: Annotated[Literal["text", "json"], Flag("--log-format", OBSERVABILITY),
        "Write the log and the access log as text, or as one JSON object a line.",
        "`json` is for all that goes to standard error ([observe.md](observe.md#logs))."] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"],
        Flag("--log-level", OBSERVABILITY),
        "Log what is at least as severe as this."] = "info"
    otlp: Annotated[str | None, Flag("--otlp URL", OBSERVABILITY),
        "Send OpenTelemetry spans to this URL (OTLP over HTTP): http://HOST:4318/v1/traces.",
        "It needs `pip install 'inferway[otel]'` ([api.md](api.md#traces))."] = None
    records: Annotated[RecordSettings, "Records of requests that have ended."] = RecordSettings()
    publish: Annotated[str | None, Flag("--publish tcp://…", OBSERVABILITY), ONCE,
        "Publish decisions and KV events over ZMQ at this address: one with a wildcard,"
        " tcp://*:5558, is bound, any other is connected to."] = None
    publish_text: Annotated[bool, Flag("--publish-text", OBSERVABILITY),
        "Publish prompts and messages, too. Whoever can connect then reads them.",
        "Rendered templates are published, too."] = False
    explain_text: Annotated[bool, Flag("--explain-text", OBSERVABILITY),
        "Keep the last prompts in memory as token ids, and let admins see the text around the place"
        " where one was not reused. It needs --admin-key-env or --api-keys.",
        "See [its guide](guides/explain.md#with-text)."] = False
    picker: Annotated[PickerSettings, "Settings of `inferway epp`."] = PickerSettings()

    # fmt: on
    def admin_key(self) -> str | None:
        """Return the key that admin paths require, or None. Raises ConfigError if its environment
        variable is unset."""
        return secret_in(self.admin_key_env, "admin_key_env")

    def salt_secret(self) -> str | None:
        """Return the secret that tenants' salts are made with, or None. Raises ConfigError if its
        environment variable is unset."""
        return secret_in(self.salt_per_tenant_env, "salt_per_tenant_env")

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
        """Return the context as `engine_tls` does, without effect on others. Raises ConfigError."""
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
