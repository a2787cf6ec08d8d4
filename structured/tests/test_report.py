from __future__ import annotations

from inferway_structured.grammar import Unenforced
from inferway_structured.report import MAX_NAMED, keeps_all, named
from inferway_structured.spec import Kind, OutputConstraint, Spec
from inferway_structured.texts import AnswerText


def test_places_are_written_as_in_a_uri() -> None:
    found = named([Unenforced("/properties/a b,ü~1", "uniqueItems"), Unenforced("", "not")])

    assert found == b"/properties/a%20b%2C%C3%BC~1 uniqueItems, not"


def test_a_header_names_so_many_places_and_no_more() -> None:
    many = [Unenforced(f"/{i}", "pattern") for i in range(MAX_NAMED + 1)]

    words = named(many).split(b", ")

    assert len(words) == MAX_NAMED + 1
    assert words[-1] == b"..."


def test_a_header_is_short_however_long_names_are() -> None:
    long = [Unenforced("/properties/" + "x" * 5000, "pattern")]

    assert named([Unenforced("/a", "not"), *long]) == b"/a not, ..."
    assert named(long) == b"..."


def is_empty(_: Spec, text: str) -> bool | None:
    return None if text == "?" else text == ""


def test_each_text_is_held_against_the_spec_that_was_asked_of_it() -> None:
    spec = Spec(Kind.REGEX, "")
    asked = [OutputConstraint(spec, "text"), OutputConstraint(spec, "tools/0", tool="f")]

    assert keeps_all(asked, [AnswerText(""), AnswerText("", "f")], is_empty) is True
    assert keeps_all(asked, [AnswerText(""), AnswerText("x", "f")], is_empty) is False
    assert keeps_all(asked, [AnswerText("?"), AnswerText("x", "f")], is_empty) is False
    assert keeps_all(asked, [AnswerText("?"), AnswerText("", "f")], is_empty) is None
    assert keeps_all(asked, [AnswerText("x", "another")], is_empty) is None
    assert keeps_all(asked, [], is_empty) is None
    assert keeps_all(asked, None, is_empty) is None


def test_a_shape_that_is_not_kept_hides_none_that_is() -> None:
    spec = Spec(Kind.JSON, "{}")
    free = OutputConstraint(spec, "guided_json").freed("another one is kept")

    assert (
        keeps_all([OutputConstraint(spec, ""), free], [AnswerText("x")], lambda _, text: text == "")
        is False
    )
    assert keeps_all([free], [AnswerText("x")], lambda _, text: text == "") is None
