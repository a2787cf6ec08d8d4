"""A file, and flags over it; and errors that name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferway.config import EngineSettings, ModelSettings, load_settings, parse_engine
from inferway.errors import ConfigError


def test_an_engine_is_a_url_and_what_is_given_by_hand() -> None:
    spec = "http://h:8101,events=tcp://h:5601,replay=tcp://h:5602,block_size=32,api_key_env=KEY"

    assert parse_engine(spec) == EngineSettings(
        url="http://h:8101",
        events="tcp://h:5601",
        replay="tcp://h:5602",
        block_size=32,
        api_key_env="KEY",
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("http://h:1,blocksize=3", "'blocksize=3' is not KEY=VALUE with KEY one of name, events"),
        ("http://h:1,block_size=x", "block_size: 'x': expected `int | null`, got `str`"),
        ("http://h:1,block_size=0", "block_size: '0': expected `int` >= 1"),
    ],
)
def test_a_bad_engine_flag_says_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_engine(spec)

    assert message in str(e.value)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "inferway.yaml"
    path.write_text("port: 9000\nhost: 0.0.0.0\nengines:\n  - url: http://h:1\n")

    settings = load_settings(path, {"port": 7000})

    assert (settings.port, settings.host) == (7000, "0.0.0.0")
    assert settings.engines[0].label == "h:1"


def test_flags_change_single_settings_of_a_model_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "inferway.yaml"
    path.write_text(
        "engines: [{url: 'http://h:1'}]\n"
        "models:\n"
        "  a: {tokenizer: /a, chat_template_kwargs: {enable_thinking: false}}\n"
        "  b: {chat_template: /b.jinja}\n"
    )

    settings = load_settings(path, {"models": {"a": {"tokenizer": "/other"}, "c": {}}})

    assert settings.models == {
        "a": ModelSettings(tokenizer="/other", chat_template_kwargs={"enable_thinking": False}),
        "b": ModelSettings(chat_template="/b.jinja"),
        "c": ModelSettings(),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "engins: []",
            "object contains unknown field `engins`; did you mean `engines`?; known: ",
        ),
        ("port: 99999\nengines: [{url: 'http://h:1'}]", "port: 99999: expected `int` <= 65535"),
        ("engines: []", "no engine: give at least one URL"),
        ("engines: [{url: 'h:1'}]", "engine 'h:1': expected http://HOST:PORT"),
        ("engines: [{url: 'http://[h:1'}]", "engine 'http://[h:1': expected http://HOST:PORT"),
        ("engines: [{url: 'http://h 1'}]", "engine 'http://h 1': expected http://HOST:PORT"),
        ("engines: [{url: 'http://h:0'}]", "engine 'http://h:0': expected http://HOST:PORT"),
        ("engines: [{url: 'http://me:pw@h:1'}]", "'http://me:***@h:1': expected no user"),
        ("engines: [{url: 'ftp://me:pw@h:1'}]", "engine 'ftp://me:***@h:1': expected http://HOST"),
        ("engines: [{url: 'http://h:1/a?b=1'}]", "no more than a path behind it"),
        ("engines: [{url: 'http://h:1/a/v1/'}]", "leave out /v1"),
        ("engines: [{url: 'http://h:1'}, {url: 'http://h:1'}]", "'h:1' is given twice"),
        (
            "engines: [{url: 'http://h:1', role: prefill, labels: {llm-d.ai/role: decode}}]",
            "role 'prefill' and label llm-d.ai/role: 'decode' contradict each other",
        ),
        (
            "engines: [{url: 'http://h:1', kv_connector: mooncake}]",
            "kv_connector 'mooncake' needs kv_bootstrap=HOST:PORT",
        ),
        (
            "engines: [{url: 'http://h:1', kv_connector: nixl, kv_bootstrap: 'h:1'}]",
            "only mooncake and sglang have a bootstrap server",
        ),
        (
            "engines: [{url: 'http://h:1', kv_bootstrap: 'h:1'}]",
            "kv_bootstrap 'h:1' with kv_connector None",
        ),
        (
            "engines: [{url: 'http://h:1', kv_connector: sglang, kv_bootstrap: 'http://h:1'}]",
            "kv_bootstrap 'http://h:1': expected HOST:PORT",
        ),
        (
            "engines: [{url: 'http://h:1', kv_host: 'h:5600'}]",
            "kv_host 'h:5600': expected a host without a port",
        ),
        (
            "engines: [{url: 'http://h:1', role: prefiller}]",
            "role: 'prefiller': expected one of prefill, decode, both",
        ),
        ("engines: [{url: 'http://h:1', events: 'h:5'}]", "events 'h:5' must start with tcp://"),
        ("engines: [{url: 'http://h:1', events: 'http://h:1/kv_cache_events'}]", "give block_size"),
        (
            "engines: [{url: 'http://h:1'}]\nmodels: {m: {template: x}}",
            "object contains unknown field `template`; did you mean `chat_template`?; known: ",
        ),
        (
            "engines: [{url: 'http://h:1'}]\nmodels: {m: {chat_template_content_format: text}}",
            "models.m.chat_template_content_format: 'text': expected one of auto, string, openai",
        ),
        (
            "engines: [{url: 'http://h:1'}]\n"
            "models: {m: {chat_template_kwargs: {chat_template: x}}}",
            "models: m: chat_template_kwargs: 'chat_template' does not belong there",
        ),
        (
            "engines: [{url: 'http://h:1'}]\nprobe: {one_in: -1}",
            "probe.one_in: -1: expected `int` >= 0",
        ),
        (
            "engines: [{url: 'http://h:1'}]\nallow_paths: [sleep]",
            "allow_paths: 'sleep': expected a path, '/v2/embed', or 'METHOD /path'",
        ),
        ("engines: [{url: 'http://h:1'}]\nallow_paths: ['/a?b=1']", "allow_paths: '/a?b=1'"),
        ("engines: [{url: 'http://h:1'}]\ncors_origins: [app]", "cors_origins: 'app'"),
        ("engines: [{url: 'http://h:1'}]\ncors_origins: ['http://a/b']", "'http://a/b'"),
        ("engines: [{url: 'http://h:1'}]\nadmin_port: 8080", "admin_port: 8080 is `port`"),
        ("engines: [{url: 'http://h:1'}]\notlp: 'h:4317'", "otlp: 'h:4317': expected http://"),
        (
            "engines: [{url: 'http://h:1'}]\nlog_format: xml",
            "log_format: 'xml': expected one of text, json",
        ),
        ("- a", "expected keys like `engines:`, got list"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_bad_file_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "inferway.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as e:
        load_settings(path, {})

    assert message in str(e.value)


@pytest.mark.parametrize(
    "engine",
    [
        "http://h:1,role=prefill,label.llm-d.ai/role=prefill",
        "http://h:1,kv_connector=mooncake,role=decode",
        "http://h:1,kv_connector=mooncake,kv_bootstrap=[fd00::1]:8998",
        "http://h:1,kv_connector=nixl,kv_host=fd00::1",
    ],
)
def test_what_goes_together_is_taken(engine: str) -> None:
    load_settings(None, {"engines": [parse_engine(engine)]})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: cannot be read: No such file"):
        load_settings(tmp_path / "nope.yaml", {})


def test_an_api_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    engine = EngineSettings(url="http://h:1", api_key_env="ENGINE_KEY")

    with pytest.raises(ConfigError, match="'ENGINE_KEY' is not set"):
        engine.authorization()


def test_an_api_key_becomes_the_engines_authorization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret")
    engine = EngineSettings(url="http://h:1", api_key_env="ENGINE_KEY")

    assert engine.authorization() == ((b"authorization", b"Bearer secret"),)


def test_texts_are_not_kept_where_nobody_is_known_to_be_an_admin() -> None:
    with pytest.raises(ConfigError, match=r"explain_text: .*admin_key_env"):
        load_settings(None, {"engines": [EngineSettings(url="http://a:1")], "explain_text": True})
