"""A text in pieces has the ids that it has as a whole, and known pieces are not encoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from tests.prompts.texts import drawn_texts
from tests.stored import tokenizer_json
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from inferway.model import TokenIds
from inferway.prompts.tokenizer.token_cache import SegmentCache, SplitPoints, find_split_points
from inferway.prompts.tokenizer.tokenizer import encode_all

Change = Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]

NAMES = ["falcon", "bert-bge", "t5-small", "phi-3", "gpt-2"]


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


def as_normalised(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.NFKC(), normalizers.Prepend("▁")]
    )
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


def num_differing(tokenizer: tokenizers.Tokenizer, cuts: SplitPoints, seed: int) -> int:
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    texts = drawn_texts(seed, 400, added)
    # So small that pieces are forgotten all the time.
    cache = SegmentCache(lambda missing: encode_all(tokenizer, missing), cuts, 20_000)
    expected = encode_all(tokenizer, texts)
    return sum(
        not np.array_equal(cache.encode(text), ids)
        for text, ids in zip(texts, expected, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_real_tokenizers_give_the_same_ids_in_pieces(name: str) -> None:
    tokenizer = load(name)
    cuts = find_split_points(tokenizer)

    assert cuts.cuts
    assert num_differing(tokenizer, cuts, seed=len(name)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", [with_tricky, as_llama, as_prefix_space, as_normalised])
@pytest.mark.parametrize("name", ["falcon", "phi-3"])
def test_tricky_tokens_and_pipelines_do_too(name: str, change: object) -> None:
    assert callable(change)
    tokenizer = with_tricky(change(load(name)))

    assert num_differing(tokenizer, find_split_points(tokenizer), seed=7) == 0


def small(*tokens: AddedToken) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def test_a_token_that_takes_the_space_before_it_is_no_place_to_cut() -> None:
    tokens = (AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", special=True))

    assert find_split_points(small(*tokens)).cuts == {"<r>"}


def test_a_token_that_must_be_a_word_forbids_all_cuts() -> None:
    tokens = (AddedToken("w", single_word=True), AddedToken("<r>", special=True))

    assert find_split_points(small(*tokens)).cuts == frozenset()


def test_special_tokens_that_count_as_text_forbid_all_cuts() -> None:
    tokenizer = small(AddedToken("<r>", special=True))
    tokenizer.encode_special_tokens = True

    assert find_split_points(tokenizer).cuts == frozenset()


def test_a_token_found_in_normalised_text_only_is_no_place_to_cut() -> None:
    tokenizer = small(AddedToken("<n>", normalized=True), AddedToken("<r>", special=True))
    tokenizer.normalizer = normalizers.Lowercase()

    assert find_split_points(tokenizer).cuts == {"<r>"}


class Encoder:
    """Writes down what it is asked for; a text's ids are its characters."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[TokenIds]:
        self.asked += texts
        return [np.array(list(map(ord, text)), dtype=np.uint32) for text in texts]


CHAT = SplitPoints(["<u>", "<a>"], frozenset(["<u>", "<a>"]), {})


def test_a_growing_chat_has_only_its_new_pieces_encoded() -> None:
    encoder = Encoder()
    cache = SegmentCache(encoder, CHAT, 1_000_000)
    cache.encode("<u>one<a>two")
    encoder.asked.clear()

    ids = cache.encode("<u>one<a>two<u>three<a>")

    assert encoder.asked == ["<u>three", "<a>"]
    assert "".join(map(chr, ids)) == "<u>one<a>two<u>three<a>"


def test_a_repeated_piece_is_encoded_once() -> None:
    encoder = Encoder()
    SegmentCache(encoder, CHAT, 1_000_000).encode("<u>x<u>x<u>y<u>x")

    assert encoder.asked == ["<u>x", "<u>y"]


def test_text_without_a_cut_is_not_kept() -> None:
    cache = SegmentCache(Encoder(), CHAT, 1_000_000)

    assert cache.encode("plain").tolist() == list(map(ord, "plain"))
    assert cache.num_bytes == 0


def test_the_cache_never_holds_more_than_its_limit() -> None:
    cache = SegmentCache(Encoder(), CHAT, 5_000)
    for i in range(50):
        cache.encode(f"<u>{i}<a>{i}")

        assert cache.num_bytes <= 5_000


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    encoder = Encoder()
    cache = SegmentCache(encoder, CHAT, 2_000)
    cache.encode("<u>kept<a>first")
    for i in range(20):
        cache.encode(f"<u>kept<a>{i}")
    encoder.asked.clear()

    cache.encode("<u>kept<a>first")

    assert encoder.asked == ["<a>first"]


def test_many_threads_get_the_same_ids() -> None:
    tokenizer = load("bert-bge")
    cache = SegmentCache(
        lambda texts: encode_all(tokenizer, texts), find_split_points(tokenizer), 30_000
    )
    texts = drawn_texts(3, 200, ["[SEP]", "[CLS]"])
    expected = encode_all(tokenizer, texts)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(cache.encode, texts * 3))

    assert all(map(np.array_equal, found, expected * 3))
    assert cache.num_bytes <= 30_000
