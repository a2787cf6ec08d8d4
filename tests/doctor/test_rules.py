from __future__ import annotations

from dataclasses import replace

import pytest

from inferway.config import EngineSettings
from inferway.doctor.engines import sparse_caches
from inferway.doctor.facts import (
    EngineReport,
    Socket,
    SparseCaches,
    TokenizerReport,
)
from inferway.doctor.rules import (
    CheckResult,
    Level,
    judge_engine,
    judge_fleet,
    judge_tokenizer,
)
from inferway.fleet.engine_facts import NEWEST_VLLM, EngineFacts, ModelCard
from inferway.fleet.event_source import EventSource

EVENTS = Socket("events", "tcp://10.0.0.1:5557")
REPLAY = Socket("replay", "tcp://10.0.0.1:5558")


def facts(block_size: int | None = 16, findings: tuple[str, ...] = ()) -> EngineFacts:
    models = (ModelCard("m", "/models/m", None, 4096),)
    return EngineFacts(models, (EventSource(0, EVENTS.endpoint, None),), block_size, findings)


def engine(
    told: EngineFacts | None = None,
    health: int = 200,
    prefix_caching: bool | None = True,
    offloads: bool = False,
    takes_tools: bool | None = None,
    sockets: tuple[Socket, ...] = (EVENTS, REPLAY),
    sparse: SparseCaches | None = None,
    **settings: object,
) -> EngineReport:
    return EngineReport(
        EngineSettings(url="http://10.0.0.1:8000", **settings),  # type: ignore[arg-type]
        health=health,
        told=told or facts(),
        prefix_caching=prefix_caching,
        offloads=offloads,
        takes_tools=takes_tools,
        sockets=sockets,
        sparse=sparse,
    )


def trouble(found: EngineReport) -> list[CheckResult]:
    return [finding for finding in judge_engine(found) if finding.level is not Level.OK]


def test_a_sound_engine_has_no_trouble() -> None:
    assert trouble(engine()) == []


def test_an_engine_out_of_reach_is_one_failure() -> None:
    gone = EngineReport(EngineSettings(url="http://10.0.0.1:8000"), error="connection refused")

    (finding,) = judge_engine(gone)

    assert finding.level is Level.FAIL
    assert finding.evidence == "connection refused"


def test_an_engine_newer_than_the_newest_known_is_a_warning() -> None:
    version = f"{NEWEST_VLLM[0]}.{NEWEST_VLLM[1] + 1}.0"
    told = replace(facts(), version=version, models=(ModelCard("m", None, None, None, "vllm"),))

    [finding] = [each for each in judge_engine(engine(told=told)) if "newer" in each.evidence]

    assert finding.level is Level.WARN
    assert finding.evidence.startswith(f"vLLM {version} is newer than")


def test_an_engine_that_offloads_is_asked_to_describe_what_it_moves() -> None:
    (finding,) = trouble(engine(offloads=True))

    assert finding.level is Level.WARN
    assert "self_describing_kv_events" in finding.evidence
    assert '{"kv_connector_extra_config":{"self_describing_kv_events":true}}' in finding.cure


def test_an_engine_without_events_need_not_describe_them() -> None:
    assert trouble(engine(offloads=True, sockets=())) == []


def test_an_unhealthy_engine_fails() -> None:
    (finding,) = trouble(engine(health=503))

    assert (finding.level, finding.evidence) == (Level.FAIL, "/health answers 503")


def test_an_engine_without_a_model_fails() -> None:
    (finding,) = trouble(engine(EngineFacts((), (), 16, ())))

    assert finding.evidence == "it serves no model"


def test_a_block_size_that_contradicts_the_engine_fails() -> None:
    (finding,) = trouble(engine(facts(32), block_size=16))

    assert finding.level is Level.FAIL
    assert finding.evidence == "block_size=16 was given, the engine has 32: nothing would match"


def test_an_unknown_block_size_warns_with_the_flag() -> None:
    (finding,) = trouble(engine(facts(block_size=None)))

    assert finding.level is Level.WARN
    assert "--engine http://10.0.0.1:8000,block_size=N" in finding.cure


def test_a_block_size_by_hand_is_enough() -> None:
    assert trouble(engine(facts(block_size=None), block_size=16)) == []


def test_prefix_caching_that_is_off_fails() -> None:
    (finding,) = trouble(engine(prefix_caching=False))

    assert finding.level is Level.FAIL
    assert "--enable-prefix-caching" in finding.cure


def test_what_discovery_found_warns() -> None:
    found = trouble(engine(facts(findings=("it publishes no KV events",)), sockets=()))

    assert [finding.evidence for finding in found] == ["it publishes no KV events"]


def test_what_discovery_found_about_events_is_moot_if_they_are_given_by_hand() -> None:
    found = engine(facts(findings=("elsewhere",)), events="tcp://10.0.0.2:5557")

    assert trouble(found) == []


def test_an_event_socket_out_of_reach_fails_with_the_engines_flag() -> None:
    closed = Socket("events", "tcp://10.0.0.1:5557", error="Connection refused")

    (finding,) = trouble(engine(sockets=(closed, REPLAY)))

    assert finding.level is Level.FAIL
    assert finding.evidence == "events: tcp://10.0.0.1:5557: Connection refused"
    assert "--kv-events-config" in finding.cure


def test_a_missing_replay_socket_warns() -> None:
    (finding,) = trouble(engine(sockets=(EVENTS,)))

    assert finding.level is Level.WARN
    assert "no replay socket" in finding.evidence


def test_a_socket_that_we_bind_is_ok() -> None:
    ours = Socket("events", "tcp://*:5557", bind=True)

    assert trouble(engine(sockets=(ours, REPLAY))) == []


