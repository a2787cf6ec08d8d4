"""A request in two legs: what the prefill engine is sent, what it returns, what the decode engine
gets of that. Pure; docs/kv-transfer.md has the whole.

prefill leg    the client's body with at most one token, not streamed, and `kv_transfer_params`
reference      the `kv_transfer_params` of its answer: where the blocks lie
decode leg     the client's body with the reference

vLLM believes a reference: one of another prompt gets another prompt's answer, one without a field
ends its core (seen on 0.32). So `read_reference` takes only what it knows, and what is sent on is
written anew from what was read.

Bodies are not parsed. What we add stands last in the object, and of two members with one name the
last one counts, as in vLLM's parser.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from inferway.errors import BadReferenceError
from inferway.model import KvConnector
from inferway.openai_api.edits import with_last_members, with_prompt
from inferway.openai_api.generate import GenerateRequest
from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    ResponsesRequest,
    reads_cache,
)
from inferway.openai_api.shapes import shape_fields
from inferway_structured.decoding import UNREADABLE

# Field -> why a request that has it is answered by one engine.
_ALONE: dict[str, str] = {
    "kv_transfer_params": "says itself what is transferred",
    "ec_transfer_params": "says itself what is transferred",
    "use_beam_search": "is searched with beams",
    "echo": "wants its prompt in the answer",
    "prompt_embeds": "has a prompt that is no text",
    # where it is cut depends on how many tokens may be made, of which leg 1 makes one
    "truncate_prompt_tokens": "may be cut",
    "previous_response_id": "goes on with what one engine has stored",
    "background": "is answered later",
}
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

# What NIXL's prefill engine is told; it reads the first, and all proxies send the others.
NIXL_PREFILL = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)

# Leg 1 makes one token, and its answer is thrown away. vLLM refuses `min_tokens` over the limit.
_ONE_TOKEN: dict[type[Any], bytes] = {
    ChatRequest: (
        b'"stream":false,"stream_options":null,"max_tokens":1,"max_completion_tokens":1,'
        b'"min_tokens":0,"logprobs":false,"top_logprobs":0,"logprob_token_ids":null,'
        b'"return_token_ids":null,"return_prompt_text":null'
    ),
    CompletionRequest: (
        b'"stream":false,"stream_options":null,"max_tokens":1,"min_tokens":0,"logprobs":null,'
        b'"logprob_token_ids":null,"return_token_ids":null'
    ),
    ResponsesRequest: b'"stream":false,"store":false,"max_output_tokens":1',
    MessagesRequest: b'"stream":false,"max_tokens":1',
    # all that is computed of the prompt does not depend on how tokens are chosen
    GenerateRequest: (
        b'"stream":false,"stream_options":null,"return_token_ids":null,"output_mode":"tokens",'
        b'"sampling_params":{"max_tokens":1,"detokenize":false}'
    ),
}


def why_one_leg(body: Body) -> str | None:
    """Return why a request is answered by one engine alone; None if another one may compute its
    prompt. Media may be in it: vLLM's connectors transfer blocks, whatever they are of."""
    asked = _ASKED.get(type(body))
    if asked is None:
        return "generates nothing"
    if asked.alone(body) != asked.nothing and (why := _why_alone(body)) is not None:
        return why
    limits = asked.limits(body)
    if 0 in limits or 1 in limits:
        return "wants one token"
    if not reads_cache(body):
        return "wants its prompt computed"
    if isinstance(body.vllm_xargs, dict) and not _TRANSFERS.isdisjoint(body.vllm_xargs):
        return "says itself what is transferred"
    if isinstance(body, CompletionRequest):
        return None if len(body.prompts) == 1 else "has several prompts"
    return _why_response_alone(body) if isinstance(body, ResponsesRequest) else None


def _why_alone(body: Body) -> str | None:
    for field, why in _ALONE.items():
        value = getattr(body, field, None)
        if value is not None and value is not False:
            return why
    return None if getattr(body, "n", None) in (None, 1) else "wants several answers"


class _AskedFields(NamedTuple):
    """Reads what `why_one_leg` looks at from bodies of one type: getting the fields one by one
    would take five times as long."""

    alone: Callable[[Body], tuple[object, ...]]
    nothing: tuple[object, ...]  # what `alone` returns of a body that asks for none of it
    limits: Callable[[Body], tuple[object, ...]]


def _asked(of: type[msgspec.Struct]) -> _AskedFields:
    alone = [name for name in _ALONE if name in of.__struct_fields__]
    alone += ["n"] if hasattr(of, "n") else []
    limits = [name for name in _LIMITS if name in of.__struct_fields__] or ["answer_limit"]
    return _AskedFields(_getter(alone), (None,) * len(alone), _getter(limits))


