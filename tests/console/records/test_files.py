"""Record files: what was written is read again, up to where it is damaged; no file grows for
ever."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.cli import main
from inferway.config import RecordSettings
from inferway.errors import ConfigError
from inferway_console.records.export import Mooncake
from inferway_console.records.files import SECRET, FleetLine
from inferway_console.records.reader import Recorded, RecordReader
from inferway_console.records.record import RequestRecord
from inferway_console.records.ring import RecordRing
from inferway_console.records.writer import RecordFiles

JOINED = [FleetLine(1.0, "joined", "e", state="up", block_size=16)]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def record(number: int, **fields: object) -> RequestRecord:
    made = {"block_size": 16, "prompt_tokens": 100, "output_tokens": 7, "outcome": "ok", **fields}
    return RequestRecord(id=f"r{number}", at=1_000_000.0 + number, **made)  # type: ignore[arg-type]


def write(
    files: RecordFiles, prompts: Sequence[Sequence[int]], first: int = 0, **fields: object
) -> None:
    ring = RecordRing()
    for number, _ in enumerate(prompts, first):
        ring.append(record(number, **fields))
    keys = dict(enumerate(prompts, 1))
    files.write(ring.pages_since(0), keys, [], JOINED)


def opened(path: Path, clock: Clock | None = None, **bounds: float) -> RecordFiles:
    made = RecordSettings(directory=str(path), **bounds)  # type: ignore[arg-type]
    return RecordFiles(made, "expected-ttft", clock or Clock())


def ending_with(line: str, directory: Path) -> RecordReader:
    """A reader of a file that has one request, and then this line."""
    files = opened(directory)
    write(files, [[1]])
    files.close()
    [path] = directory.glob("*.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + line.encode()))
    return RecordReader(directory)


def requests(path: Path) -> list[Recorded]:
    return [each for each in RecordReader(path) if isinstance(each, Recorded)]


def chains(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Blocks by their contents, as keys: each stands for all before it, too."""
    return [
        [hash(tuple(prompt[: end + 1])) & (2**64 - 1) for end in range(len(prompt))]
        for prompt in prompts
    ]


prompts_ = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12)


@settings(max_examples=50)
@given(prompts_, st.integers(0, 12))
def test_prompts_share_what_they_shared(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], rotated: int
) -> None:
    path = tmp_path_factory.mktemp("records")
    files = opened(path, clock := Clock())
    keys = chains(prompts)
    write(files, keys[:rotated])
    files.close()
    clock.now += 1
    write(files, keys[rotated:], rotated)
    files.close()

    found = [each.blocks for each in requests(path)]

    assert [len(blocks or ()) for blocks in found] == [len(prompt) for prompt in prompts]
    ids: dict[int, int] = {}
    for own, blocks in zip(keys, found, strict=True):
        assert blocks is not None
        for key, block in zip(own, blocks, strict=True):
            assert ids.setdefault(key, block) == block
    assert len(set(ids.values())) == len(ids)


def test_no_key_of_a_block_is_written(tmp_path: Path) -> None:
    files = opened(tmp_path)
    write(files, [[1, 2, 3]])
    files.close()
    [path] = tmp_path.glob("*.gz")

    with gzip.open(path) as file:
        lines = [json.loads(line) for line in file]

    assert [line["type"] for line in lines] == ["header", "fleet", "request"]
    assert lines[0]["block_sizes"] == [16]
    assert (1).to_bytes(8, "little").hex() not in str(lines)
    secret = tmp_path / SECRET
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_bytes().hex() not in str(lines)
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_directory_has_hashes_of_its_own(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        files = opened(tmp_path / name)
        write(files, [[1, 2, 3]])
        files.close()
        [path] = (tmp_path / name).glob("*.gz")
        with gzip.open(path) as file:
            texts.append(json.loads(file.read().splitlines()[-1])["blocks"]["new"])

    assert texts[0] != texts[1]


def test_a_file_that_was_not_ended_is_read(tmp_path: Path) -> None:
    files = opened(tmp_path)
    write(files, [[1], [1, 2]])

    reader = RecordReader(tmp_path)
    found = [each for each in reader if isinstance(each, Recorded)]

    assert [each.record.id for each in found] == ["r0", "r1"]
    assert len(reader.damaged) == 1
    files.close()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path, share: float) -> None:
    files = opened(tmp_path)
    for number in range(50):
        write(files, [[number, number + 1]], number)
    files.close()
    [path] = tmp_path.glob("*.gz")
    raw = bytearray(path.read_bytes())
    at = int(len(raw) * share)
    raw[at : at + 8] = b"\0\xff\0\xff\0\xff\0\xff"
    path.write_bytes(raw)

    reader = RecordReader(tmp_path)
    found = [each.record.id for each in reader if isinstance(each, Recorded)]

    assert found == [f"r{number}" for number in range(len(found))]
    assert len(found) < 50
    assert path.name in reader.damaged[0]


