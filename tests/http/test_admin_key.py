"""Who bears the key, and what of it travels on."""

from __future__ import annotations

import pytest

from inferway.errors import UnauthorizedError
from inferway.model import Headers
from inferway.routing.limits.callers import AdminKey

KEY = "s3cret"
OTHER = (b"x-other", b"Bearer s3cret")


def bearing(*values: bytes) -> Headers:
    return [OTHER, *((b"authorization", value) for value in values)]


@pytest.mark.parametrize(
    "value", [b"Bearer s3cret", b"bearer s3cret", b"BEARER   s3cret ", b" Bearer s3cret"]
)
def test_the_key_is_taken_as_bearer_whatever_the_case_of_the_word(value: bytes) -> None:
    assert AdminKey(KEY).is_carried(bearing(value))
    AdminKey(KEY).check(bearing(value))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "this path wants the gateway's admin key: send `Authorization: Bearer KEY`"),
        ([b"Basic czNjcmV0"], "authorization: expected `Bearer KEY`, got something else"),
        ([b"s3cret"], "authorization: expected `Bearer KEY`, got something else"),
        ([b"Bearer"], "authorization: expected `Bearer KEY`, got something else"),
        ([b"Bearers3cret"], "authorization: expected `Bearer KEY`, got something else"),
        ([b"Bearer wrong"], "authorization: this is not the gateway's admin key"),
        ([b"Bearer S3CRET"], "authorization: this is not the gateway's admin key"),
        ([b"Bearer s3cret2"], "authorization: this is not the gateway's admin key"),
        ([b"Bearer s3cre"], "authorization: this is not the gateway's admin key"),
        ([b"Bearer \xff\xfe"], "authorization: this is not the gateway's admin key"),
    ],
)
def test_anything_else_is_refused_and_not_repeated(values: list[bytes], message: str) -> None:
    assert not AdminKey(KEY).is_carried(bearing(*values))
    with pytest.raises(UnauthorizedError) as refused:
        AdminKey(KEY).check(bearing(*values))

    assert str(refused.value) == message


def test_one_of_several_authorizations_is_enough() -> None:
    AdminKey(KEY).check(bearing(b"Bearer engine", b"Bearer s3cret"))


def test_the_key_does_not_travel_on_and_all_else_does() -> None:
    headers = bearing(b"Bearer engine", b"bearer s3cret", b"Bearer s3cret")

    assert AdminKey(KEY).without(headers) == bearing(b"Bearer engine")


def test_it_may_come_as_anthropics_clients_send_it() -> None:
    headers = [OTHER, (b"x-api-key", KEY.encode()), (b"x-api-key", b"the engine's")]

    AdminKey(KEY).check(headers)

    assert AdminKey(KEY).is_carried(headers)
    assert AdminKey(KEY).without(headers) == [OTHER, (b"x-api-key", b"the engine's")]


def test_a_key_may_be_any_text() -> None:
    AdminKey("schlüssel").check(bearing("Bearer schlüssel".encode()))


def test_nothing_of_the_key_can_be_read_back() -> None:
    key = AdminKey(KEY)

    assert KEY not in repr(key)
    assert all(KEY.encode() not in getattr(key, slot) for slot in key.__slots__)