def _getter(names: list[str]) -> Callable[[Body], tuple[object, ...]]:
    # a getter of one name would return no tuple
    return attrgetter(*names, *names[: len(names) == 1])


_ASKED = {of: _asked(of) for of in _ONE_TOKEN}
_TRANSFERS = frozenset({"kv_transfer_params", "ec_transfer_params"})


def _why_response_alone(body: ResponsesRequest) -> str | None:
    if not body.cuts_nothing:
        return "may be cut"
    # vLLM generates once more after each of its own tools, with the same parameters
    if any(tool.get("type") != "function" for tool in body.tools or ()):
        return "has tools that the engine uses itself"
    return None


def prefill_body(raw: bytes, body: Body, params: bytes, ids: bytes | None = None) -> bytes | None:
    """Return the body of the prefill leg. `raw` is the client's, `body` what it was parsed into,
    `params` the connector's JSON object, `ids` a JSON array of the prompt's token ids. None if
    `raw` is JSON that cannot be edited, or no request in two legs."""
    members = _ONE_TOKEN.get(type(body))
    if members is None:
        return None
    # Kimi K3's renderer writes the format into the prompt: with ids nothing is rendered
    if (ids is not None or isinstance(body, CompletionRequest)) and shape_fields(body):
        names = [name for name in _SHAPES if getattr(body, name, None) is not None]
        members = b",".join([members, *[b'"%b":null' % name.encode() for name in names]])
    return _leg(raw, body, params, ids, members + b",")


_SHAPES = ("response_format", "structured_outputs", "structural_tag", "text",
           "guided_json", "guided_regex", "guided_choice", "guided_grammar",
           "guided_json_object", "guided_whitespace_pattern")  # fmt: skip


def with_bootstrap(raw: bytes, members: bytes) -> bytes | None:
    """Return the body of both legs of SGLang, the client's with these members. None if `raw` is
    JSON that cannot be edited."""
    return with_last_members(raw, members)


def decode_body(raw: bytes, body: Body, reference: bytes, ids: bytes | None = None) -> bytes | None:
    """Return the body of the decode leg, the client's with a reference; the rest is as
    `prefill_body` has it."""
    return _leg(raw, body, reference, ids, b"")


def _leg(raw: bytes, body: Body, params: bytes, ids: bytes | None, members: bytes) -> bytes | None:
    if ids is not None:
        if isinstance(body, CompletionRequest):
            edited = with_prompt(raw, ids)
            if edited is None:
                return None
            raw = edited
        else:
            params = b'%b,"prompt_token_ids":%b}' % (params[:-1], ids)
    return with_last_members(raw, b'%b"kv_transfer_params":%b' % (members, params))


_Name = Annotated[str, Meta(min_length=1, max_length=1024)]
_Host = Annotated[str, Meta(min_length=1, max_length=253)]
_Port = Annotated[int, Meta(ge=1, le=65535)]
_BlockId = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Number = Annotated[int, Meta(ge=1, le=1 << 16)]
_Tokens = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Reference(msgspec.Struct, kw_only=True):
    """What both forms of NIXL have (KC/nixl/pull_scheduler.py and push_scheduler.py)."""

    do_remote_prefill: bool
    do_remote_decode: bool
    remote_engine_id: _Name
    remote_request_id: _Name
    remote_host: _Host
    remote_port: _Port
    dcp_size: _Number | UnsetType = UNSET
    pp_size: _Number | UnsetType = UNSET
    remote_num_tokens: _Tokens | UnsetType = UNSET
    remote_blocks_expiry_time: float | UnsetType | None = UNSET
    transfer_mode: str | UnsetType = UNSET
    remote_prefill_cached_tokens: _Tokens | UnsetType | None = UNSET


class _Pull(_Reference, kw_only=True):
    remote_block_ids: Annotated[list[list[_BlockId]], Meta(min_length=1, max_length=64)]
    tp_size: _Number | UnsetType = UNSET


class _Push(_Reference, kw_only=True):
    tp_size: _Number
    # its own blocks are the prefill engine's matter
    remote_block_ids: list[list[_BlockId]] | UnsetType | None = UNSET


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_ANSWER = msgspec.json.Decoder(_Answer)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCALAR = msgspec.json.Decoder(bool | int | float | None)
_FORMS: dict[KvConnector, tuple[type[_Reference], str, msgspec.json.Decoder[Any]]] = {
    KvConnector.NIXL: (_Pull, "pull", msgspec.json.Decoder(_Pull)),
    KvConnector.NIXL_PUSH: (_Push, "push", msgspec.json.Decoder(_Push)),
}
_MOST_UNKNOWN = 16


