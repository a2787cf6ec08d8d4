"""Where a text may be cut so that its pieces have the ids that they have in the whole.

Where an added token begins. `tokenizers` (0.23, src/tokenizer/added_vocabulary.rs) makes it exact:

1. It cuts a text at its added tokens before it does anything else. Normaliser, pre-tokenizer and
   model then see one segment between two added tokens at a time, never its neighbours.
2. Added tokens are found from left to right, the longest at each place: as by a pattern of
   alternatives, the longest first. So a piece that begins with one is cut as it was in the text.
3. Tokens with `normalized` are looked for later, in what the normaliser has made of a segment.
   Without a normaliser that is the text itself; then they are cuts too, if no token, in either
   round, can overlap them.
4. `lstrip`, `rstrip` and `single_word` look at the characters next to a token. At a cut these are
   the first of the token that begins there, and the last of the token before: no spaces.
   (`single_word` also asks for words: then a text is not cut at all.)
5. The only step that asks where in the text a segment stands is Metaspace with
   `prepend_scheme: first`: is it the very beginning? A segment behind a cut never is, for the
   token stands before it; the first piece is, in the text as by itself.
6. What the post-processor does to ids, it does around the whole text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True)
class SplitPoints:
    found: list[str]  # all that a pattern must find, going from left to right
    cuts: frozenset[str]  # those of them at which a text may be cut
    apart: dict[str, int]  # those again which may be looked for by themselves, and their ids


def find_split_points(tokenizer: tokenizers.Tokenizer) -> SplitPoints:
    """Return where texts may be cut for this tokenizer, by points 2 to 4 of the module's docstring.
    The result is empty if no cut is certain to be exact."""
    by_id = tokenizer.get_added_tokens_decoder()
    tokens = list(by_id.values())
    if (
        tokenizer.encode_special_tokens  # then some of them are ordinary text
        or any(token.single_word for token in tokens)
        or getattr(tokenizer.model, "dropout", None)  # no two encodings are alike
    ):
        return SplitPoints([], frozenset(), {})
    contents = [token.content for token in tokens]
    usable = [token for token in tokens if not token.normalized]
    if tokenizer.normalizer is None:
        late = set(apart([token.content for token in tokens if token.normalized], contents))
        usable += [token for token in tokens if token.content in late]
    cuts = [
        token.content
        for token in usable
        if not token.lstrip and not token.content[0].isspace() and not token.content[-1].isspace()
    ]
    ids = {token.content: token_id for token_id, token in by_id.items()}
    found = [token.content for token in usable]
    return SplitPoints(found, frozenset(cuts), {cut: ids[cut] for cut in apart(cuts, contents)})


def apart(candidates: Iterable[str], contents: Collection[str]) -> list[str]:
    """Return those of `candidates` whose occurrences in a text cannot share a character with an
    occurrence of another one of `contents`, or with another occurrence of their own."""
    beginnings = {content[:end] for content in contents for end in range(1, len(content))}
    endings = {content[start:] for content in contents for start in range(1, len(content))}
    all_contents, joined = frozenset(contents), "\0".join(contents)
    return [
        candidate
        for candidate in candidates
        if joined.count(candidate) == 1
        and not any(
            candidate[i:] in beginnings or candidate[:i] in endings
            for i in range(1, len(candidate))
        )
        and not any(
            candidate[i:j] in all_contents
            for i in range(len(candidate))
            for j in range(i + 1, len(candidate) + (i > 0))
        )
    ]
