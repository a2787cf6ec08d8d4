"""Stop strings, as vLLM heeds them (vllm/v1/engine/detokenizer.py): the reply ends with the token
that completes one, and of its text not so much is sent that the start of one might be in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def stopped(
    pieces: Iterable[str], stops: Sequence[str], *, are_sent: bool
) -> tuple[list[str], str | None]:
    """Return the text that is sent with each token of a reply, up to the one that completes a stop
    string, and that string; None if none comes. `pieces`: the text that each token completes;
    `are_sent`: stop strings are part of the answer."""
    lag = 0 if are_sent else max(map(len, stops)) - 1
    text, sent, sends = "", 0, [""]
    for piece in pieces:
        text += piece
        found = _found(text, len(piece), stops)
        if found is not None:
            stop, end = found
            sends.append(text[sent : end if are_sent else end - len(stop)])
            return sends[1:], stop
        before, sent = sent, max(sent, len(text) - lag)
        sends.append(text[before:sent])
    sends[-1] += text[sent:]
    return sends[1:], None


def _found(text: str, num_new: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of the stop strings that the last characters complete, and where it ends."""
    for stop in stops if num_new else ():
        at = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
        if at >= 0:
            return stop, at + len(stop)
    return None