def read_reference(
    answer: bytes,
    hosts: Collection[str],
    connector: KvConnector = KvConnector.NIXL,
    *,
    num_tokens: int | None = None,
    block_size: int | None = None,
) -> bytes | None:
    """Return the reference in the answer of a prefill engine, as JSON; None if it has returned no
    parameters. `hosts`: where the engine's side channel may be; `num_tokens`, `block_size`: of the
    prompt and in tokens, as far as they are known. Fields that are not known are sent on if they
    are numbers, truth values or null. Raises BadReferenceError."""
    try:
        given = _ANSWER.decode(answer).kv_transfer_params
    except UNREADABLE as e:
        raise BadReferenceError("the answer is no JSON object") from e
    if bytes(given) == b"null":
        return None
    form, mode, decoder = _FORMS[connector]
    try:
        found: _Reference = decoder.decode(given)
        unknown = _unknown(given, form.__struct_fields__)
    except msgspec.ValidationError as e:
        raise BadReferenceError(f"kv_transfer_params: {e}") from None
    except UNREADABLE as e:
        raise BadReferenceError("kv_transfer_params: cannot be read") from e
    _check(found, mode, hosts)
    _check_extent(found, num_tokens, block_size)
    if isinstance(found, _Push):
        found.remote_block_ids = UNSET
    known = msgspec.json.encode(found)
    return b"%b,%b}" % (known[:-1], b",".join(unknown)) if unknown else known


def _check(found: _Reference, mode: str, hosts: Collection[str]) -> None:
    """Raises BadReferenceError."""
    if not found.do_remote_prefill or found.do_remote_decode:
        raise BadReferenceError(
            "kv_transfer_params: expected do_remote_prefill true and do_remote_decode false"
        )
    if isinstance(found, _Pull) and not any(found.remote_block_ids):
        raise BadReferenceError("kv_transfer_params.remote_block_ids: names no block")
    if found.transfer_mode is not UNSET and found.transfer_mode != mode:
        raise BadReferenceError(f"kv_transfer_params.transfer_mode: expected {mode!r}")
    if not is_among(found.remote_host, hosts):
        raise BadReferenceError("kv_transfer_params.remote_host: is not the engine's own host")


def _check_extent(found: _Reference, num_tokens: int | None, block_size: int | None) -> None:
    """vLLM pulls the last blocks that are named: of more or fewer than the prompt has, it would
    get those of other tokens, or end its core (KC/nixl/base_worker.py, _apply_prefix_caching).
    Models with several kinds of blocks name others. Raises BadReferenceError."""
    told = found.remote_num_tokens
    if num_tokens is not None and told is not UNSET and told != num_tokens:
        raise BadReferenceError(
            "kv_transfer_params.remote_num_tokens: is not the number of the prompt's tokens"
        )
    if num_tokens is None or block_size is None or not isinstance(found, _Pull):
        return
    if len(found.remote_block_ids) > 1 or found.dcp_size not in (UNSET, 1):
        return
    if len(found.remote_block_ids[0]) != -(-num_tokens // block_size):
        raise BadReferenceError(
            "kv_transfer_params.remote_block_ids: are not as many as the prompt has blocks"
        )


def _unknown(given: msgspec.Raw, known: Iterable[str]) -> list[bytes]:
    """The members that are not `known`, as JSON. Raises BadReferenceError."""
    members = _MEMBERS.decode(given)
    names = members.keys() - set(known)
    if len(names) > _MOST_UNKNOWN:
        raise BadReferenceError(f"kv_transfer_params: over {_MOST_UNKNOWN} fields are not known")
    told = []
    for name in sorted(names):
        try:
            value = _SCALAR.decode(members[name])
        except UNREADABLE:
            raise BadReferenceError(
                f"kv_transfer_params.{name[:40]}: is not known, and no number"
            ) from None
        told.append(msgspec.json.encode(name) + b":" + msgspec.json.encode(value))
    return told


def is_among(host: str, hosts: Collection[str]) -> bool:
    """Return whether `host` is one of `hosts`; all names of this machine's loopback are one."""
    if host in hosts:
        return True
    return _is_loopback(host) and any(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_given(params: object) -> None:
    """Check the `kv_transfer_params` of a client who is trusted with them: without one of the
    fields that go with `do_remote_prefill` vLLM's core ends. Raises BadReferenceError."""
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return
    if "transfer_id" in params:  # Mooncake, MoRI-IO: a missing field is a warning there
        return
    form = _Push if params.get("transfer_mode") == "push" else _Pull
    try:
        found: _Reference = msgspec.convert(params, form)
    except msgspec.ValidationError as e:
        raise BadReferenceError(f"kv_transfer_params: {e}") from None
    if isinstance(found, _Pull) and not any(found.remote_block_ids):
        raise BadReferenceError("kv_transfer_params.remote_block_ids: names no block")
