"""Findings from facts about engines and models. None of the rules gathers facts itself.

A *fail* stops `inferway serve` or `inferway demo` from working; a *warn* costs cache hits or
works with less. Both say the cure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from inferway.doctor.facts import EngineReport, Socket, SparseCaches, TokenizerReport
from inferway.fleet.engine_client import PLAIN_HTTP

# tokens; a question without a system prompt is shorter (vLLM's default on CPUs is 128)
LARGE_BLOCK = 128

KV_EVENTS_FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)

DESCRIBING_FLAG = (
    '--kv-transfer-config \'{"kv_connector_extra_config":{"self_describing_kv_events":true}}\''
)


# What becomes of a system message among the others, as agents' reminders are.
_INLINE_SYSTEM = {
    "refuses": "its template refuses system messages inside a conversation: vLLM moves those of"
    " /v1/messages to the front, so that each turn that brings one misses the cache",
    "front": "its template moves system messages inside a conversation to the front: each turn that"
    " brings one misses the cache",
    "drops": "its template drops system messages inside a conversation",
}
_KEEPING_TEMPLATE = (
    "where agents send them: start its engines with a --chat-template that keeps system messages in"
    " their places, and give the gateway the same (--chat-template)"
)


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A line of the report: what was found, and the cure."""

    level: Level
    subject: str
    evidence: str
    cure: str = ""  # empty when all is well, or when the evidence holds it


def judge_engine(found: EngineReport, tools_come: bool = False) -> Iterator[CheckResult]:
    """`tools_come`: a gateway has seen requests with tools."""
    subject = f"engine {found.settings.label}"
    if found.error is not None:
        cure = "is it running, and are host and port right? a 401 or 403 needs api_key_env=NAME"
        if PLAIN_HTTP in found.error:
            cure = ""  # the error has it
        yield CheckResult(Level.FAIL, subject, found.error, cure)
        return
    yield _health(subject, found)
    newer = found.told.newer_than_known if found.told is not None else None
    if newer is not None:
        yield CheckResult(Level.WARN, subject, newer, "take a newer gateway, if there is one")
    yield _models(subject, found)
    yield _block_size(subject, found)
    if found.sparse is not None:
        yield from _sparse(subject, found.sparse)
    if found.prefix_caching is False:
        evidence = "prefix caching is off, so it will never have a hit"
        yield CheckResult(Level.FAIL, subject, evidence, "start it with --enable-prefix-caching")
    if found.takes_tools is False:
        yield _tools(subject, tools_come)
    yield from _events(subject, found)


def _tools(subject: str, tools_come: bool) -> CheckResult:
    evidence = "it was started without --enable-auto-tool-choice, and refuses requests with tools"
    cure = "start it with --enable-auto-tool-choice --tool-call-parser NAME, its model's parser"
    if tools_come:
        evidence += ": a gateway gets such requests"
    return CheckResult(Level.FAIL if tools_come else Level.WARN, subject, evidence, cure)


def _health(subject: str, found: EngineReport) -> CheckResult:
    if found.health == 200:
        return CheckResult(Level.OK, subject, "/health answers 200")
    evidence = f"/health answers {found.health}"
    return CheckResult(Level.FAIL, subject, evidence, "its own log says why; restart it")


def _models(subject: str, found: EngineReport) -> CheckResult:
    models = found.told.models if found.told else ()
    if not models:
        return CheckResult(Level.FAIL, subject, "it serves no model", "start it with a model")
    return CheckResult(Level.OK, subject, "serves " + ", ".join(model.name for model in models))


def _block_size(subject: str, found: EngineReport) -> CheckResult:
    told = found.told.block_size if found.told else None
    given = found.settings.block_size
    if told is not None and given is not None and told != given:
        evidence = f"block_size={given} was given, the engine has {told}: nothing would match"
        return CheckResult(Level.FAIL, subject, evidence, f"leave block_size out, or give {told}")
    if told is None and given is None:
        evidence = "it does not tell its block size, so its cache cannot be known"
        cure = f"--engine {found.settings.url},block_size=N with the engine's --block-size"
        return CheckResult(Level.WARN, subject, evidence, cure)
    size = told or given or 0
    blocks = f"blocks of {size} tokens"
    if found.sparse is not None and found.sparse.hash_size < size:  # of a prompt's last part
        size = found.sparse.hash_size
        blocks += f", with hits at multiples of {size}"
    evidence = f"{blocks}: prompts below {size} tokens can never match here"
    if size < LARGE_BLOCK:
        return CheckResult(Level.OK, subject, evidence)
    cure = (
        f"try it with a system prompt of more than {size} tokens, asked twice; vLLM's --block-size"
        " makes blocks smaller where model and platform allow it"
    )
    return CheckResult(Level.WARN, subject, evidence, cure)