@given(st.binary(max_size=300))
def test_any_bytes_are_damage_and_no_crash(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("records") / "requests-1.jsonl.gz"
    path.write_bytes(gzip.compress(raw))
    reader = RecordReader(path)

    assert list(reader) == []
    assert bool(reader.damaged) == bool(raw)


@pytest.mark.parametrize(
    "blocks", ['{"after":5,"new":""}', '{"after":-1,"new":"AAA"}', '{"after":-1,"new":"AAAA"}']
)
def test_blocks_that_are_none_are_damage(tmp_path: Path, blocks: str) -> None:
    line = '{"type":"request","record":{"id":"x","at":1.0},"blocks":' + blocks + "}\n"

    reader = ending_with(line, tmp_path)

    assert len([each for each in reader if isinstance(each, Recorded)]) == 1
    assert "blocks" in reader.damaged[0]


@pytest.mark.parametrize(
    "fields",
    [
        '"at":1e308',
        '"at":1.0,"block_size":-16',
        '"at":1.0,"prompt_tokens":900000000000000',
        '"at":1.0,"usage_prompt_tokens":9223372036854775807',
        '"at":1.0,"output_tokens":-2',
    ],
)
def test_numbers_that_no_request_has_are_damage(tmp_path: Path, fields: str) -> None:
    line = '{"type":"request","record":{"id":"x",' + fields + "}}\n"

    reader = ending_with(line, tmp_path)

    assert len(Mooncake().requests(reader)) == 1
    assert " is not from " in reader.damaged[0]


def test_a_file_of_another_kind_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "requests-1.jsonl.gz"
    path.write_bytes(b"plain text")
    reader = RecordReader(path)

    assert list(reader) == []
    assert "it is none of gzip's" in reader.damaged[0]


def test_old_files_go(tmp_path: Path) -> None:
    clock = Clock()
    files = opened(tmp_path, clock, max_age=80.0)
    for number in range(12):
        write(files, [[number]], number)
        for path in tmp_path.glob("*.gz"):
            if path.stat().st_mtime > clock.now + 1000:  # it was just made: by the machine's clock
                os.utime(path, (clock.now, clock.now))
        clock.now += 20

    files.close()
    left = [each.record.id for each in requests(tmp_path)]

    assert left[-1] == "r11"
    assert "r0" not in left


def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    clock = Clock()
    files = opened(tmp_path, clock, max_bytes=1024 * 1024)
    for number in range(40):
        write(files, [[os.getpid() + i + 3000 * number for i in range(3000)]], number)
        clock.now += 1
    files.close()
    total = sum(path.stat().st_size for path in tmp_path.glob("*.gz"))

    assert total <= 1024 * 1024
    assert requests(tmp_path)[-1].record.id == "r39"


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"records\.directory .*file"):
        opened(tmp_path / "file")


def test_a_secret_that_is_a_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    (tmp_path / SECRET).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="too many levels of symbolic links"):
        opened(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_directory_that_another_user_has_linked_is_an_error(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for link in (own, other):
        link.symlink_to(tmp_path / "records")
    (tmp_path / "records").mkdir()
    os.lchown(other, 12345, 12345)

    opened(own)
    with pytest.raises(ConfigError, match="it is a symbolic link of another user"):
        opened(other)


def test_a_secret_of_another_length_is_an_error(tmp_path: Path) -> None:
    (tmp_path / SECRET).write_bytes(b"short")

    with pytest.raises(ConfigError, match="5 bytes"):
        opened(tmp_path)


def test_a_directory_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no record files"):
        RecordReader(tmp_path)


def test_full_disks_are_told(tmp_path: Path) -> None:
    files = opened(tmp_path)
    write(files, [[1]])
    assert files._raw is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, files._raw.fileno())
    os.close(full)

    with pytest.raises(OSError) as error:  # noqa: PT011
        write(files, [list(range(100_000))])

    files.abandon()
    assert error.value.errno == errno.ENOSPC


def test_mooncakes_blocks_are_32_of_ours() -> None:
    long, other = list(range(70)), [*range(32), *range(100, 132)]
    recorded = [
        Recorded(record(2, prompt_tokens=70 * 16 + 3), long),
        Recorded(record(1, prompt_tokens=64 * 16), other),
        Recorded(record(3, prompt_tokens=30 * 16), list(range(30))),
        Recorded(record(4, prompt_tokens=30 * 16), list(range(30))),
        Recorded(record(5), None),
    ]
    mooncake = Mooncake()

    first, second, third, fourth = mooncake.requests(recorded)

    assert [first.timestamp, second.timestamp, third.timestamp] == [0, 1000, 2000]
    assert (first.input_length, first.output_length, len(first.hash_ids)) == (1024, 7, 2)
    assert len(second.hash_ids) == 3
    assert first.hash_ids[0] == second.hash_ids[0]
    assert first.hash_ids[1] != second.hash_ids[1]
    assert third.hash_ids == fourth.hash_ids != first.hash_ids[:1]
    assert mooncake.left_out == 1


def test_the_command_exports_and_shows(tmp_path: Path) -> None:
    files = opened(tmp_path)
    write(files, chains([[1, 2], [1, 3]]), ttft_ms=12.0, delivered_tokens=16)
    files.close()
    run = CliRunner().invoke

    shown = run(main, ["record", "show", str(tmp_path)])
    trace = run(main, ["record", "export", str(tmp_path), "--format", "mooncake"])
    lines = run(main, ["record", "export", str(tmp_path), "--format", "jsonl"])

    assert "2 requests" in shown.output
    assert "TTFT: p50 12.0 ms" in shown.output
    assert [json.loads(line)["input_length"] for line in trace.stdout.splitlines()] == [100, 100]
    blocks = [json.loads(line)["blocks"] for line in lines.stdout.splitlines()]
    assert blocks[0][0] == blocks[1][0]
    assert blocks[0][1] != blocks[1][1]


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["record", "show", str(tmp_path)])

    assert found.exit_code == 2
    assert "there are no record files" in found.output
