"""What a client may not say of engines' caches: `kv_transfer_params` and `ec_transfer_params` name
hosts to fetch blocks from and blocks to hand out. In disaggregated serving a router fills them in;
from a client they would make an engine connect to where the client says, or hand it the blocks of
others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from inferway.errors import InvalidRequestError

TRANSFERS = ("kv_transfer_params", "ec_transfer_params")

_Body = TypeVar("_Body")


def refuse_transfers(body: object) -> None:
    """`body`: a parsed one. In vLLM `vllm_xargs` end among the same arguments (to_sampling_params),
    so that a name there counts, too. Raises InvalidRequestError; a null is an absent field."""
    for name in TRANSFERS:
        if getattr(body, name, None) is not None:
            raise _refused(name)
    more = getattr(body, "vllm_xargs", None)
    if more and isinstance(more, dict):
        for name in TRANSFERS:
            if name in more:
                raise _refused(f"vllm_xargs.{name}")


def untrusting(parse: Callable[[bytes], _Body]) -> Callable[[bytes], _Body]:
    """`parse`, which refuses them."""

    def parse_untrusted(raw: bytes) -> _Body:
        body = parse(raw)
        refuse_transfers(body)
        return body

    return parse_untrusted


def _refused(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param}: not taken from clients; routers between us and the engines fill it in"
        " (trust_kv_transfer_params)",
        param=param,
    )