def test_two_engines_on_one_socket_fail() -> None:
    others = EngineSettings(url="http://10.0.0.1:8001")
    twin = EngineReport(others, health=200, told=facts(), sockets=(EVENTS,))

    (finding,) = judge_fleet([engine(), twin])

    assert finding.level is Level.FAIL
    assert "10.0.0.1:8000 and 10.0.0.1:8001 both publish on tcp://10.0.0.1:5557" in finding.evidence


def test_a_rank_may_share_its_engines_sockets() -> None:
    assert list(judge_fleet([engine(sockets=(EVENTS, EVENTS))])) == []


def test_a_tokenizer_that_is_here_is_ok() -> None:
    (finding,) = judge_tokenizer(TokenizerReport("m", "/models/m", inline_system="keeps"))

    assert finding == CheckResult(Level.OK, "model m", "tokenizer from /models/m")


def test_a_tokenizer_that_cannot_be_had_warns_of_routing_by_load() -> None:
    (finding,) = judge_tokenizer(TokenizerReport("m", "/models/m", error="no tokenizer.json"))

    assert finding.level is Level.WARN
    assert finding.evidence == "no tokenizer.json; its requests would go by load only"


def test_a_model_that_vllm_renders_in_code_warns() -> None:
    (finding,) = judge_tokenizer(TokenizerReport("m", "/models/m", own_renderer="mistral"))

    assert finding.level is Level.WARN
    assert "(mistral)" in finding.evidence


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("refuses", "vLLM moves those of /v1/messages to the front"),
        ("front", "to the front: each turn that brings one misses the cache"),
        ("drops", "drops system messages inside a conversation"),
    ],
)
def test_a_template_that_moves_system_messages_warns_with_the_flag(does: str, said: str) -> None:
    report = TokenizerReport("m", "/models/m", inline_system=does)
    ok, finding = judge_tokenizer(report)
    _, urgent = judge_tokenizer(report, inline_system_comes=True)

    assert urgent.evidence == f"{finding.evidence}: a gateway gets such requests"
    assert (ok.level, finding.level) == (Level.OK, Level.WARN)
    assert said in finding.evidence
    assert "--chat-template" in finding.cure


@pytest.mark.parametrize(("tools_come", "level"), [(False, Level.WARN), (True, Level.FAIL)])
def test_an_engine_without_a_tool_parser_fails_where_tools_come(
    tools_come: bool, level: Level
) -> None:
    found = [
        finding
        for finding in judge_engine(engine(takes_tools=False), tools_come)
        if finding.level is not Level.OK
    ]

    (finding,) = found
    assert finding.level is level
    assert "without --enable-auto-tool-choice" in finding.evidence
    assert "--tool-call-parser" in finding.cure


@pytest.mark.parametrize("takes_tools", [True, None])
def test_an_engine_that_takes_tools_or_does_not_say_is_left_alone(
    takes_tools: bool | None,
) -> None:
    assert trouble(engine(takes_tools=takes_tools)) == []


def test_a_prompt_that_fills_no_block_is_said_to_match_never() -> None:
    findings = list(judge_engine(engine(facts(block_size=16))))

    said = CheckResult(
        Level.OK,
        "engine 10.0.0.1:8000",
        "blocks of 16 tokens: prompts below 16 tokens can never match here",
    )
    assert said in findings


def test_blocks_longer_than_a_short_question_are_a_warning_with_a_way_to_try_it() -> None:
    (finding,) = trouble(engine(facts(block_size=128)))

    assert finding.level is Level.WARN
    assert "prompts below 128 tokens can never match here" in finding.evidence
    assert "a system prompt of more than 128 tokens, asked twice" in finding.cure
    assert "--block-size" in finding.cure


def sparse(**labels: str) -> list[str]:
    """What is wrong with an engine whose vllm:cache_config_info has these labels."""
    found = sparse_caches({"block_size": "640", "sliding_window": "None", **labels})
    return [each.evidence + "; " + each.cure for each in trouble(engine(sparse=found))]


def test_checkpoints_far_apart_are_named_with_the_flag_that_changes_it() -> None:
    [finding] = sparse(
        mamba_cache_mode="align",
        mamba_block_size="640",
        hash_block_size="640",
        prefix_cache_retention_interval="None",
    )

    assert "a checkpoint every 640 tokens at most" in finding
    assert "--prefix-match-unit 16" in finding


def test_an_engine_that_matches_within_blocks_has_no_blocks_too_large() -> None:
    found = sparse_caches(
        {"block_size": "640", "mamba_cache_mode": "align", "cache_hit_alignment_tokens": "16"}
    )

    [size] = [
        each
        for each in judge_engine(engine(told=facts(block_size=640), sparse=found))
        if "blocks of 640 tokens" in each.evidence
    ]

    assert size.level is Level.OK
    assert "with hits at multiples of 16: prompts below 16 tokens" in size.evidence


def test_checkpoints_that_are_kept_at_a_prompts_end_alone_are_named() -> None:
    [finding] = sparse(
        mamba_cache_mode="align", hash_block_size="16", prefix_cache_retention_interval="0"
    )

    assert "keeps the checkpoint of its state-space layers before a prompt's end alone" in finding
    assert "--prefix-cache-retention-interval N, a multiple of 640" in finding


def test_windows_that_are_kept_at_a_prompts_end_alone_are_named() -> None:
    [finding] = sparse(block_size="16", sliding_window="1024", prefix_cache_retention_interval="0")

    assert "keeps the sliding window before a prompt's end alone" in finding


def test_nothing_is_said_of_an_engine_that_keeps_every_block() -> None:
    assert sparse_caches({"block_size": "16", "mamba_cache_mode": "none"}) is None
    assert sparse_caches({}) is None
