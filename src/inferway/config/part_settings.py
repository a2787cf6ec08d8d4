"""The parts of the settings: each struct has the keys below one key of ServeSettings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from inferway.config.setting import (
    FAILURES,
    GATEWAYS,
    LIMITS,
    OBSERVABILITY,
    PICKER_TLS,
    PICKING,
    PROMPTS,
    SCHEDULING,
    STRUCTURED,
    Count,
    Flag,
    NotNegative,
    Port,
    Positive,
    Share,
    WholeNumber,
)

# A field is a paragraph: its type and flag, what is said of it, its default.
# fmt: off


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the probe, which checks that our token ids are those of the engines."""

    join: Annotated[bool,
        "Compare seven short requests' token ids with each engine that joins or comes back."] = True
    one_in: Annotated[WholeNumber,
        "Compare one of this number of live prompts after its answer; `0`: none."] = 1000


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the index: how many blocks it may hold, and what they are worth."""

    max_blocks: Annotated[Count | None,
        "Largest number of blocks; above it, the least likely to be requested are dropped."] = None
    max_bytes: Annotated[Count | None, "The same limit in bytes, at 250 bytes per block."] = None
    tier_weights: Annotated[tuple[Share, ...],
        "Value of a block in an engine's GPU memory, CPU memory and storage."] = (1.0, 0.8, 0.5)


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other gateways in front of the same engines, which this one shares its load with
    (docs/scale.md)."""

    addresses: Annotated[list[str], Flag("--peers HOST:PORT", GATEWAYS),
        "Share what is sent and learned with the other gateways in front of the same engines, at"
        " this address or at every address of this name; the own one may be among them. Repeat the"
        " flag for more.",
        "A name with an address for each gateway is that of a headless Service."] = []
    port: Annotated[Port | None, Flag("--peers-port PORT", GATEWAYS),
        "Tell the other gateways on this port.  [default: that of --peers]",
        "It is required if the addresses have different ports."] = None
    redis: Annotated[str | None, Flag("--peers-redis URL", GATEWAYS),
        "Share what is sent and learned through a Redis or Valkey server instead: redis://,"
        " rediss:// or unix://.",
        "See [how](scale.md#through-a-redis)."] = None
    redis_prefix: Annotated[str, "Gateways with the same prefix and database share."] = "inferway"
    name: Annotated[str | None,
        "Name of this gateway in what others show of it.  [default: host name]"] = None


class RewriteTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the models that a rewrite leads to."""

    model: Annotated[str, "Model that engines serve."]
    weight: Annotated[Count, "Share of the requests, in proportion to the other weights."] = 1


class ModelRewrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests for some models go to others (llm-d: InferenceModelRewrite)."""

    models: Annotated[list[str], "Requested models that the rule applies to; empty: all."] = []
    targets: Annotated[list[RewriteTarget], msgspec.Meta(min_length=1),
        "Models that requests are sent to instead; each request gets one of them at random."]


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pictures that the gateway fetches itself, to know their prompts (docs/api.md)."""

    fetch_domains: Annotated[list[str], Flag("--media-fetch-domain HOST", PROMPTS),
        "Fetch the pictures of chats that are behind http and https URLs of this host, and send"
        " engines the pictures in place of the URLs. Repeat the flag for more hosts.",
        "A host is allowed only by its full name, and private addresses never are. See"
        " [how](api.md#pictures-behind-urls)."] = []
    local_path: Annotated[str | None, Flag("--media-local-path DIR", PROMPTS),
        "Read the pictures of chats that are behind file URLs below this directory."] = None
    fetch_bytes: Annotated[Count,
        "Largest sum of the pictures that are fetched for one chat, in bytes."] = 20 * 1024 * 1024
    fetch_seconds: Annotated[Positive,
        "Longest wait of a chat for its pictures; the engine fetches those that have not come by"
        " then."] = 5.0

    @property
    def is_any(self) -> bool:
        """True if pictures are fetched at all."""
        return bool(self.fetch_domains) or self.local_path is not None


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of what a client may send."""

    body_bytes: Annotated[Count, "Largest body of a request, in bytes."] = 32 * 1024 * 1024
    bodies_bytes: Annotated[Count,
        "Largest sum of the bodies that the gateway holds, each until its answer begins. Above the"
        " limit, requests with more than 64 KiB get 429."] = 1024 * 1024 * 1024
    header_bytes: Annotated[Count, "Largest head of a request, in bytes."] = 64 * 1024
    connections: Annotated[Count,
        "Largest number of open client connections; at most half of the files that the process may"
        " open (`ulimit -n`), and a quarter for each port with `admin_port`."] = 20_000


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of requests that are with the engines at a time, and of those that may wait for
    that."""

    in_flight: Annotated[Count | None, Flag("--in-flight N", LIMITS),
        "Send at most this number of requests to all engines at a time; others wait their turn.",
        "`null`: no limit."] = 10_000
    engine_in_flight: Annotated[Count | None, Flag("--engine-in-flight N", LIMITS),
        "Send at most this number of requests to each engine at a time.  [default: no"
        " limit]"] = None
    queue: Annotated[WholeNumber, Flag("--queue N", LIMITS),
        "Let at most this number of requests wait; further ones are answered with status"
        " 429."] = 1000
    queue_seconds: Annotated[Positive,
        "Longest wait of a request in seconds, unless its headers set a shorter one."] = 60.0


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tries on further engines, before an answer has begun."""

    attempts: Annotated[Count, Flag("--attempts N", FAILURES),
        "Try a request on at most this number of engines while none has begun to answer.",
        "The scheduler names at most three."] = 3
    statuses: Annotated[tuple[Annotated[int, msgspec.Meta(ge=400, le=599)], ...],
        "Statuses of an engine's answer after which another engine is tried."] = (502, 503)
    share: Annotated[Share,
        "Largest share of the requests in flight that may be further tries."] = 0.2
    floor: Annotated[WholeNumber,
        "Number of further tries that are allowed whatever `share` says."] = 3
    quarantine_seconds: Annotated[NotNegative,
        "Seconds for which a request is refused that [two engines had when they were"
        " lost](flow-control.md#requests-that-engines-are-lost-with); `0`: none is."] = 600.0


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timeouts, in seconds."""

    keep_alive: Annotated[Positive, "How long an idle client connection stays open."] = 75.0
    request_body: Annotated[Positive, "From the first byte of a request to its last."] = 60.0
    connect: Annotated[Positive, "To connect to an engine."] = 2.0
    first_byte: Annotated[Positive,
        "Until an engine's answer begins (a stream: its first event): queue and prefill."] = 600.0
    hold_head: Annotated[Positive, Flag("--hold-head SECONDS", FAILURES),
        "Hold back the head of a streamed answer for at most this time, until its first event"
        " comes: if the engine is lost before, another one takes its place and the client does not"
        " notice. It counts only with --stream-keep-alive 0."] = 30.0
    stream_keep_alive: Annotated[NotNegative, Flag("--stream-keep-alive SECONDS", FAILURES),
        "Send the client of a stream a comment after this time without a byte, wherever its request"
        " waits; another engine may still answer. 0: never.",
        "The comment comes with the head; for messages it is the event `ping`."] = 15.0
    idle_stream: Annotated[Positive,
        "Between two pieces of an answer; in a stream, between two events."] = 300.0
    silent_engine: Annotated[Positive,
        "How long an answer waits for an engine [in"
        " silence](reliability.md#engines-that-are-silent) if no other engine can give it, although"
        " others serve its model."] = 7.0
    drain: Annotated[Positive, Flag("--drain-seconds SECONDS", LIMITS),
        "Give running answers this time at shutdown before they are cut off."] = 30.0


class EjectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions under which a failing engine gets no requests for a while."""

    failures: Annotated[Count, Flag("--ejection-failures N", FAILURES),
        "Send an engine nothing for a while after this number of failures in a row."] = 5
    share: Annotated[float, msgspec.Meta(gt=0, le=1), Flag("--ejection-share SHARE", FAILURES),
        "Send an engine nothing for a while after it has failed this share of its recent"
        " requests."] = 0.5
    least: Annotated[Count, Flag("--ejection-least N", FAILURES),
        "Heed --ejection-share only if an engine had at least this number of recent requests."] = 20
    window: Annotated[Positive, Flag("--ejection-window SECONDS", FAILURES),
        "Count requests of this last time as recent."] = 30.0
    seconds: Annotated[Positive, Flag("--ejection-seconds SECONDS", FAILURES),
        "Send a failing engine nothing for this time at first, and for twice as long each further"
        " time."] = 5.0
    max_seconds: Annotated[Positive, Flag("--ejection-max-seconds SECONDS", FAILURES),
        "Send a failing engine nothing for this time at the most."] = 300.0


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records of requests that have ended: in memory, and in files if there is a directory."""

    requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000),
        "Records kept in memory, in 1 KiB each on average; `0`: nothing is noted."] = 10_000
    directory: Annotated[str | None, Flag("--record DIR", OBSERVABILITY),
        "Write a record of each request to compressed files in this directory: times, lengths,"
        " candidates and hashes of blocks; no text and no token ids.",
        "See [files of records](observe.md#record-files)."] = None
    max_bytes: Annotated[int, msgspec.Meta(ge=1024 * 1024),
        "Bytes of all these files together; the oldest are deleted."] = 1024 * 1024 * 1024
    max_age: Annotated[Positive, "Seconds after which a file is deleted."] = 7 * 86_400.0


class StructuredSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that ask for the shape of their answer (docs/structured.md)."""

    check: Annotated[bool,
        "Check such requests before an engine sees them, and their answers."] = True
    trial_compile: Annotated[bool, Flag("--structured-trial-compile", STRUCTURED),
        "Compile the shape that a request asks for once, in a process with limits, before an engine"
        " sees it."] = False
    refuse_unenforced: Annotated[bool,
        "A request with `strict` is refused with 400 if a keyword of its shape cannot be enforced;"
        " otherwise the keyword is named in `x-inferway-unenforced`."] = False
    report_validity: Annotated[bool, Flag("--report-validity", STRUCTURED),
        "Say at the end of a streamed answer whether it has the shape that was asked for.",
        "It is a comment of the stream."] = False
    answer_bytes: Annotated[Count,
        "Largest answer that is held back for its check, and text kept of a stream."] = 1024 * 1024
    warm_per_second: Annotated[NotNegative,
        "Largest number of shapes per second that each engine with Inferway's plugin is asked to"
        " compile in advance; `0`: none."] = 50.0
    quarantine_seconds: Annotated[Positive,
        "Seconds for which a shape is refused that has crashed an engine or trial compile."] = 600.0


class KvTransferSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that one engine computes for another (docs/kv-transfer.md)."""

    legs: Annotated[Literal["auto", "gateway", "sidecar", "off"],
        Flag("--prefill-legs", SCHEDULING),
        "Say who asks an engine to compute a prompt that another one answers: the gateway, llm-d's"
        " sidecar beside the other, the gateway where it knows the engines' connector, or nobody.",
        "`auto`: the gateway where it knows the connector, else the sidecar, which is told by"
        " headers. `off`: each prompt is computed where it is answered."] = "auto"
    lease_seconds: Annotated[Positive,
        "How long engines keep blocks that nobody fetched: vLLM's `kv_lease_duration`.",
        "It counts for engines that do not tell."] = 30.0
    lease_margin_seconds: Annotated[Positive,
        "How long before its end a lease is not used any more."] = 5.0
    hand_over_seconds: Annotated[NotNegative,
        "How long a drained engine hands its warm prefixes to others; `0`: it does not."] = 60.0


class SloSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latencies promised of answers, by which goodput is counted and engines are wanted."""

    ttft_seconds: Annotated[Positive | None,
        "Seconds to the first token of a streamed answer."] = None
    itl_seconds: Annotated[Positive | None,
        "Seconds between two tokens of an answer, on average."] = None
    share: Annotated[float, msgspec.Meta(gt=0, lt=1),
        "Share of the requests that are to be in time, above 0 and below 1."] = 0.9
    ahead_seconds: Annotated[NotNegative,
        "How long an engine takes to start; the number of engines is that needed then."] = 60.0

    @property
    def is_any(self) -> bool:
        """True if a latency is promised."""
        return self.ttft_seconds is not None or self.itl_seconds is not None


class PickerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`inferway epp`: the endpoint picker behind a proxy (docs/endpoint-picker.md)."""

    grpc_port: Annotated[Port, Flag("--grpc-port PORT", PICKING),
        "Answer the proxy (ext_proc over gRPC) on this port; 0 takes a free one."] = 9002
    grpc_health_port: Annotated[Port, Flag("--grpc-health-port PORT", PICKING),
        "Answer gRPC health checks on this port, always in the clear."] = 9003
    health_checking: Annotated[bool, Flag("--health-checking BOOLEAN", PICKING),
        "Answer gRPC health checks on --grpc-port, too."] = False
    fallbacks: Annotated[WholeNumber, Flag("--fallbacks N", PICKING),
        "Tell the proxy this number of further addresses behind the first, best first. Leave it at"
        " 0 for clusters of Envoy's type ORIGINAL_DST."] = 0
    report_cost: Annotated[Literal["prompt", "completion", "total"] | None,
        Flag("--report-cost", PICKING),
        "Tell the gateway these tokens of each answer, as x-gateway-inference-request-cost.",
        "It is in the metadata `envoy.lb`."] = None
    heed_subset: Annotated[bool, Flag("--disable-endpoint-subset-filter BOOLEAN", PICKING),
        "Pick among all engines, whatever addresses the gateway allows."] = True
    conformance: Annotated[bool, Flag("--conformance BOOLEAN", PICKING),
        "Let a client's header choose the engine. This is for conformance tests of"
        " gateways only."] = False
    secure: Annotated[bool, Flag("--secure-serving BOOLEAN", PICKER_TLS),
        "Speak TLS with the proxy; --secure-serving=false speaks in the clear."] = True
    cert_path: Annotated[str | None, Flag("--cert-path DIR", PICKER_TLS),
        "Take the certificate of --grpc-port from tls.crt and tls.key in this directory.  [default:"
        " self-signed]",
        "Proxies must not verify a certificate that the picker has made itself."] = None
    reload_cert: Annotated[bool, Flag("--enable-cert-reload BOOLEAN", PICKER_TLS),
        "Read the certificate of --cert-path again when its files change.",
        "New connections then use it."] = False
