"""Where a text may be cut so that its ids do not depend on what follows.

A tokenizer finds its added tokens first: the longest at each place, from left to right. What
stands between them is normalised and encoded piece by piece. So the ids up to the end of an
added token are the same whatever follows, if that token is certain to be found again: no added
token that begins at its place or before may reach beyond the end of what is known.

The places of added tokens are found by the tokenizers library itself: by a tokenizer that has
the model's added tokens and nothing else.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator

import tokenizers
from tokenizers import AddedToken, models

# One word for all that is no added token.
_TEXT = "\ue000inferway\ue000"


class OpenTextBoundaries:
    """Finds the boundaries in texts of one model's tokenizer. Any thread may use it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        # What is looked for in normalised text is looked for after the others, so it changes
        # nothing about them.
        plain = _is_plain(tokenizer.normalizer)
        usable = [token for token in added if plain or not token.normalized]
        self._contents = sorted({token.content for token in usable})
        self._longest = max(map(len, self._contents), default=0)
        # A word's end is certain only where the next character is known.
        self._words = {token.content for token in usable if token.single_word}
        self._finder = tokenizers.Tokenizer(models.WordLevel({_TEXT: 0}, unk_token=_TEXT))
        self._finder.add_tokens([_not_special(token) for token in usable])

    def of_open_text(self, text: str) -> int:
        """The last place in `text` up to which the ids are known, whatever follows `text`."""
        unsettled = self._unsettled_from(text)
        return max((end for _, end in self._found(text) if end <= unsettled), default=0)

    def before(self, text: str, place: int) -> int:
        """The last place in `text`, not after `place`, that parts what is encoded apart;
        `text` is whole. What follows may be replaced by anything that keeps to the place."""
        last = 0
        for start, end in self._found(text):
            if start > place:
                break
            if end <= place:
                last = end
            elif not self._is_in_word(text, start):
                last = start
        return last

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """[start, end) of the added tokens in `text`, in order. Those that overlap count as one:
        a token that takes the spaces behind it is found with them, and so is a token that begins
        with one of these spaces; what is encoded next begins at the end of the latter."""
        [encoding] = self._finder.encode_batch([text], add_special_tokens=False)
        first, last, is_certain = 0, 0, False
        for id, (start, end), content in zip(
            encoding.ids, encoding.offsets, encoding.tokens, strict=True
        ):
            if start >= last:
                if is_certain:
                    yield first, last
                first, is_certain = start, True
            last = end
            is_certain = is_certain and bool(id) and content not in self._words
        if is_certain:
            yield first, last

    def _is_in_word(self, text: str, place: int) -> bool:
        """Return whether a token that counts as a whole word only may be found at the end of `text`
        up to the place, and not in all of it, where the word goes on."""
        if not self._words or place == 0:
            return False
        return all(map(_may_be_of_word, text[place - 1 : place + 1]))

    def _unsettled_from(self, text: str) -> int:
        """The first place at which an added token may begin that `text` shows in part only."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            i = bisect_left(self._contents, tail)
            i += i < len(self._contents) and self._contents[i] == tail
            if i < len(self._contents) and self._contents[i].startswith(tail):
                return start
        return len(text)


def _may_be_of_word(character: str) -> bool:
    """Return whether \\w of Rust's regex may match it: all but white space and ASCII's signs."""
    is_sign = character.isascii() and not character.isalnum() and character != "_"
    return not (is_sign or character.isspace())


def _is_plain(normalizer: tokenizers.normalizers.Normalizer | None) -> bool:
    """Return whether it changes nothing."""
    if normalizer is None:
        return True
    state = json.loads(normalizer.__getstate__())
    return bool(state == {"type": "Sequence", "normalizers": []})


def _not_special(token: AddedToken) -> AddedToken:
    """The same token, added in the order of the ids: `add_tokens` puts special ones first."""
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
