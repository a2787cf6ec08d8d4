"""A journal's bytes are read as far as they follow on, and no further."""

from __future__ import annotations

from inferway.fleet.journal.journal_files import MAX_FRAME_BYTES, FrameReader, frame

PAYLOADS = [b"one", b"", b"three" * 100, b"4"]
CHAIN = 77


def written(chain: int = CHAIN) -> bytes:
    data = b""
    for payload in PAYLOADS:
        piece, chain = frame(payload, chain)
        data += piece
    return data


def read(data: bytes, chain: int = CHAIN, piece: int = 1 << 20) -> tuple[list[bytes], FrameReader]:
    reader = FrameReader(chain)
    payloads: list[bytes] = []
    for start in range(0, len(data), piece):
        payloads += reader.feed(data[start : start + piece])
    return payloads, reader


def test_what_was_written_is_read_in_pieces_of_any_size() -> None:
    for piece in (1, 2, 7, 1000):
        payloads, reader = read(written(), piece=piece)

        assert payloads == PAYLOADS
        assert reader.is_whole
        assert reader.num_good_bytes == len(written())


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_frame() -> None:
    ends = [0]
    for payload in PAYLOADS:
        ends.append(ends[-1] + len(frame(payload, 0)[0]))
    for length in range(len(written())):
        payloads, reader = read(written()[:length])

        assert payloads == PAYLOADS[: sum(end <= length for end in ends[1:])]
        assert reader.num_good_bytes == max(end for end in ends if end <= length)
        assert reader.is_whole == (length in ends)


def test_a_file_with_any_byte_changed_is_read_up_to_the_frame_before_it() -> None:
    for place in range(len(written())):
        data = bytearray(written())
        data[place] ^= 0x10
        payloads, reader = read(bytes(data))

        assert payloads == PAYLOADS[: len(payloads)]
        assert reader.num_good_bytes <= place
        assert not reader.is_whole


def test_a_frame_that_follows_on_something_else_is_not_read() -> None:
    assert read(written(chain=1), chain=2)[0] == []


def test_a_frame_left_out_ends_it() -> None:
    first, chain = frame(b"1", CHAIN)
    _, chain = frame(b"2", chain)
    third, _ = frame(b"3", chain)

    assert read(first + third)[0] == [b"1"]


def test_a_length_that_cannot_be_is_not_waited_for() -> None:
    length = (MAX_FRAME_BYTES + 1).to_bytes(4, "little")
    _, reader = read(length + bytes(8))

    assert not reader.is_whole
    assert list(reader.feed(frame(b"1", CHAIN)[0])) == []
