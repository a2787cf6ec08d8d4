"""`inferway tail`: prints what a publisher sends, one line a message, and what was lost.

Everything is subscribed to and --topic chooses here: a publisher counts all its messages in one
sequence, so only who receives all of them can tell a gap from a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
import msgspec
import zmq

from inferway.cli.command import Command, section
from inferway.cli.flag import option
from inferway.errors import WireError
from inferway_structured.decoding import UNREADABLE

LONGEST_LIST = 8  # longer ones are printed as their length; --json prints all


@dataclass(frozen=True, slots=True)
class Message:
    """A published message."""

    topic: str
    sequence: int
    content: object  # whatever the msgpack held; our publisher sends maps


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the messages that their sequence numbers lead to: a gap, or a restart."""

    kind: str  # lost | restarted
    text: str


@dataclass(slots=True)
class Order:
    """The sequence of one publisher. Starting late is no gap."""

    last: int | None = None

    def note(self, sequence: int) -> Notice | None:
        last, self.last = self.last, sequence
        if last is None or sequence == last + 1:
            return None
        if sequence <= last:
            return Notice("restarted", f"after {last} came {sequence}: the publisher started again")
        lost = sequence - last - 1
        return Notice("lost", f"{lost} lost: {last + 1}..{sequence - 1} never came")


def read_message(frames: Sequence[bytes]) -> Message:
    """Parse topic, big-endian sequence of 8 bytes, msgpack. Raises WireError for anything else."""
    if len(frames) != 3 or len(frames[1]) != 8:
        sizes = [len(frame) for frame in frames]
        raise WireError(f"frames of {sizes} bytes; expected topic, 8 bytes of sequence, msgpack")
    topic = frames[0].decode(errors="backslashreplace")
    try:
        content: object = msgspec.msgpack.decode(frames[2])
    except UNREADABLE as e:
        raise WireError(f"topic {topic!r}: not msgpack: {e}") from e
    return Message(topic, int.from_bytes(frames[1], "big"), content)


def as_text(message: Message) -> str:
    """Return `#17 kv.chat.m engine="a:1" matched_blocks=3`, strings quoted, controls escaped."""
    content = message.content
    fields = content.items() if isinstance(content, dict) else [("content", content)]
    words = [f"{escaped(name)}={_short(value)}" for name, value in fields]
    return " ".join([f"#{message.sequence}", escaped(message.topic), *words])


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return f"[{len(value)} items]"
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{escaped(k)}: {_short(v)}" for k, v in value.items()) + "}"
    return escaped(msgspec.json.encode(value, enc_hook=repr).decode())


def escaped(text: object) -> str:
    """Return the text as it may be printed: what comes from a socket may not steer the
    terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def as_json(line: Message | Notice) -> str:
    """Return one JSON object: topic, sequence and content of a message, or kind and text of a
    notice."""
    return msgspec.json.encode(line, enc_hook=repr).decode()


def follow(socket: zmq.Socket[bytes], prefix: str) -> Iterator[Message | Notice]:
    """Yield messages whose topic begins with `prefix`, and notices, for as long as one reads."""
    order = Order()
    while True:
        try:
            message = read_message(socket.recv_multipart())
        except WireError as e:
            yield Notice("unreadable", str(e))
            continue
        notice = order.note(message.sequence)
        if notice is not None:
            yield notice
        if message.topic.startswith(prefix):
            yield message


def open_subscriber(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """Bind to a wildcard, for a publisher that connects; connect to any other address."""
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.setsockopt(zmq.LINGER, 0)
    try:
        if "*" in address:
            socket.bind(address)
        else:
            socket.connect(address)
    except zmq.ZMQError as e:
        socket.close()
        raise click.ClickException(
            f"{address!r}: {e.strerror}; expected tcp://HOST:PORT, or tcp://*:PORT to wait there"
        ) from e
    return socket


@click.command(cls=Command)
@click.argument("address")
@section(
    "What is printed",
    option(
        "--topic",
        default="",
        metavar="PREFIX",
        help="Print only messages whose topic begins with this.",
    ),
    option("--json", "json_lines", is_flag=True, help="Print JSON lines, with nothing shortened."),
    example="inferway tail tcp://127.0.0.1:5558 --topic kv.chat.",
)
def tail(address: str, topic: str, json_lines: bool) -> None:
    """Print what a gateway publishes (--publish), one line for each message, until Ctrl-C.

    ADDRESS is the gateway's, tcp://HOST:PORT; tcp://*:PORT waits for gateways that connect.
    """
    with zmq.Context() as context, open_subscriber(context, address) as socket:
        click.echo(f"following {address}; Ctrl-C ends", err=True)
        try:
            for line in follow(socket, topic):
                click.echo(as_json(line) if json_lines else _printed(line))
        except KeyboardInterrupt:
            click.echo("", err=True)


def _printed(line: Message | Notice) -> str:
    return as_text(line) if isinstance(line, Message) else f"-- {line.text}"
