"""Fields that a client may not send to engines, unless the operator trusts clients with them.

`kv_transfer_params` and `ec_transfer_params` name hosts to fetch blocks from and blocks to hand
out. In disaggregated serving a router fills them in; from a client they would make an engine
connect to where the client says, or hand it the blocks of others. From one who is trusted they
must be whole: vLLM's core ends at a `do_remote_prefill` that names no blocks.

`priority` is a place in the engine's queue, before the requests of all other clients. 0 is vLLM's
default. The header of the same meaning, x-vllm-priority, never travels on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from inferway.errors import BadReferenceError, InvalidRequestError
from inferway.openai_api.kv_transfer import check_given
from inferway_structured.lax import lax_int

TRANSFERS = ("kv_transfer_params", "ec_transfer_params")

_Body = TypeVar("_Body")


@dataclass(frozen=True, slots=True)
class Trust:
    """The fields that clients are trusted with."""

    transfers: bool = False
    priority: bool = False

    def check(self, body: object) -> None:
        """Raise InvalidRequestError if a parsed body has a field without trust; null is absent."""
        if self.transfers:
            _check_transfers(body)
        else:
            _refuse_transfers(body)
        if not self.priority:
            _refuse_priority(body)

    def checked(self, parse: Callable[[bytes], _Body]) -> Callable[[bytes], _Body]:
        """Return `parse` such that it refuses what `check` does."""

        def parse_checked(raw: bytes) -> _Body:
            body = parse(raw)
            self.check(body)
            return body

        return parse_checked


NO_TRUST = Trust()


def _refuse_transfers(body: object) -> None:
    """In vLLM `vllm_xargs` end among the same arguments (to_sampling_params), so that a name there
    counts, too."""
    for name in TRANSFERS:
        if getattr(body, name, None) is not None:
            raise _transfer_refused(name)
    more = getattr(body, "vllm_xargs", None)
    if more and isinstance(more, dict):
        for name in TRANSFERS:
            if name in more:
                place = getattr(body, "xargs_place", "vllm_xargs")
                raise _transfer_refused(f"{place}.{name}")


def _check_transfers(body: object) -> None:
    more = getattr(body, "vllm_xargs", None)
    among = more.get(TRANSFERS[0]) if isinstance(more, dict) else None
    for given in (getattr(body, TRANSFERS[0], None), among):
        if given is None:
            continue
        try:
            check_given(given)
        except BadReferenceError as e:
            raise InvalidRequestError(str(e), param=TRANSFERS[0]) from None


def _transfer_refused(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param}: not taken from clients; routers between us and the engines fill it in"
        " (trust_kv_transfer_params)",
        param=param,
    )


def _refuse_priority(body: object) -> None:
    given = getattr(body, "priority", None)
    if given is None:
        return
    try:
        is_default = lax_int(given) == 0
    except ValueError:
        is_default = False
    if not is_default:
        raise InvalidRequestError(
            "priority: expected 0 or no priority; a place in an engine's queue is not taken from"
            " clients (trust_priority)",
            param="priority",
        )
