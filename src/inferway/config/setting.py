"""Annotations of a settings field, beside its type and its default:

    queue: Annotated[WholeNumber, Flag("--queue N", LIMITS), "Let at most …", "See [the guide](…)."]

The first text is the help of the flag, and what docs/configuration.md says of the key; the second
is only there. A default that is no value stands at the end of the first one: [default: no limit].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(gt=0)]
WholeNumber = Annotated[int, msgspec.Meta(ge=0)]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

ANY_NAME: Final = "*"  # in a dotted key: each name of a map, each item of a list
_DEFAULT = "  [default: "


class Mark(Enum):
    """A property of a setting that is either there or not."""

    RELOADED = auto()  # SIGHUP takes the new value over while the gateway runs
    ONCE = auto()  # the hub heeds it alone; workers have the default


RELOADED, ONCE = Mark


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """A part of the help of `inferway serve` or `inferway epp`."""

    title: str
    example: str  # one line of a shell


_SERVE = "inferway serve http://10.0.0.5:8000"

ENGINES = FlagGroup("Engines", f"{_SERVE} http://10.0.0.6:8000,name=second")
DISCOVERY = FlagGroup(
    "Discovery of engines that come and go",
    "inferway serve --engines-dns http://vllm.default.svc:8000",
)
LISTENING = FlagGroup("Listening and TLS", f"{_SERVE} --host 0.0.0.0 --port 80")
PROMPTS = FlagGroup("Prompts", f"{_SERVE} --chat-template org/model=chat.jinja")
INDEX = FlagGroup("Index of cached blocks", f"{_SERVE} --state-dir /var/lib/inferway")
GATEWAYS = FlagGroup("Several gateways", f"{_SERVE} --peers gateways.default.svc:7400")
SCHEDULING = FlagGroup("Scheduling", f"{_SERVE} http://10.0.0.6:8000 --policy least-load")
LIMITS = FlagGroup("Limits and queues", f"{_SERVE} --engine-in-flight 64 --queue 500")
FAILURES = FlagGroup(
    "Engines that fail",
    "inferway serve --config gateway.yaml --attempts 2 --ejection-failures 3",
)
STRUCTURED = FlagGroup("Structured output", f"{_SERVE} --structured-trial-compile")
SECURITY = FlagGroup("Security", f"{_SERVE} --api-keys keys.yaml")
OBSERVABILITY = FlagGroup("Observability", f"{_SERVE} --publish tcp://*:5558 --access-log none")

# Those that stand behind the engines in the help of `inferway serve`
SERVING = (
    LISTENING, PROMPTS, INDEX, GATEWAYS, SCHEDULING, LIMITS, FAILURES, STRUCTURED, SECURITY,
    OBSERVABILITY,
)  # fmt: skip

PICKING = FlagGroup("Picking for a proxy", "inferway epp --pool-name vllm --grpc-port 9002")
PICKER_TLS = FlagGroup(
    "TLS with the proxy",
    "inferway epp --pool-name vllm --cert-path /certs --enable-cert-reload",
)


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of a setting, as it is typed, with what follows it: `--queue N`, `--ui/--no-ui`."""

    typed: str
    group: FlagGroup

    @property
    def names(self) -> str:
        """The names, as click has them."""
        return self.typed.partition(" ")[0]

    @property
    def metavar(self) -> str:
        """The placeholder that the help shows for the value."""
        return self.typed.partition(" ")[2]

    @property
    def is_opposite(self) -> bool:
        """True if the flag, when it is given, switches its setting off."""
        return self.typed.startswith(("--no-", "--disable-"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a struct of the settings."""

    name: str
    kind: Any  # the type; that of a number has its bounds, as Annotated
    default: Any
    flag: Flag | None
    marks: frozenset[Mark]
    text: str
    default_words: str  # what stands for the default, if that is no value
    more: str  # what only the documents say

    @property
    def kinds(self) -> list[Any]:
        """The types that a value may have, without that of null."""
        is_union = get_origin(self.kind) in (Union, UnionType)
        every = get_args(self.kind) if is_union else (self.kind,)
        return [each for each in every if each is not NoneType]

    @property
    def part(self) -> type[msgspec.Struct] | None:
        """The struct that the value is, or has as its items."""
        for kind in self.kinds:
            inner = get_args(bare(kind))[-1:] or (kind,)
            if isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct):
                return inner[0]
        return None


def bare(kind: Any) -> Any:
    """Return the type without its bounds."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


@cache
def settings_of(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return what the fields of the struct say of themselves, in their order."""
    found = {}
    for field in msgspec.structs.fields(struct):
        is_told = get_origin(field.type) is Annotated
        kind, *said = get_args(field.type) if is_told else (field.type,)
        bounds = [each for each in said if isinstance(each, msgspec.Meta)]
        texts = [each for each in said if isinstance(each, str)]
        assert texts, (
            f"{struct.__name__}.{field.name}: give its meaning, as Annotated[TYPE, 'Text.']"
        )
        text, _, default_words = texts[0].partition(_DEFAULT)
        found[field.name] = Setting(
            field.name,
            Annotated[kind, *bounds] if bounds else kind,
            _default(field),
            next((each for each in said if isinstance(each, Flag)), None),
            frozenset(each for each in said if isinstance(each, Mark)),
            text,
            default_words.removesuffix("]"),
            " ".join(texts[1:]),
        )
    return found


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def keys_below(
    struct: type[msgspec.Struct], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, Setting]]:
    """Yield each setting with its dotted key, and what is below it after it."""
    for name, setting in settings_of(struct).items():
        path = (*above, name)
        yield ".".join(path), setting
        if setting.part is not None:
            has_many = any(get_origin(bare(kind)) in (list, dict) for kind in setting.kinds)
            yield from keys_below(setting.part, (*path, ANY_NAME) if has_many else path)


def without_once(settings: _Struct) -> _Struct:
    """Return the settings that workers get: those that are marked ONCE have their defaults."""
    changed = {}
    for name, setting in settings_of(type(settings)).items():
        value = getattr(settings, name)
        if ONCE in setting.marks:
            changed[name] = getattr(type(settings)(), name)
        elif isinstance(value, msgspec.Struct):
            changed[name] = without_once(value)
    return msgspec.structs.replace(settings, **changed)
