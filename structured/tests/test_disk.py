"""What is on disk is whole, or it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inferway_structured.compile.disk import HEADER, DiskCache, name_of

NAME = name_of(b"vocabulary", b"function", b"argument")


def file_of(folder: Path, name: str = NAME) -> Path:
    return folder / f"{name}.inferway"


def test_what_is_written_is_read_by_another_one_with_the_same_folder(tmp_path: Path) -> None:
    DiskCache(tmp_path / "new" / "folder", 1000).put(NAME, b"content")

    assert DiskCache(tmp_path / "new" / "folder", 1000).get(NAME) == b"content"


def test_nobody_else_may_read_the_folder(tmp_path: Path) -> None:
    DiskCache(tmp_path / "folder", 1000)

    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_names_differ_wherever_the_parts_do() -> None:
    parts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc")]

    assert len({name_of(*each) for each in parts}) == len(parts)


@pytest.mark.parametrize("place", [0, 9, 12, 20, 50, HEADER.size, -1])
def test_a_file_with_a_wrong_byte_is_removed(tmp_path: Path, place: int) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put(NAME, b"content")
    data = bytearray(file_of(tmp_path).read_bytes())
    data[place] ^= 1
    file_of(tmp_path).write_bytes(data)

    assert cache.get(NAME) is None
    assert list(tmp_path.iterdir()) == []
    assert cache.num_damaged == 1


@pytest.mark.parametrize("length", [0, 5, HEADER.size, HEADER.size + 3])
def test_a_file_that_is_cut_off_is_removed(tmp_path: Path, length: int) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put(NAME, b"content")
    file_of(tmp_path).write_bytes(file_of(tmp_path).read_bytes()[:length])

    assert cache.get(NAME) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_too_long_is_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put(NAME, b"content")
    with open(file_of(tmp_path), "ab") as file:
        file.write(bytes(100_000))

    assert cache.get(NAME) is None
    assert list(tmp_path.iterdir()) == []


def test_another_names_file_is_not_believed(tmp_path: Path) -> None:
    cache, other = DiskCache(tmp_path, 1000), name_of(b"other")
    cache.put(NAME, b"content")
    file_of(tmp_path).rename(file_of(tmp_path, other))

    assert cache.get(other) is None


def test_what_was_read_longest_ago_goes_when_there_is_no_room(tmp_path: Path) -> None:
    size = HEADER.size + 100
    cache, names = DiskCache(tmp_path, 3 * size), [name_of(bytes([n])) for n in range(4)]
    for age, name in enumerate(names[:3]):
        cache.put(name, bytes(100))
        os.utime(file_of(tmp_path, name), (age, age))

    assert cache.get(names[0])
    cache.put(names[3], bytes(100))

    assert [cache.get(name) is not None for name in names] == [True, False, True, True]
    assert cache.num_bytes() == 3 * size


def test_what_alone_is_too_large_is_not_written(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put(NAME, bytes(1000))

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_as_if_nothing_were_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "folder", 1000)

    cache.put(NAME, b"content")

    assert cache.get(NAME) is None
    assert (cache.num_failed, cache.num_bytes()) == (1, 0)


def test_what_another_left_half_written_is_removed_after_a_while(tmp_path: Path) -> None:
    left, begun = tmp_path / f"{NAME}.1-1.half", tmp_path / f"{NAME}.1-2.half"
    mine = tmp_path / "notes.half"
    for path in (left, begun, mine):
        path.write_bytes(b"half")
    for path in (left, mine):
        os.utime(path, (1, 1))

    DiskCache(tmp_path, 1000).put(NAME, b"content")

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [file_of(tmp_path).name, begun.name, mine.name]
    )


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "model.safetensors"
    other.write_bytes(bytes(5000))

    DiskCache(tmp_path, 1000).put(NAME, b"content")

    assert other.exists()


WRITER = """
import sys
from pathlib import Path
from inferway_structured.compile.disk import DiskCache, name_of
cache = DiskCache(Path(sys.argv[1]), 12_000)
for turn in range(200):
    name = name_of(bytes([turn % 7]))
    content = bytes([turn % 7]) * 3000
    found = cache.get(name)
    assert found in (None, content), "not what was written"
    cache.put(name, content)
print(cache.num_damaged, cache.num_failed)
"""


def test_processes_that_write_the_same_names_never_see_half_of_one(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]

    outputs = [writer.communicate(timeout=60) for writer in writers]

    assert [(out.strip(), err) for out, err in outputs] == [("0 0", "")] * 3
    assert DiskCache(tmp_path, 12_000).num_bytes() <= 12_000


def test_threads_that_write_the_same_name_leave_one_whole_file(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    threads = [
        threading.Thread(target=cache.put, args=(NAME, bytes([n]) * 10_000)) for n in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    found = cache.get(NAME)
    assert found is not None
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [file_of(tmp_path).name]
