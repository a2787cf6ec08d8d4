from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from inferway.cli.tail import Message, Notice, Order, as_text, read_message
from inferway.errors import WireError


def frames(sequence: int, topic: str = "kv.m", **content: object) -> list[bytes]:
    return [topic.encode(), sequence.to_bytes(8, "big"), msgspec.msgpack.encode(content)]


def test_three_frames_are_a_message() -> None:
    assert read_message(frames(7, "kv.m", engine="a:1")) == Message("kv.m", 7, {"engine": "a:1"})


def test_a_short_sequence_frame_is_a_wire_error() -> None:
    with pytest.raises(WireError, match=r"frames of \[1, 4, 1\] bytes"):
        read_message([b"t", b"1234", b"\x80"])


def test_a_payload_that_is_not_msgpack_names_its_topic() -> None:
    with pytest.raises(WireError, match=r"topic 'kv.m': not msgpack"):
        read_message([b"kv.m", bytes(8), b"\xc1"])


def test_a_message_is_one_line_with_its_fields() -> None:
    line = as_text(Message("kv.m", 7, {"engine": "a:1", "matched_blocks": 3}))

    assert line == '#7 kv.m engine="a:1" matched_blocks=3'


def test_long_lists_are_shortened() -> None:
    assert as_text(Message("kv.m", 7, {"block_keys": list(range(9))})) == (
        "#7 kv.m block_keys=[9 items]"
    )


def test_control_characters_do_not_reach_the_terminal() -> None:
    line = as_text(Message("kv.\x1b[2J", 7, {"a\nb": "\x9b2J", "messages": [{"\t": "日本\r"}]}))

    assert line == '#7 kv.\\x1b[2J a\\nb="\\x9b2J" messages=[{\\t: "日本\\r"}]'


def test_an_engines_own_array_is_printed_too() -> None:
    assert as_text(Message("kv@e", 0, [1.5, []])) == "#0 kv@e content=[1.5, []]"


def test_long_lists_within_lists_are_shortened() -> None:
    events = [{"type": "BlockStored", "token_ids": list(range(48))}]

    assert as_text(Message("kv@e", 0, [1.5, events])) == (
        '#0 kv@e content=[1.5, [{type: "BlockStored", token_ids: [48 items]}]]'
    )


def test_starting_late_is_no_gap() -> None:
    assert Order().note(41) is None


def test_consecutive_numbers_are_no_gap() -> None:
    assert Order(last=41).note(42) is None


def test_missing_numbers_are_named() -> None:
    assert Order(last=41).note(45) == Notice("lost", "3 lost: 42..44 never came")


def test_numbers_that_fall_mean_a_new_publisher() -> None:
    notice = Order(last=41).note(1)

    assert notice is not None
    assert notice.kind == "restarted"


class Followed:
    """`inferway tail` as a process, and the publisher that it follows."""

    def __init__(self, publisher: zmq.Socket[bytes]) -> None:
        publisher.bind("tcp://127.0.0.1:0")
        self.publisher = publisher
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Returns when tail has subscribed."""
        address = self.publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        command = [sys.executable, "-c", "from inferway.cli import main; main()", "tail", address]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.publisher.poll(30_000), "tail never subscribed"
        assert self.publisher.recv() == b"\x01"
        return self.process

    def lines(self, count: int) -> list[str]:
        assert self.process is not None
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.fixture
def followed() -> Iterator[Followed]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        followed = Followed(publisher)
        yield followed
        if followed.process is not None:
            followed.process.kill()
            followed.process.communicate()


def test_it_prints_what_is_published_and_marks_what_is_lost(followed: Followed) -> None:
    followed.start()
    followed.publisher.send_multipart(frames(1, engine="a:1"))
    followed.publisher.send_multipart(frames(4, "kv.chat.m", engine="b:2"))

    assert followed.lines(3) == [
        '#1 kv.m engine="a:1"',
        "-- 2 lost: 2..3 never came",
        '#4 kv.chat.m engine="b:2"',
    ]


def test_a_topic_filter_is_no_gap(followed: Followed) -> None:
    followed.start("--topic", "kv.chat.")
    followed.publisher.send_multipart(frames(1, "kv.chat.m"))
    followed.publisher.send_multipart(frames(2, "kv.m"))
    followed.publisher.send_multipart(frames(3, "kv.chat.m"))

    assert followed.lines(2) == ["#1 kv.chat.m", "#3 kv.chat.m"]


def test_json_lines_hold_everything(followed: Followed) -> None:
    followed.start("--json")
    followed.publisher.send_multipart(frames(1, block_keys=list(range(20))))

    assert json.loads(followed.lines(1)[0]) == {
        "topic": "kv.m",
        "sequence": 1,
        "content": {"block_keys": list(range(20))},
    }


def test_unreadable_messages_are_said_and_the_rest_follows(followed: Followed) -> None:
    followed.start()
    followed.publisher.send_multipart([b"kv.m", b"?"])
    followed.publisher.send_multipart(frames(1))

    assert followed.lines(2) == [
        "-- frames of [4, 1] bytes; expected topic, 8 bytes of sequence, msgpack",
        "#1 kv.m",
    ]


def test_ctrl_c_ends_it_with_status_0(followed: Followed) -> None:
    process = followed.start()
    followed.publisher.send_multipart(frames(1))
    followed.lines(1)

    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 0


def test_an_address_that_is_none_is_refused_with_the_form_expected() -> None:
    command = [sys.executable, "-c", "from inferway.cli import main; main()", "tail", "nowhere"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "expected tcp://HOST:PORT" in done.stderr
