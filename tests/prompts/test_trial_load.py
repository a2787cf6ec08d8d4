"""Hostile model files end a process that loads them: one that can be spared, never ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferway.errors import RenderError
from inferway.prompts import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.files.model_processes import TrialLoads, limits_for
from inferway.prompts.files.raw_files import read_raw_files
from inferway_structured.sandbox.process import Limits

MakeModel = Callable[..., Path]
Row = dict[str, Any]

MIB = 1 << 20


def tight(_: int) -> Limits:
    return Limits(memory_bytes=768 * MIB, cpu_seconds=4, wall_seconds=120)


@pytest.fixture
def trials() -> TrialLoads:
    return TrialLoads(tight)


def check(trials: TrialLoads, directory: Path) -> None:
    trials.check(read_raw_files(directory))


def added(content: str) -> Row:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": 60_000, "content": content, "special": True, **flags}


def bpe(**changes: Any) -> Row:
    model = {"type": "BPE", "vocab": {"a": 0, "é": 1, "a©": 2}, "merges": [["a", "é"]]}
    return {"model": {**model, **changes}}


def test_a_good_model_passes(make_model: MakeModel) -> None:
    trials = TrialLoads()

    check(trials, make_model("gpt-2"))

    assert trials.stats.jobs == 1


def test_its_limits_go_by_the_size_of_the_files() -> None:
    small, large = limits_for(0), limits_for(32 * MIB)

    assert (small.memory_bytes // MIB, small.cpu_seconds) == (640, 10)
    assert (large.memory_bytes // MIB, large.cpu_seconds) == (1664, 58)


def test_its_memory_has_a_limit_whatever_the_size_of_the_files() -> None:
    assert limits_for(128 * MIB).memory_bytes == 2048 * MIB


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (bpe(continuing_subword_prefix="1"), "ended its process"),  # the library aborts
        ({"added_tokens": [added("ab" * 50_000)]}, "took more"),  # each of its beginnings
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "charsmap"),
    ],
    ids=["abort", "giant token", "panic"],
)
def test_hostile_files_are_refused_with_their_directory(
    changes: Row, why: str, make_model: MakeModel, trials: TrialLoads
) -> None:
    directory = make_model("gpt-2", changes)

    with pytest.raises(RenderError, match=why) as e:
        check(trials, directory)

    assert e.value.reason == "bad-tokenizer"
    assert str(directory) in str(e.value)
    assert trials.stats.jobs == 1


def test_deep_json_is_refused(make_model: MakeModel, trials: TrialLoads) -> None:
    directory = make_model("gpt-2")
    (directory / "config.json").write_text('{"a":' + "[" * 10**6 + "]" * 10**6 + "}")

    with pytest.raises(RenderError, match=r"config\.json: not a JSON object"):
        check(trials, directory)


def test_what_failed_is_not_tried_again_until_it_changes(
    make_model: MakeModel, trials: TrialLoads
) -> None:
    directory = make_model("gpt-2", {"normalizer": {"type": "none"}})
    for _ in range(3):
        with pytest.raises(RenderError):
            check(trials, directory)
    assert trials.stats.jobs == 1

    (directory / "chat_template.jinja").write_text("other")
    with pytest.raises(RenderError):
        check(trials, directory)

    assert trials.stats.jobs == 2


def test_what_lacked_time_is_tried_again(make_model: MakeModel) -> None:
    trials = TrialLoads(lambda _: Limits(memory_bytes=768 * MIB, wall_seconds=0.01))
    directory = make_model("gpt-2")

    for _ in range(2):
        with pytest.raises(RenderError) as e:
            check(trials, directory)
        assert e.value.reason == "helper-busy"

    assert trials.stats.jobs == 2


def test_nothing_is_loaded_here_that_did_not_pass(make_model: MakeModel) -> None:
    """Else this process would end."""
    directory = make_model("gpt-2", bpe(continuing_subword_prefix="1"))
    renderer = Renderer(num_threads=1)

    with pytest.raises(RenderError, match="ended its process"):
        renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(directory)))

    renderer.close()


def test_code_that_a_config_names_is_not_run(make_model: MakeModel, trials: TrialLoads) -> None:
    directory = make_model(
        "gpt-2",
        auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
        tokenizer_file="/etc/passwd",
        vocab_file="/etc/passwd",
    )
    (directory / "evil.py").write_text("raise SystemExit")

    check(trials, directory)


def test_a_template_is_not_worked_out_while_it_compiles(make_model: MakeModel) -> None:
    """Where no chat comes by, nothing is made."""
    hidden = "{{ 'x' * 10 ** 11 }}{% set x = 10 ** 9 %}{{ 'x' | center(x) }}"
    directory = make_model("gpt-2", chat_template=hidden)

    check(TrialLoads(tight), directory)


def test_a_config_may_be_large_and_what_it_becomes_is_bounded(make_model: MakeModel) -> None:
    """A million lists take 20 times the bytes of their JSON."""
    directory = make_model("gpt-2")
    (directory / "added_tokens.json").write_text('{"b": [' + "[]," * MIB + "[]]}")

    # The child may be too short of memory to say so.
    with pytest.raises(RenderError, match=r"took more memory than 64 MiB|ended its process"):
        check(TrialLoads(lambda _: Limits(memory_bytes=64 * MIB, wall_seconds=120)), directory)
