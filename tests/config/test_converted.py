"""A value that cannot be: its place, itself, and what may be there instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.inspect import (
    DictType,
    FloatType,
    IntType,
    ListType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from inferway.config import EngineSettings, ServeSettings, converted, load_settings
from inferway.errors import ConfigError

# What a struct cannot be without.
_REQUIRED: dict[str, object] = {
    "engines": [{"url": "http://h:1"}],
    "url": "http://h:1",
    "model": "m",
    "targets": [{"model": "m"}],
}


class Beyond(NamedTuple):
    """A value beyond a bound, and what there is of settings around it."""

    key: str
    fields: Any
    value: float
    bound: str


def beyond(kind: Type) -> Iterator[Beyond]:
    """For each bound below `kind`."""
    if isinstance(kind, IntType | FloatType):
        yield from _beyond_number(kind)
    elif isinstance(kind, UnionType):
        for each in kind.types:
            yield from beyond(each)
    elif isinstance(kind, ListType | VarTupleType):
        for inner in beyond(kind.item_type):
            yield inner._replace(key=f"[0]{inner.key}", fields=[inner.fields])
    elif isinstance(kind, DictType):
        for inner in beyond(kind.value_type):
            yield inner._replace(key=f".m{inner.key}", fields={"m": inner.fields})
    elif isinstance(kind, StructType):
        required = {f.name: _REQUIRED[f.name] for f in kind.fields if f.required}
        for field in kind.fields:
            for inner in beyond(field.type):
                fields = {**required, field.name: inner.fields}
                yield inner._replace(key=f".{field.name}{inner.key}", fields=fields)


def _beyond_number(kind: IntType | FloatType) -> Iterator[Beyond]:
    number = int if isinstance(kind, IntType) else float
    if kind.gt is not None:
        bound = f">= {kind.gt + 1}" if number is int else f"> {number(kind.gt)}"
        yield Beyond("", kind.gt, kind.gt, bound)
    if kind.ge is not None:
        yield Beyond("", kind.ge - 1, kind.ge - 1, f">= {number(kind.ge)}")
    if kind.le is not None:
        yield Beyond("", kind.le + 1, kind.le + 1, f"<= {number(kind.le)}")


EVERY_BOUND = list(beyond(type_info(ServeSettings)))


@pytest.mark.parametrize("case", EVERY_BOUND, ids=lambda case: f"{case.key}={case.value}")
def test_a_number_out_of_range_is_shown_with_its_place_and_the_bound(
    case: Beyond, tmp_path: Path
) -> None:
    file = tmp_path / "gw.yaml"
    file.write_bytes(msgspec.yaml.encode(case.fields))

    with pytest.raises(ConfigError) as e:
        load_settings(file, {})

    kind = "int" if isinstance(case.value, int) and "." not in case.bound else "float"
    key = case.key.removeprefix(".")
    assert str(e.value) == f"{file}: {key}: {case.value}: expected `{kind}` {case.bound}"


def test_the_walk_over_the_bounds_goes_through_lists_structs_and_what_may_be_null() -> None:
    keys = {case.key for case in EVERY_BOUND}

    assert {
        *(".port", ".heal", ".engines[0].block_size", ".index.tier_weights[0]", ".admin_port"),
        *(".model_rewrites[0].targets[0].weight", ".discovery.kubernetes.ports[0]"),
    } <= keys


def fault(fields: object, kind: type = ServeSettings) -> str:
    with pytest.raises(ConfigError) as e:
        converted(fields, kind, "f")
    return str(e.value)


def test_of_a_map_the_key_is_named() -> None:
    models = {"a": {}, "b": {"chat_template": 3}}

    said = fault({"engines": [], "models": models})

    assert said == "f: models.b.chat_template: 3: expected `str | null`, got `int`"


def test_a_value_that_is_no_number_at_all_is_shown() -> None:
    said = fault({"engines": [], "scrape_seconds": float("nan")})

    assert said == "f: scrape_seconds: nan: expected `float` > 0.0"


def test_of_words_all_that_may_be_are_named() -> None:
    said = fault({"engines": [], "log_format": "xml"})

    assert said == "f: log_format: 'xml': expected one of text, json"


def test_of_keys_all_that_may_be_are_named() -> None:
    said = fault({"url": "http://h:1", "modell": "m"}, EngineSettings)

    known = "url, name, events, replay, block_size, speculation, prefix_match_unit, "
    known += "attention_chunk_size, api_key_env, labels, role, kv_connector, kv_bootstrap, kv_host"
    assert said == f"f: object contains unknown field `modell`; known: {known}"


@pytest.mark.parametrize(
    ("place", "key", "cure"),
    [
        ("index", "url", "give peers.redis (--peers-redis)"),
        ("index", "prefix", "give peers.redis (--peers-redis)"),
        ("index", "gateway", "give peers.redis (--peers-redis)"),
        ("picker", "mode_override", "response_body_mode: NONE"),
    ],
)
def test_a_key_that_is_gone_is_refused_with_the_cure(place: str, key: str, cure: str) -> None:
    said = fault({"engines": [], place: {key: "old"}})

    assert f"{place}: object contains unknown field `{key}`: " in said
    assert cure in said


def test_followers_are_refused_with_the_cure() -> None:
    said = fault({"engines": [], "followers": 1})

    assert "unknown field `followers`: followers are gone" in said
    assert "cells (docs/scale.md)" in said


def test_a_list_or_a_map_where_none_belongs_is_not_shown() -> None:
    said = fault({"engines": [{"url": {"a": "secret"}}]})

    assert said == "f: engines[0].url: expected `str`, got `object`"


def test_no_password_and_no_long_text_is_shown() -> None:
    url = "redis://me:secret@h/"

    assert fault({"engines": [], "index": url}) == (
        "f: index: 'redis://me:***@h/': expected `object`, got `str`"
    )
    assert fault({"engines": [], "port": "x" * 500}) == (
        f"f: port: '{'x' * 79}…: expected `int`, got `str`"
    )


def test_an_unknown_level_of_the_log_is_refused_with_those_that_are_known() -> None:
    said = fault({"engines": [], "log_level": "loud"})

    assert said == "f: log_level: 'loud': expected one of debug, info, warning, error"


def test_the_place_is_found_where_a_value_is_worded_like_one() -> None:
    said = fault({"engines": [], "log_format": "a - at `$.port`"})

    assert said.startswith("f: log_format: 'a - at `$.port`': expected one of")
