"""Whose a key is, and what its file may look like."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from inferway.errors import ConfigError, UnauthorizedError
from inferway.routing.limits.callers import (
    ApiCaller,
    Callers,
    KeySettings,
    hash_of,
    new_key,
    read_callers,
    without_credentials,
)

ONE, TWO = new_key(), new_key()
CALLERS = Callers(
    [
        KeySettings(name="one", hash=hash_of(ONE), tenant="team", priority=3),
        KeySettings(name="two", hash=hash_of(TWO), admin=True),
    ]
)


def bearing(key: str, scheme: str = "Bearer") -> list[tuple[bytes, bytes]]:
    return [(b"host", b"h"), (b"authorization", f"{scheme} {key}".encode())]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_a_key_says_who_asks(scheme: str) -> None:
    assert CALLERS.of(bearing(ONE, scheme)) == ApiCaller("team", 3, admin=False, name="one")


def test_a_key_without_a_tenant_is_its_own() -> None:
    assert CALLERS.of(bearing(TWO)) == ApiCaller("two", 0, admin=True, name="two")


def test_a_key_may_come_as_anthropics_clients_send_it() -> None:
    assert CALLERS.of([(b"x-api-key", ONE.encode())]).name == "one"


def test_one_of_several_is_enough() -> None:
    assert CALLERS.of([*bearing("other"), (b"x-api-key", ONE.encode())]).name == "one"


@pytest.mark.parametrize(
    "headers",
    [
        bearing(ONE[:-1]),
        bearing(ONE + "x"),
        bearing(ONE.upper()),
        bearing(ONE, "Basic"),
        bearing(""),
        [(b"authorization", ONE.encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"x-api-key", b"")],
        bearing(hash_of(ONE)),
    ],
    ids=range(9),
)
def test_anything_else_is_nobody_and_is_not_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(UnauthorizedError) as refused:
        CALLERS.of(headers)

    assert str(refused.value) == "authorization: unknown API key"


def test_who_sends_none_is_told_how() -> None:
    with pytest.raises(UnauthorizedError) as refused:
        CALLERS.of([(b"host", b"h")])

    assert str(refused.value) == "send your API key as `Authorization: Bearer KEY`"


def test_no_key_travels_on_and_all_else_does() -> None:
    headers = [*bearing(ONE), (b"x-api-key", b"a"), (b"x-other", b"b")]

    assert without_credentials(headers) == [(b"host", b"h"), (b"x-other", b"b")]


def test_new_keys_are_long_and_not_the_same() -> None:
    keys = {new_key() for _ in range(100)}

    assert len(keys) == 100
    assert {len(key) for key in keys} == {46}  # 256 bits in base64, and what they are


def test_a_hash_is_sha256() -> None:
    assert hash_of(ONE) == "sha256:" + hashlib.sha256(ONE.encode()).hexdigest()


def test_a_key_that_could_be_guessed_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="a key of 6 bytes can be guessed") as refused:
        hash_of("secret")

    assert "secret" not in str(refused.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- name: one\n  hash: {hash_of(ONE)}\n  priority: -1\n")

    assert read_callers(path).of(bearing(ONE)).priority == -1


HASH = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys:\n- name: a\n", "object missing required field `hash` - at `$.keys[0]`"),
        ("keys:\n- name: a\n  hash: abc\n", "expected `str` matching regex"),
        (f"keys:\n- name: ''\n  hash: {HASH}\n", "expected `str` of length >= 1"),
        (f"keys:\n- name: a\n  hash: {HASH}\n  key: x\n", "object contains unknown field `key`"),
        (f"keys:\n- {{name: a, hash: '{HASH}'}}\n- {{name: a, hash: '{HASH}'}}\n", "given twice"),
        (
            f"keys:\n- {{name: a, hash: '{HASH}'}}\n- {{name: b, hash: '{HASH}'}}\n",
            "key 'b' has the same hash as another one",
        ),
        ("[", "not valid YAML"),
        ("a", "expected keys like"),
    ],
)
def test_a_file_that_cannot_hold_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as refused:
        read_callers(path)

    assert message in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        read_callers(tmp_path / "none.yaml")
