"""Tenants' salts: the same for the same, different for all else, and in the body as named."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import combinations

import pytest

from inferway.routing.salt import TenantSalt

SALT = TenantSalt("secret")


def test_it_is_a_keyed_hash_of_the_tenant() -> None:
    """Written down here again: a salt that changes empties every engine's cache for its tenants."""
    key = blake2b(b"secret").digest()

    assert SALT.of("acme", None) == blake2b(b"4:acme", digest_size=32, key=key).hexdigest()
    assert SALT.of("acme", "own") == blake2b(b"4:acme+own", digest_size=32, key=key).hexdigest()


def test_no_two_are_the_same() -> None:
    secrets = (TenantSalt("secret"), TenantSalt("secret2"))
    tenants = ("", "a", "a+b", "é", "1:a", "a" * 200)
    given = (None, "", "b", "+b", SALT.of("a", None))
    salts = [each.of(tenant, own) for each in secrets for tenant in tenants for own in given]

    assert all(one != other for one, other in combinations(salts, 2))


def test_vllm_takes_it() -> None:
    """At most 128 characters, none of @, /, backslash and NUL (validate_cache_salt)."""
    salt = SALT.of("a", "b")

    assert len(salt) == 64
    assert set(salt) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (b"{}", None),
        (b'{"model": "m", "n": 1.50}', None),
        (b'{"cache_salt": null, "n": 1}', None),
        (b'{"cache_salt": "own"}', "own"),
        (b'{"cache\\u005fsalt": "o\\u0077n"}', "own"),
        (b'{"cache_salt": "first", "cache_salt": "own"}', "own"),
        (b' {"messages": [{"cache_salt": "x"}]}', None),
    ],
)
def test_a_body_has_its_tenant_s_salt_and_nothing_else_changes(
    body: bytes, own: str | None
) -> None:
    salted = SALT.salted(body, "acme")

    assert salted is not None
    assert json.loads(salted) == {**json.loads(body), "cache_salt": SALT.of("acme", own)}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"cache_salt": 1}', b'{"cache_salt": ["a"]}'])
def test_what_cannot_have_one_is_left_to_who_reads_it(body: bytes) -> None:
    assert SALT.salted(body, "acme") is None
