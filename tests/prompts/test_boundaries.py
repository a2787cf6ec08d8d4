"""What is encoded up to a boundary does not change with what follows."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.stored import tokenizer_json
from tokenizers import AddedToken

from inferway.prompts.tokenizer.open_text_boundaries import OpenTextBoundaries

KINDS = ["gpt-2", "starcoder", "falcon", "phi-3", "t5-small", "bert-bge"]

# Tokens that begin others, begin where others end, or are made of what texts are made of.
TRICKY = [
    *[AddedToken(text, normalized=False) for text in ("<a>", "<a>b", ">b", "[x", "[x]y", "\n\n")],
    AddedToken("<lstrip>", lstrip=True, normalized=False),
    AddedToken("<rstrip>", rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("mild", normalized=True),
    AddedToken("ild<a", normalized=True),
]

PIECES = [
    *[
        "<a>",
        "<a",
        ">",
        "b",
        ">b",
        "[x",
        "]",
        "]y",
        "\n",
        "\n\n",
        " ",
        "  ",
        "<lstrip>",
        "<rstrip>",
    ],
    *["<l", "<", "word", "wor", "d", "mild", "mil", "d<a", "hello", " world", "é", "ＷＯＲＤ", "1"],
]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


class Tricky(dict[str, tuple[tokenizers.Tokenizer, OpenTextBoundaries]]):
    def __repr__(self) -> str:
        """Short: hypothesis shows it beside the texts that were drawn."""
        return "Tricky()"


@pytest.fixture(scope="module")
def tricky() -> Tricky:
    found = Tricky()
    for kind in KINDS:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(kind))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_tokens(TRICKY)
        found[kind] = (tokenizer, OpenTextBoundaries(tokenizer))
    return found


def ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(known=texts, rest=texts)
def test_an_open_texts_ids_hold_up_to_the_boundary_whatever_follows(
    tricky: Tricky, kind: str, known: str, rest: str
) -> None:
    tokenizer, boundaries = tricky[kind]
    start = ids(tokenizer, known[: boundaries.of_open_text(known)])

    assert ids(tokenizer, known + rest)[: len(start)] == start


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, share=st.floats(0, 1))
def test_a_whole_text_is_encoded_apart_on_both_sides_of_a_boundary(
    tricky: Tricky, kind: str, text: str, share: float
) -> None:
    tokenizer, boundaries = tricky[kind]
    place = round(share * len(text))
    end = boundaries.before(text, place)
    start = ids(tokenizer, text[:end])

    assert end <= place
    assert ids(tokenizer, text)[: len(start)] == start


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0),
        ("hello", 0),
        ("hello<a>", 0),  # may become <a>b
        ("hello<a>c", 8),
        ("hello<a> and more", 8),
        ("x<rstrip>  y", 11),
        ("x<a>c[x", 4),
        ("one word, two", 0),  # the next time it may be part of a longer word
        ("\n\n", 0),  # as may a second \n
        ("\n\n.", 2),
        ("<rstrip>\n\n world", 10),  # the first token is found with all spaces, and \n\n again
    ],
)
def test_an_open_texts_last_boundary_is_the_end_of_an_added_token(
    tricky: Tricky, text: str, end: int
) -> None:
    assert tricky["gpt-2"][1].of_open_text(text) == end


@pytest.mark.parametrize(
    ("text", "place", "end"),
    [
        ("hello<a>c", 9, 8),
        ("hello<a>c", 8, 8),
        ("hello<a>c", 7, 5),
        ("hello<a>c", 5, 5),
        ("hello<a>c", 4, 0),
        ("hello  <lstrip>c", 9, 5),
        ("a<rstrip>\n\n world", 9, 1),
        (" wordmild", 7, 0),  # cut before "mild", "word" would be a word
        ("1 mildword", 6, 6),
    ],
)
def test_a_whole_texts_boundaries_are_both_ends_of_an_added_token(
    tricky: Tricky, text: str, place: int, end: int
) -> None:
    assert tricky["gpt-2"][1].before(text, place) == end


def test_tokens_that_are_found_in_normalised_text_only_are_no_boundaries(tricky: Tricky) -> None:
    _, lowering = tricky["bert-bge"]
    _, plain = tricky["gpt-2"]

    assert lowering.of_open_text("mild weather") == 0
    assert plain.of_open_text("mild weather") == 4


def test_a_long_text_is_searched_in_no_time_worth_speaking_of(tricky: Tricky) -> None:
    _, boundaries = tricky["gpt-2"]
    text = json.dumps(["<" * 1000] * 300) + "<a>c"

    assert boundaries.of_open_text(text) == len(text) - 1
