"""A text whose start is remembered has the ids that it has as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from random import Random

import fastokens
import numpy as np
import pytest
import tokenizers
from tests.prompts.test_piece_cache import TRICKY, as_llama, load, small, with_tricky
from tests.prompts.texts import drawn_texts
from tokenizers import AddedToken

from inferway.model import TokenIds
from inferway.prompts.tokenizer.token_cache import (
    EncodeAll,
    PrefixTokenCache,
    apart,
    find_split_points,
)
from inferway.prompts.tokenizer.tokenizer import encode_all

Change = Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]

GRID = 32


def same(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return tokenizer


def with_less_tricky(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Tokens that reach into each other and into spaces, but not into all others."""
    tokenizer.add_tokens([token for token in TRICKY if not token.content.endswith("<")])
    return tokenizer


def growing_texts(seed: int, added: Sequence[str]) -> list[str]:
    """Chats of many turns, and the same cut off at any place and continued otherwise."""
    draw = Random(seed)
    texts = []
    for chat in range(6):
        turns = [draw.choice(added[-14:]) + turn for turn in drawn_texts(chat, 40, added)]
        grown = list(accumulate(turns))
        texts += grown
        long = grown[-1]
        for end in draw.sample(range(len(long)), 30):
            texts.append(long[:end] + draw.choice(["", "<", "b", "><", *turns]))
    return texts


def fast_encoder(tokenizer: tokenizers.Tokenizer) -> EncodeAll:
    encoder = fastokens.Tokenizer.from_json_str(tokenizer.to_str())

    def encode(texts: Sequence[str]) -> list[TokenIds]:
        flat, starts = encoder.encode_batch_flat(list(texts))
        ends = np.frombuffer(starts, dtype=np.int64)[1:-1]
        return np.split(np.frombuffer(flat, dtype=np.uint32), ends)

    return encode


