"""Record of a stream that a client gets, token by token. Pure.

The engine tells the ids of its tokens in each event (`return_token_ids`). The client has not asked
for them, so each event leaves here as the engine would have written it without:

event                  as it came                        as it leaves
the first of a chat    "prompt_token_ids":[1,2]          "prompt_token_ids":null
with tokens            "token_ids":[7]                   "token_ids":null
of tokens that vLLM    "delta":{} and "token_ids":[8]    not at all
would say nothing of
an error, or that the  {"error"..., or                   not at all, nor what follows: `is_broken`,
engine has given up    "finish_reason":"abort"           until `give_up`

`cut` says after which token another engine may go on, so that no text is doubled or missing. That
is not always the last one: of an open character, and of a text that may be the start of a stop
string, the client has been sent nothing yet (vllm/v1/engine/detokenizer.py). These are the rules:

- A token is *settled* if it came alone and with text: then vLLM has decoded all tokens up to it.
- vLLM keeps back `lag` characters, one fewer than the longest stop string has; none if stop strings
  are part of the answer. So where text was sent, `lag` more than that have been decoded.
- Where stop strings are part of the answer, one may have begun in the last `back` characters that
  were sent. The other engine must see it from its start.

Where the engine's parsers look for calls of tools or for thoughts, they keep back text by rules of
their own. Then the tokens are decoded here (`cut_by_text`), and their text says where that is what
was sent. Thoughts and text are never compared in one piece: tokens stand between them that neither
has, and parsers drop white space there. So only the last piece is, without its first event.

The other engine then says some characters again (`overlap`), which must be the same.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from inferway.openai_api.requests import CHAT, COMPLETION
from inferway_structured.decoding import UNREADABLE

MOST_BYTES = 1 << 20  # of a prompt and an answer that are kept

_CONTEXT = 8  # tokens before those that are decoded: what some make depends on their neighbours
_LOOKED_AT = 64  # events of the stream's end, at least, in which a cut is looked for
_END = b"]}]}\n\n"  # behind the ids of most events
_NO_IDS = b"null}]}\n\n"  # instead of them
_WHOLE_IDS = re.compile(rb'"token_ids":\[([0-9,]*)\]')
_PROMPT_IDS = re.compile(rb'"prompt_token_ids":\[([0-9,]*)\]')
_SAYS_NOTHING = re.compile(rb'"delta":\{\},"logprobs":null,"finish_reason":null')
_ABORTED = b'"finish_reason":"abort"'
_FINISHED = b'"finish_reason":"'
_RUNNING = b'"finish_reason":null'
_ERROR = re.compile(rb'data: ?\{"error"|event: ?error\b')
_DATA = b"data: {"
_OTHER_KINDS = (b'"reasoning_content"', b'"tool_calls":[', b'"function_call":{')
_CONTENT = {CHAT: b'"delta":{"content":"', COMPLETION: b'"text":"'}
_THOUGHT = b'"delta":{"reasoning":"'
# What stands between the text of most events and the bracket before their ids.
_MARKS = {
    CHAT: b'"},"logprobs":null,%b,"token_ids":' % _RUNNING,
    COMPLETION: b'","logprobs":null,%b,"stop_reason":null,"prompt_token_ids":null,"token_ids":'
    % _RUNNING,
}


@dataclass(frozen=True, slots=True)
class Stops:
    """The numbers of a text's characters that are not sent, or may begin a stop string."""

    lag: int = 0
    back: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The place where another engine goes on. Ids are as JSON has them, between commas."""

    prompt_ids: bytes
    ids: bytes  # of the answer, up to the cut
    num_ids: int
    overlap: str  # that the client has been sent of what follows
    first: bytes  # the data of the stream's first event
    is_thought: bool = False  # in the middle of a thought
    has_thought: bool = False  # there was one

    @property
    def num_prompt_ids(self) -> int:
        """The number of tokens of the prompt, which is never empty."""
        return self.prompt_ids.count(b",") + 1


class _StreamDelta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None


class _StreamChoice(msgspec.Struct):
    delta: _StreamDelta | None = None
    text: str | None = None


class _StreamEvent(msgspec.Struct):
    choices: list[_StreamChoice] = []


_EVENT = msgspec.json.Decoder(_StreamEvent)
_TEXT = msgspec.json.Decoder(str)


class SentEvents:
    """The events of one stream, as its client gets them, up to where the engine gives up: what it
    says then is withheld, for another engine may go on. A subclass reads the events."""

    __slots__ = ("_first", "_is_plain", "_withheld", "is_broken", "is_finished")

    def __init__(self) -> None:
        self._first = b""  # event
        self._is_plain = True  # all that came was text, and not too much
        self._withheld = b""
        self.is_broken = False  # the engine has given up
        self.is_finished = False  # it has said why the answer ends

    def _each(self, events: bytes) -> bytes:
        """Return events as the client gets them, and what is behind the last one as it is."""
        whole, border, rest = events.rpartition(b"\n\n")
        parts = [self._unless_broken(event + border) for event in whole.split(border or None)]
        return b"".join(parts) + self._withhold(rest)

    def _unless_broken(self, event: bytes) -> bytes:
        self.is_broken = self.is_broken or self._gives_up(event)
        return self._withhold(event) if self.is_broken else self._one(event)

    def _withhold(self, events: bytes) -> bytes:
        """Return what of this the client gets: all, or nothing, and then it is kept."""
        if not self.is_broken:
            return events
        self._withheld += events
        return b""

    @abstractmethod
    def _gives_up(self, event: bytes) -> bool:
        """Return whether the engine says that it will not end its answer."""

    @abstractmethod
    def _one(self, event: bytes) -> bytes:
        """Return an event as the client gets it, once it is remembered."""

    def give_up(self) -> bytes:
        """Return what was withheld: nobody goes on, and the client hears it from the engine."""
        withheld, self._withheld = self._withheld, b""
        self.is_broken, self._is_plain = False, False
        return withheld


class SentStream(SentEvents):
    """Fed with the whole events of one stream of one answer, it returns them without the ids that
    the client has not asked for, and remembers those."""

    __slots__ = (
        "_at",
        "_content",
        "_earlier",
        "_last",
        "_mark",
        "_piece",
        "_prompt_ids",
        "_size",
        "_text_at",
        "_text_mark",
        "has_thought",
    )

    def __init__(self, path: str) -> None:
        """`path`: CHAT or COMPLETION."""
        super().__init__()
        self._mark, self._text_mark = _MARKS[path], _CONTENT[path]
        self._content = self._text_mark  # what `_plain` takes
        self._at = self._text_at = 0  # where an event has it: its head is always as long
        self._prompt_ids = b""
        self._earlier: list[bytes] = []  # ids of events that `_last` no longer has
        # Of each of the last events, from its text, as JSON has it, to its ids: "text", the mark,
        # and "[1,2". Less is kept of the memory that comes and goes with each event.
        self._last: list[bytes] = []
        self._size = 0  # of `_earlier` and the prompt
        self.has_thought = False
        # The first of the last events that are all text, or all thought; but for the event with
        # which that began, unless all of the stream is text.
        self._piece = 0

    def feed(self, events: bytes) -> bytes:
        """Return whole events as the client gets them."""
        if self.is_broken:
            return self._withhold(events)
        sent = self._plain(events)
        return self._each(events) if sent is None else sent

    def _plain(self, event: bytes) -> bytes | None:
        """Return an event as the client gets it, once it is remembered; None if it has anything but
        text, with the ids at its end, as most have."""
        start, _, ids = event.rpartition(b"[")
        if (
            not start.endswith(self._mark)
            or not ids.endswith(_END)
            or not start.startswith(self._content, self._at)
            or b"\n" in start
        ):
            return None
        last = self._last
        last.append(event[self._text_at : -len(_END)])
        if len(last) > 2 * _LOOKED_AT:
            self._put_aside()
        return start + _NO_IDS

    def _unless_broken(self, event: bytes) -> bytes:
        if not self.is_broken and (sent := self._plain(event)) is not None:
            return sent
        return super()._unless_broken(event)

    def _gives_up(self, event: bytes) -> bool:
        return _ABORTED in event or _ERROR.match(event) is not None

    def _one(self, event: bytes) -> bytes:
        if _FINISHED in event:
            self.is_finished = True
        if not self._first and event.startswith(_DATA):
            self._first = event
        found = _PROMPT_IDS.search(event)
        if found is not None:
            self._prompt_ids = found[1]
            self._size += len(found[1])
            event = _PROMPT_IDS.sub(b'"prompt_token_ids":null', event)
        found = _WHOLE_IDS.search(event)
        if found is None:
            if self._content in event or _THOUGHT in event:  # the engine does not tell the ids
                self._is_plain = False
            return event
        says_nothing = _SAYS_NOTHING.search(event) is not None
        # Of other kinds, who goes on would have to know what their tokens were part of.
        if any(kind in event for kind in _OTHER_KINDS):
            self._is_plain = False
        if self._is_plain:  # else nobody asks for it
            text = b"" if says_nothing else self._text_of(event)
            self._last.append(b"%b%b[%b" % (text, self._mark, found[1]))
        return b"" if says_nothing else _WHOLE_IDS.sub(b'"token_ids":null', event)

    def _text_of(self, event: bytes) -> bytes:
        """Return an event's text or thought, as JSON has it; of both, the text."""
        try:
            choices = _EVENT.decode(event.partition(b"data:")[2]).choices
        except UNREADABLE:
            choices = []
        if len(choices) != 1:
            self._is_plain = False
            return b""
        choice = choices[0]
        delta = choice.delta or _StreamDelta()
        text = choice.text if delta.content is None else delta.content
        thought = delta.reasoning
        if text is None and thought is None and _FINISHED not in event:
            self._is_plain = False
        if text or thought:
            self._expect(_THOUGHT if not text else self._text_mark, has_both=bool(text and thought))
        at = event.find(self._content)
        if at >= 0:
            self._at, self._text_at = at, at + len(self._content)
        return msgspec.json.encode(text or thought or "")[1:-1]

    def _expect(self, content: bytes, *, has_both: bool) -> None:
        """Have `_plain` take events of this kind, of which the next one is. `has_both`: it has also
        the end of a thought."""
        if content is not self._content or has_both:
            self._content = content
            self._piece = len(self._last) + 1
            self.has_thought = True

    def _put_aside(self) -> None:
        """Keep of the earlier events the ids alone."""
        earlier = b",".join(filter(None, _each_ids(self._last[:-_LOOKED_AT])))
        self._piece = max(0, self._piece + _LOOKED_AT - len(self._last))
        del self._last[:-_LOOKED_AT]
        self._size += len(earlier)
        if self._size > MOST_BYTES:
            self._is_plain = False
        if self._is_plain:
            self._earlier.append(earlier)
        else:
            self._earlier.clear()

    def cut(self, stops: Stops) -> Cut | None:
        """Return where another engine can go on; None if it cannot. Not for an answer that
        `has_thought`."""
        texts = self._texts()
        if texts is None or self.has_thought:
            return None
        each = _each_ids(self._last)
        counts = [ids.count(b",") + 1 if ids else 0 for ids in each]
        found = _settled(texts, counts, stops, is_start=not self._earlier)
        if found is None:
            return None
        number, overlap = found
        return self._cut([ids for ids in each[:number] if ids], overlap)

    def cut_by_text(self, decode: Callable[[Sequence[int]], str], stops: Stops) -> Cut | None:
        """Return the same where text may have been kept back in other ways. `decode` returns the
        text of tokens, as the engine makes it."""
        texts = self._texts()
        if texts is None:
            return None
        each, piece = _each_ids(self._last), self._piece
        given = filter(None, [self._prompt_ids, *self._earlier, *each[:piece]])
        context = _numbers([*given][-_CONTEXT:])[-_CONTEXT:]
        # Where nothing was said, the other engine says all: parsers drop white space in front.
        ids = _numbers(each[piece:]) if any(texts) else []
        start, sent = len(decode(context)), "".join(texts[piece:])
        most = len(sent) - stops.back
        for number in range(len(ids), -1, -1):
            text = decode([*context, *ids[:number]])[start:]
            if len(text) <= most and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                break
        else:
            return None
        is_start = not self._earlier and not piece
        if not sent.startswith(text) or (number == 0 and not is_start):
            return None
        if self._content is _THOUGHT and number == len(ids) and not texts[-1]:
            return None  # the thought has ended, and white space may follow
        kept = [ids for ids in each[:piece] if ids] + [b"%d" % id for id in ids[:number]]
        return self._cut(kept, sent[len(text) :])

    def _texts(self) -> list[str] | None:
        """Return the texts of the last events; None if nobody can go on with this stream."""
        if not self._is_plain or not self._prompt_ids or not self._first or self.is_finished:
            return None
        texts = [each.rpartition(self._mark)[0] for each in self._last]
        try:
            return [_TEXT.decode(b'"%b"' % text) for text in texts]
        except UNREADABLE:
            return None

    def _cut(self, last: Sequence[bytes], overlap: str) -> Cut:
        ids = b",".join([*self._earlier, *last])
        num_ids = ids.count(b",") + 1 if ids else 0
        first = self._first.partition(_DATA[:-1])[2].strip()
        return Cut(
            *(self._prompt_ids, ids, num_ids, overlap, first),
            is_thought=self._content is _THOUGHT,
            has_thought=self.has_thought,
        )


def _each_ids(last: Sequence[bytes]) -> list[bytes]:
    return [each.rpartition(b"[")[2] for each in last]


def _numbers(ids: Sequence[bytes]) -> list[int]:
    return [int(each) for each in b",".join(filter(None, ids)).split(b",") if each]


def _settled(
    texts: Sequence[str], counts: Sequence[int], stops: Stops, *, is_start: bool
) -> tuple[int, str] | None:
    """Return how many of the events may be kept, and what was sent beyond them. `is_start`: they
    are all that the stream had."""
    sent = "".join(texts)
    most = len(sent) - stops.back
    before = len(sent)  # characters that were sent with the first `number` events
    for number in range(len(texts), 0, -1):
        text = texts[number - 1]
        if text and counts[number - 1] == 1 and before + stops.lag <= most:
            return number, sent[before + stops.lag :]
        before -= len(text)
    return (0, sent) if is_start else None
