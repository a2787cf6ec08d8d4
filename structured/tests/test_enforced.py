from __future__ import annotations

from structured.tests.enforced import in_document, missing, table


def test_the_document_says_what_the_backends_make_of_each_keyword() -> None:
    assert in_document() == table(), "python -m structured.tests.enforced writes it anew"


def test_every_keyword_that_forbids_something_is_in_it() -> None:
    assert missing() == set()