def num_differing(encode: EncodeAll, tokenizer: tokenizers.Tokenizer, seed: int) -> int:
    cuts = find_split_points(tokenizer).apart
    assert cuts
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    cache = PrefixTokenCache(encode, cuts, 200_000, grid=GRID)
    # With the same encoder: what is asked here is whether cutting changes anything.
    return sum(
        not np.array_equal(cache.encode(text), encode([text])[0])
        for text in growing_texts(seed, added)
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", [same, with_less_tricky, as_llama])
@pytest.mark.parametrize("name", ["phi-3", "gpt-2", "bert-bge"])
def test_growing_texts_have_the_ids_of_the_whole(name: str, change: Change) -> None:
    tokenizer = change(load(name))

    assert num_differing(lambda texts: encode_all(tokenizer, texts), tokenizer, len(name)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", [same, with_less_tricky])
@pytest.mark.parametrize("name", ["gpt-2", "starcoder"])
def test_fastokens_cuts_texts_at_added_tokens_as_tokenizers_does(name: str, change: Change) -> None:
    tokenizer = change(load(name))

    assert num_differing(fast_encoder(tokenizer), tokenizer, len(name)) == 0


CUTS = {"<u>": 0xE000, "<a>": 0xE001}


class Encoder:
    """Writes down what it is asked for; a text's ids are its characters, but for CUTS."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[TokenIds]:
        self.asked += texts
        return [np.array(list(map(ord, _as_one_each(text))), dtype=np.uint32) for text in texts]


def _as_one_each(text: str) -> str:
    for token, token_id in CUTS.items():
        text = text.replace(token, chr(token_id))
    return text


def text_of(ids: TokenIds) -> str:
    text = "".join(map(chr, ids))
    for token, token_id in CUTS.items():
        text = text.replace(chr(token_id), token)
    return text


def chat_of(num_turns: int) -> str:
    return "".join(f"<u>question {i}<a>answer {i}" for i in range(num_turns))


def test_only_what_comes_after_the_start_is_encoded_again() -> None:
    encoder = Encoder()
    cache = PrefixTokenCache(encoder, CUTS, 100_000, grid=GRID)
    chat = chat_of(40)
    cache.encode(chat)
    encoder.asked.clear()

    ids = cache.encode(f"{chat}<u>last<a>")

    assert text_of(ids) == f"{chat}<u>last<a>"
    asked = "".join(encoder.asked)
    assert asked.endswith("<u>last<a>")
    assert len(asked) < 3 * GRID


def test_a_chat_leaves_one_entry_however_long_it_grows() -> None:
    cache = PrefixTokenCache(Encoder(), CUTS, 10_000_000, grid=GRID)
    for turns in range(1, 60):
        cache.encode(chat_of(turns))

    text = chat_of(59)

    assert cache.num_bytes < 10 * len(text)


def test_two_chats_with_the_same_start_are_both_right() -> None:
    encoder = Encoder()
    cache = PrefixTokenCache(encoder, CUTS, 100_000, grid=GRID)
    system = chat_of(10)
    for i in range(20):
        for who in "ab":
            text = system + f"<u>{who}{i}" * (i + 1)
            assert text_of(cache.encode(text)) == text


def test_a_text_without_a_cut_is_not_kept() -> None:
    cache = PrefixTokenCache(Encoder(), CUTS, 100_000, grid=GRID)

    assert len(cache.encode("x" * 1000)) == 1000
    assert cache.num_bytes == 0


def test_a_text_is_not_kept_where_the_tokens_id_stands_for_more() -> None:
    cache = PrefixTokenCache(Encoder(), CUTS, 100_000, grid=GRID)
    text = chr(CUTS["<u>"]).join(["x" * 20, "y" * 20, "<u>z" * 20])

    assert text_of(cache.encode(text)) == text.replace(chr(CUTS["<u>"]), "<u>")
    assert cache.num_bytes == 0


def test_a_tokenizer_without_such_tokens_encodes_whole_texts() -> None:
    encoder = Encoder()

    PrefixTokenCache(encoder, {}, 100_000, grid=GRID).encode(chat_of(40))

    assert encoder.asked == [chat_of(40)]


def test_the_cache_never_holds_more_than_its_limit() -> None:
    cache = PrefixTokenCache(Encoder(), CUTS, 20_000, grid=GRID)
    for i in range(100):
        cache.encode(f"<u>{i}" + chat_of(20))

        assert 0 < cache.num_bytes <= 20_000


def test_many_threads_get_the_same_ids() -> None:
    tokenizer = load("bert-bge")
    cuts = find_split_points(tokenizer).apart
    cache = PrefixTokenCache(lambda t: encode_all(tokenizer, t), cuts, 30_000, grid=GRID)
    texts = growing_texts(3, ["[SEP]", "[CLS]"])[:120]
    expected = encode_all(tokenizer, texts)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(cache.encode, texts * 3))

    assert all(map(np.array_equal, found, expected * 3))
    assert cache.num_bytes <= 30_000


@pytest.mark.parametrize(
    "other",
    ["<a><", "x<a", "><a>y", "a", "<a>"[1:], "<"],
    ids=lambda other: repr(other),
)
def test_a_token_that_another_one_may_reach_into_is_not_apart(other: str) -> None:
    assert apart(["<a>"], ["<a>", other]) == []


@pytest.mark.parametrize("token", ["aa", "abab", "<a><"])
def test_a_token_that_reaches_into_itself_is_not_apart(token: str) -> None:
    assert apart([token], [token]) == []


def test_tokens_that_share_no_beginning_with_an_end_are_apart() -> None:
    contents = ["<|im_start|>", "<|im_end|>", "<s>"]

    assert apart(contents, contents) == contents


def test_what_may_not_be_a_cut_is_not_looked_for_either() -> None:
    tokens = (AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", special=True))

    assert find_split_points(small(*tokens)).apart == {"<r>": 3}


def test_no_token_is_apart_where_one_begins_as_another_ends() -> None:
    assert find_split_points(with_tricky(load("gpt-2"))).apart == {}


def test_llamas_own_tokens_are_apart() -> None:
    assert {"<|assistant|>", "<|end|>"} <= find_split_points(load("phi-3")).apart.keys()
