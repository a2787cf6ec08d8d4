"""What logs and errors have of URLs."""

from __future__ import annotations

import pytest

from inferway.config import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/1", "redis://h:6379/1"),
        ("redis://me@h", "redis://me@h"),
        ("redis://me:pw@h:6379/1", "redis://me:***@h:6379/1"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://:p/w@:@h", "redis://:***@h"),
        ("redis://me:pw@h?password=pw2&db=1", "redis://me:***@h?password=***&db=1"),
        ("https://h/v1?x=1&api_key=a%20b#top", "https://h/v1?x=1&api_key=***#top"),
        ("no URL at all", "no URL at all"),
    ],
)
def test_a_password_is_left_out_and_nothing_else(url: str, shown: str) -> None:
    assert without_password(url) == shown
