"""A text whose start is remembered has the ids that it has as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from random import Random

import fastokens
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts.texts import drawn_texts
from tests.stored import tokenizer_json
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from inferway.model import TokenIds
from inferway.prompts.tokenizer.token_cache import (
    EncodeAll,
    PrefixTokenCache,
    apart,
    find_cuts,
)
from inferway.prompts.tokenizer.tokenizer import encode_all

Change = Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]

GRID = 32


def load(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json(name))


def as_llama(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Without normaliser, with a pre-tokenizer that asks where a text begins."""
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def as_prefix_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


# Tokens that reach into each other, into spaces, into words.
TRICKY = [
    AddedToken("<a>", special=True),
    AddedToken("<a>b", special=True),
    AddedToken("a><", special=True),
    AddedToken(">>T<<", special=True),
    AddedToken("<left>", lstrip=True, special=True),
    AddedToken("<right>", rstrip=True, special=True),
    AddedToken(" spaced ", special=True),
    AddedToken("\n\n", special=True),
    AddedToken("<N>", normalized=True),
    AddedToken("N><", normalized=True),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
]


def with_tricky(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.add_tokens(TRICKY)
    return tokenizer


def small(*tokens: AddedToken) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.add_tokens(list(tokens))
    return tokenizer


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
    cuts = find_cuts(tokenizer)
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
    cuts = find_cuts(tokenizer)
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


def lowering(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def splitting(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Its special tokens count as text."""
    tokenizer.encode_special_tokens = True
    return tokenizer


R = AddedToken("<r>", special=True)


@pytest.mark.parametrize(
    ("other", "change", "cuts"),
    [
        (AddedToken("<l>", lstrip=True, special=True), same, {"<r>"}),
        (AddedToken(" <s>", special=True), same, {"<r>"}),
        (AddedToken("w", single_word=True), same, set()),
        (AddedToken("<n>", normalized=True), same, {"<n>", "<r>"}),
        (AddedToken("<n>", normalized=True), lowering, {"<r>"}),
        (AddedToken("<x>", special=True), splitting, set()),
    ],
    ids=["takes spaces", "begins with one", "is a word", "plain", "normalised", "is text"],
)
def test_a_text_is_cut_only_at_tokens_that_are_certain_to_be_found(
    other: AddedToken, change: Change, cuts: set[str]
) -> None:
    assert find_cuts(change(small(other, R))).keys() == cuts


def test_no_token_is_apart_where_one_begins_as_another_ends() -> None:
    assert find_cuts(with_tricky(load("gpt-2"))) == {}


def test_llamas_own_tokens_are_apart() -> None:
    assert {"<|assistant|>", "<|end|>"} <= find_cuts(load("phi-3")).keys()


def test_a_token_is_used_however_many_the_tokenizer_has() -> None:
    encoder = Encoder()
    cuts = {f"<{i}>": 0xF0000 + i for i in range(1000)} | CUTS
    cache = PrefixTokenCache(encoder, cuts, 100_000, grid=GRID)
    cache.encode(chat_of(40))
    encoder.asked.clear()

    cache.encode(chat_of(41))

    assert len("".join(encoder.asked)) < 4 * GRID


# What is settled of a text.

PIECES = ["<u>", "<u", "<end>", "<end", ">", "\n", "\n\n", " ", "  ", "<lstrip>", "<l", "<", "mild"]
PIECES += ["mil", "hello", " world", "é", "ＷＯＲＤ", "1"]
TOKENS = [
    *[AddedToken(text, normalized=False) for text in ("<u>", "\n\n")],
    AddedToken("<end>", rstrip=True, normalized=False),
    AddedToken("<lstrip>", lstrip=True, normalized=False),
    AddedToken("mild", normalized=True),
]
pieces = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
KINDS = ["gpt-2", "starcoder", "falcon", "phi-3", "t5-small", "bert-bge"]


class Settling(dict[str, tuple[EncodeAll, PrefixTokenCache]]):
    def __repr__(self) -> str:
        """Short: hypothesis shows it beside the texts that were drawn."""
        return "Settling()"


@pytest.fixture(scope="module")
def settling() -> Settling:
    found = Settling()
    for kind in KINDS:
        tokenizer = load(kind)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_tokens(TOKENS)
        encode = partial(encode_all, tokenizer)
        found[kind] = (encode, PrefixTokenCache(encode, find_cuts(tokenizer), 100_000))
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(known=pieces, rest=pieces)
def test_settled_ids_of_an_open_text_hold_whatever_follows(
    settling: Settling, kind: str, known: str, rest: str
) -> None:
    encode, cache = settling[kind]
    start = cache.encode_settled(known, len(known))

    assert encode([known + rest])[0][: len(start)].tolist() == start.tolist()


@pytest.mark.parametrize("kind", KINDS)
@given(text=pieces, share=st.floats(0, 1))
def test_settled_ids_of_a_whole_text_are_the_start_of_its_ids(
    settling: Settling, kind: str, text: str, share: float
) -> None:
    encode, cache = settling[kind]
    place = round(share * len(text))
    start = cache.encode_settled(text, place).tolist()

    assert encode([text])[0][: len(start)].tolist() == start


@pytest.mark.parametrize(
    ("text", "place", "settled"),
    [
        ("", 0, ""),
        ("hello", 5, ""),
        ("hello<u>", 8, "hello<u>"),
        ("hello<u> and more", 17, "hello<u>"),
        ("hello<u", 7, ""),
        ("x<end>  y", 9, "x<end>"),
        ("hello<u>c", 9, "hello<u>"),
        ("hello<u>c", 7, "hello"),
        ("hello<u>c", 5, "hello"),
        ("hello<u>c", 4, ""),
    ],
)
def test_a_text_is_settled_up_to_either_end_of_a_cut(
    settling: Settling, text: str, place: int, settled: str
) -> None:
    encode, cache = settling["gpt-2"]

    ids = cache.encode_settled(text, place)

    assert ids.tolist() == encode([settled])[0].tolist()
