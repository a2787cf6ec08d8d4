"""Web pages are told from other clients."""

from __future__ import annotations

import pytest

from inferway.errors import ForbiddenError
from inferway.http.auth import check_no_web_page
from inferway.http.message import Request


def request(**fields: str) -> Request:
    made = Request.to("POST", b"/admin/engines/e0/drain", 0.0)
    made.headers = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()
    ]
    made.fields = dict(made.headers)
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "127.0.0.1:8080"},
        {"host": "localhost:8080"},
        {"host": "[::1]:8080"},
        {"host": "gw.localhost"},
        {"host": "localhost:8080", "origin": "http://localhost:8080"},
        {"host": "localhost:8080", "sec_fetch_site": "none"},  # typed into the address bar
        {},
    ],
    ids=str,
)
def test_other_clients_and_our_own_site_pass(fields: dict[str, str]) -> None:
    check_no_web_page(request(**fields), is_local=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": "localhost:8080", "origin": "https://evil.example"}, "^origin 'https://evil"),
        ({"host": "localhost:8080", "origin": "http://localhost:3000"}, "^origin 'http://local"),
        ({"host": "localhost:8080", "origin": "null"}, "^origin 'null'"),
        ({"host": "localhost:8080", "sec_fetch_site": "cross-site"}, "^sec-fetch-site"),
        ({"host": "evil.example:8080"}, "^host 'evil.example:8080': expected localhost"),
        ({"host": "evil.example", "origin": "http://evil.example"}, "^host 'evil.example'"),
        ({"host": "127.0.0.1.evil.example"}, "^host"),
    ],
    ids=str,
)
def test_pages_of_others_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ForbiddenError, match=message + ".*; set admin_key_env$"):
        check_no_web_page(request(**fields), is_local=True)


def test_a_gateway_for_other_machines_has_any_name() -> None:
    check_no_web_page(request(host="inferway.default.svc:8080"), is_local=False)