def _sparse(subject: str, found: SparseCaches) -> Iterator[CheckResult]:
    """Of caches that keep some blocks only, a prompt may find nothing though another one began like
    it."""
    size, every = found.block_size, found.kept_every
    if found.has_states and found.hash_size == size >= LARGE_BLOCK:
        evidence = (
            f"its state-space layers keep a checkpoint every {size} tokens at most: a prompt that"
            f" shares fewer than {size} tokens with an earlier one reuses nothing of it"
        )
        unit = next(unit for unit in range(16, 0, -1) if size % unit == 0)
        cure = (
            f"start it with --prefix-match-unit {unit} (vLLM 0.32 or newer): then a prompt's end"
            " has a checkpoint as well"
        )
        yield CheckResult(Level.WARN, subject, evidence, cure)
    if every == 0:
        what = "checkpoint of its state-space layers" if found.has_states else "sliding window"
        evidence = (
            f"it keeps the {what} before a prompt's end alone (retention interval 0): a prompt that"
            " shares the beginning of another one, and not all of it, reuses nothing the first time"
        )
        cure = (
            f"start it with --prefix-cache-retention-interval N, a multiple of {size}: then one is"
            " kept every N tokens"
        )
        yield CheckResult(Level.WARN, subject, evidence, cure)


def _events(subject: str, found: EngineReport) -> Iterator[CheckResult]:
    by_hand = found.settings.events is not None
    for finding in found.told.findings if found.told and not by_hand else ():
        yield CheckResult(Level.WARN, subject, finding)  # discovery's sentences hold their cure
    for socket in found.sockets:
        yield _socket(subject, socket)
    if found.sockets and not any(socket.what == "replay" for socket in found.sockets):
        evidence = "no replay socket: one lost message makes us forget its whole cache"
        yield CheckResult(Level.WARN, subject, evidence, f"start it with {KV_EVENTS_FLAG}")
    if found.offloads and found.sockets:
        evidence = (
            "it offloads blocks; whether it has self_describing_kv_events cannot be seen from "
            "here, and without, offloaded blocks count only if we know them from GPU memory"
        )
        cure = f"if it is not set: add {DESCRIBING_FLAG}, beside what is there already"
        yield CheckResult(Level.WARN, subject, evidence, cure)


def _socket(subject: str, socket: Socket) -> CheckResult:
    if socket.bind:
        evidence = f"{socket.what}: we bind {socket.endpoint}, the engine must connect"
        return CheckResult(Level.OK, subject, evidence)
    if socket.error is None:
        return CheckResult(Level.OK, subject, f"{socket.what}: {socket.endpoint} answers")
    return CheckResult(
        Level.FAIL,
        subject,
        f"{socket.what}: {socket.endpoint}: {socket.error}",
        f"is the port right and open to this machine? start the engine with {KV_EVENTS_FLAG}",
    )


def judge_fleet(engines: Sequence[EngineReport]) -> Iterator[CheckResult]:
    """Yield what no engine shows alone."""
    owners: dict[str, str] = {}
    for engine in engines:
        for socket in engine.sockets:
            other = owners.setdefault(socket.endpoint, engine.settings.label)
            if other != engine.settings.label:
                yield CheckResult(
                    Level.FAIL,
                    "fleet",
                    f"{other} and {engine.settings.label} both publish on {socket.endpoint}: "
                    "whose blocks these are cannot be told",
                    "give each engine ports of its own",
                )


def judge_tokenizer(
    found: TokenizerReport, inline_system_comes: bool = False
) -> Iterator[CheckResult]:
    """`inline_system_comes`: a gateway has seen system messages among others."""
    subject = f"model {found.model}"
    if found.error is not None:  # the renderer's sentences hold their cure
        evidence = f"{found.error}; its requests would go by load only"
        yield CheckResult(Level.WARN, subject, evidence)
        return
    if found.own_renderer is not None:
        evidence = f"vLLM renders its chats in code of its own ({found.own_renderer})"
        yield CheckResult(Level.WARN, subject, evidence, "none yet: its chats go by load only")
        return
    yield CheckResult(Level.OK, subject, f"tokenizer from {found.source}")
    evidence = _INLINE_SYSTEM.get(found.inline_system or "", "")
    if evidence:
        seen = ": a gateway gets such requests" if inline_system_comes else ""
        yield CheckResult(Level.WARN, subject, evidence + seen, _KEEPING_TEMPLATE)
