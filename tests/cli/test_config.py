"""`inferway config check` and `show`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferway.cli.main import main

ENGINE = ["--engine", "http://h:8000"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, arguments)])


def file(directory: Path, text: str) -> Path:
    path = directory / "file.yaml"
    path.write_text(text)
    return path


def test_settings_that_can_be_used_are_valid(tmp_path: Path) -> None:
    path = file(tmp_path, "engines: [{url: http://h:8000}]\n")

    result = run("check", path)

    assert (result.exit_code, result.output) == (0, f"{path}: valid\n")


def test_a_configuration_of_llm_d_is_checked_and_told_what_is_not_in_force(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins:\n- type: token-producer\n  parameters: {modelName: m}\n- type: queue-scorer\n",
    )

    result = run("check", path)

    assert result.exit_code == 0
    assert "note: plugins[0]: token-producer: prompts are rendered" in result.output
    assert result.output.endswith(f"{path}: valid\n")


def test_values_of_llm_d_s_charts_are_checked(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "router: {epp: {pluginsConfigFile: a, pluginsCustomConfig: {a: 'plugins: [{type: "
        "queue-scorer}]'}}}",
    )

    result = run("check", path)

    assert (result.exit_code, result.output) == (0, f"{path}: valid\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engines: []", "no engine: give at least one"),
        ("kind: EndpointPickerConfig\nplugins: [{type: warp}]", "plugins[0].type: 'warp' is not"),
        (
            "engines: [{url: http://h:1}]\nscheduling: {plugins: [{type: warp}]}",
            "scheduling: plugins[0].type: 'warp' is not known",
        ),
        ("[", "not valid YAML"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, says: str) -> None:
    result = run("check", file(tmp_path, text))

    assert result.exit_code == 2
    assert says in result.output


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "engines: [{url: http://h:8000, block_size: 32}]\nport: 1\nhost: h2\n"
        "models: {m: {tokenizer: t}}\n",
    )

    lines = run("show", "--config", path, "--port", "2").output.splitlines()

    assert "port: 2  # a flag" in lines
    assert f'host: "h2"  # {path}' in lines
    assert f"engines[0].block_size: 32  # {path}" in lines
    assert "engines[0].name: null  # default" in lines
    assert f'models.m.tokenizer: "t"  # {path}' in lines
    assert "timeouts.connect: 2.0  # default" in lines


def test_the_flags_about_shapes_leave_the_files_other_words_about_them(tmp_path: Path) -> None:
    path = file(tmp_path, "structured: {answer_bytes: 5000}\n")

    shown = run("show", *ENGINE, "--config", path, "--structured-trial-compile").output
    both = run("show", *ENGINE, "--report-validity", "--structured-trial-compile").output

    assert _line(shown, "structured.trial_compile") == ["structured.trial_compile:", "true"]
    assert _line(shown, "structured.report_validity") == ["structured.report_validity:", "false"]
    assert _line(shown, "structured.answer_bytes") == ["structured.answer_bytes:", "5000"]
    assert _line(both, "structured.report_validity") == ["structured.report_validity:", "true"]


def _line(shown: str, key: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if line.startswith(key)]
    return line.split()[:2]


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret-1")

    shown = run(
        "show", *ENGINE, "--peers-redis", "redis://me:secret-2@r:6379/1", "--admin-key-env", "A_KEY"
    ).output

    assert "secret" not in shown
    assert 'peers.redis: "redis://me:***@r:6379/1"  # a flag' in shown
    assert 'admin_key_env: "A_KEY"  # a flag; it is set' in shown


def test_secrets_are_not_shown_in_lists_either(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        'discovery: {dns: ["http://me:hush-1@a:8000", "http://me:hush-2@b:8000"]}\n'
    )

    shown = run("show", "--config", str(tmp_path / "gateway.yaml")).output

    assert "hush" not in shown
    assert '["http://me:***@a:8000","http://me:***@b:8000"]' in shown


def test_flags_reach_the_keys_of_ejection() -> None:
    flags = ["--ejection-failures", "3", "--ejection-share", "0.25", "--ejection-least", "8"]
    times = ["--ejection-window", "9", "--ejection-seconds", "2", "--ejection-max-seconds", "60"]

    result = run("show", *ENGINE, *flags, *times)

    for line in (
        *("ejection.failures: 3", "ejection.share: 0.25", "ejection.least: 8"),
        *("ejection.window: 9.0", "ejection.seconds: 2.0", "ejection.max_seconds: 60.0"),
    ):
        assert f"{line}  # a flag\n" in result.output


def test_what_is_switched_off_by_a_flag_is_said_to_be_so() -> None:
    assert "scoring: false  # a flag\n" in run("show", *ENGINE, "--no-scoring").output
    assert "scoring: true  # default\n" in run("show", *ENGINE).output


def test_flags_reach_the_keys_of_flow_control_and_timeouts() -> None:
    flags = ["--in-flight", "200", "--engine-in-flight", "20", "--queue", "7", "--attempts", "2"]

    result = run("show", *ENGINE, *flags, "--hold-head", "5", "--drain-seconds", "90")

    assert result.exit_code == 0
    for line in (
        *("flow.in_flight: 200", "flow.engine_in_flight: 20", "flow.queue: 7"),
        *("retries.attempts: 2", "timeouts.hold_head: 5.0", "timeouts.drain: 90.0"),
    ):
        assert f"{line}  # a flag\n" in result.output
