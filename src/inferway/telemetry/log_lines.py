"""The form of lines of the log, as text and as JSON. Both have the date and the zone's offset.

text    2026-11-23T09:24:40.123+00:00 INFO    inferway: the gateway listens on http://…
json    {"time":"2026-11-23T09:24:40.123+00:00","level":"info","logger":"inferway","message":"…"}
"""

from __future__ import annotations

import logging
import re
import time
from functools import lru_cache
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]

_PLAIN = re.compile(r"[!#-<>-~]+")  # printable ASCII without space, quote and equals sign


def stamp(seconds: float) -> str:
    """Return a moment of time.time() in local ISO 8601, with milliseconds and the offset."""
    milliseconds = int(seconds * 1000)
    return _second(milliseconds // 1000) % (milliseconds % 1000)


@lru_cache(maxsize=4)
def _second(whole: int) -> str:
    """Return a second as text, with a place for the milliseconds."""
    local = time.localtime(whole)
    offset = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.%03d{offset[:3]}:{offset[3:]}"


@lru_cache(maxsize=1024)
def quoted(value: str) -> str:
    """Return a value as it stands behind `key=`: as it is, or as a JSON string in ASCII, so that it
    can neither end its line nor look like another key."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + "".join([_escaped(char) for char in value]) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


class TextFormatter(logging.Formatter):
    """A line for a reader; a traceback follows in lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        del datefmt
        return stamp(record.created)


class _JsonRecord(msgspec.Struct, omit_defaults=True):
    time: str
    level: str
    logger: str
    message: str
    traceback: str = ""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in one line; a traceback is one of its members."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = record.exc_text or ""
        if record.exc_info and not traceback:
            traceback = self.formatException(record.exc_info)
        if record.stack_info:
            traceback = "\n".join(filter(None, [traceback, record.stack_info]))
        line = _JsonRecord(
            time=stamp(record.created),
            level=record.levelname.lower(),
            logger=record.name,
            message=_encodable(record.getMessage()),
            traceback=_encodable(traceback),
        )
        return msgspec.json.encode(line).decode()


def _encodable(text: str) -> str:
    """Return the text without halves of surrogate pairs, which are no Unicode."""
    return text.encode(errors="backslashreplace").decode()


FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}
