"""Handlers that choose one profile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.llmd.scheduling.handlers.test_disagg import TABLE, Rows
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import request, with_header

from inferway.errors import ConfigError, InvalidRequestError
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.registry import Building


def built(kind: str, profiles: dict[str, ProfileHandler], **parameters: Any) -> ProfileHandler:
    made = TYPES[kind]
    assert made.is_handler
    chooser: Any = made.build(
        msgspec.convert(parameters, made.parameters), Building(profiles=profiles)
    )
    return chooser  # type: ignore[no-any-return]


def chosen(chooser: ProfileHandler, ask: LLMRequest) -> str:
    return chooser.choose(ask, TABLE).targets[0].endpoint.engine


SINGLE = ("single-profile-handler", "data-parallel-profile-handler")


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_profile_chooses(name: str) -> None:
    assert chosen(built(name, {"default": Rows(3)}), request()) == "e3"


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_profile_handler_takes_no_more(name: str) -> None:
    with pytest.raises(ConfigError, match=r"2 profiles \(a, b\)"):
        built(name, {"a": Rows(0), "b": Rows(1)})


PROFILES: dict[str, ProfileHandler] = {"decode": Rows(1), "prefill": Rows(2)}


def test_the_header_names_the_profile() -> None:
    handler = built("header-profile-handler", PROFILES)

    assert chosen(handler, with_header("epp-profile", b" prefill ")) == "e2"
    assert chosen(handler, request()) == "e1"
    other = built(
        "header-profile-handler", PROFILES, headerName="X-Stage", defaultProfile="prefill"
    )
    assert chosen(other, with_header("x-stage", b"decode")) == "e1"
    assert chosen(other, request()) == "e2"


def test_a_profile_that_is_not_known_is_the_clients_fault() -> None:
    handler = built("header-profile-handler", PROFILES)

    with pytest.raises(InvalidRequestError, match="'gone' is no profile; known: decode, prefill"):
        handler.choose(with_header("epp-profile", b"gone"), TABLE)


def test_the_only_profile_needs_no_name() -> None:
    handler = built("header-profile-handler", {"all": Rows(5)})

    assert chosen(handler, with_header("epp-profile", b"gone")) == "e5"


def test_a_default_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match="defaultProfile: 'x' is no profile"):
        built("header-profile-handler", PROFILES, defaultProfile="x")
