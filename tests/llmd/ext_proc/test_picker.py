"""Where requests go that nobody here makes a prompt of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llmd.ext_proc.pods import Pods, Stream, rqb, rqh, rsb, rsh
from tests.llmd.ext_proc.test_cases import destination, piece

from inferway.config import ModelRewrite, RewriteTarget
from inferway.errors import InvalidRequestError, UnknownMediaError, UnknownModelError
from inferway.model import Candidates, MediaName, Reason, Tokenized
from inferway.openai_api.requests import PromptBody
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.rewrite import Rewrites
from inferway.scheduling.profile import RowSelector
from inferway_llmd.ext_proc.picker import EndpointPicker

PATH = (":path", "/v1/rerank-of-our-own")
JSON = ("content-type", "application/json")


class OneModelEach(Pods):
    """Each pod serves a model alone: the one of its name."""

    def model(self, name: str) -> ServedModel:
        if all(pod["model"] != name for pod in self.pods.values()):
            raise UnknownModelError(f"model {name!r}: nobody serves it")
        return super().model(name)

    def candidates(self, model: str) -> Candidates:
        mask = np.array([pod["model"] == model for pod in self.pods.values()])
        return RowSelector().kept(self.everyone(), mask)


def stream(**options: Any) -> Stream:
    made = Stream({}, **options)
    pods = {
        "10.0.0.1:8000": {"model": "small", "q": 0},
        "10.0.0.2:8000": {"model": "large", "q": 9},
        "10.0.0.3:8000": {"model": "large", "q": 5},
    }
    made.fleet = OneModelEach(pods)
    made.director.fleet = made.fleet
    made.picker = EndpointPicker(made.director, made.fleet.everyone)
    return made


async def asked(made: Stream, body: bytes, *headers: tuple[str, str], **more: Any) -> Any:
    return await made.send(rqh(PATH, *headers, **more), rqb(body, eos=True))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"model":"large","query":"q"}', "application/json"),
        (
            b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nlarge\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
    ],
)
async def test_they_go_to_the_least_loaded_of_their_model(body: bytes, content_type: str) -> None:
    made = stream()

    answered = await asked(made, body, ("content-type", content_type))

    assert destination(answered[0]) == "10.0.0.3:8000"
    assert piece(answered[1]).body == body
    assert made.fleet.booked == ["10.0.0.3:8000"]
    await made.send(rsh((":status", "200")), rsb(b"{}", eos=True))
    assert made.fleet.booked == []
    assert made.picker.counts.unread == 1


@pytest.mark.parametrize("body", [b'{"query":"q"}', b'{"model":"nobody"}', b"\x00\xff", b"[1]"])
async def test_what_names_no_model_that_is_there_goes_to_the_least_loaded_of_all(
    body: bytes,
) -> None:
    answered = await asked(stream(), body, JSON)

    assert destination(answered[0]) == "10.0.0.1:8000"
    assert piece(answered[1]).body == body


async def test_their_model_is_rewritten_and_put_back() -> None:
    rules = [ModelRewrite(models=["best"], targets=[RewriteTarget(model="large")])]
    made = stream(rewrites=Rewrites(rules))

    answered = await asked(made, b'{"model":"best"}', JSON)
    answer = await made.send(rsh((":status", "200")), rsb(b'{"model":"large"}', eos=True))

    assert destination(answered[0]) == "10.0.0.3:8000"
    assert piece(answered[1]).body == b'{"model":"large"}'
    assert piece(answer[1]).body == b'{"model":"best"}'


class Unnamed(NoPrompts):
    """Knows nothing of a chat but that its first part is a picture, and the name of that."""

    async def tokenize(self, body: PromptBody) -> Tokenized:
        del body
        raise UnknownMediaError("a picture", [MediaName(0, 0, "new")])


class WithPictures(Pods):
    def model(self, name: str) -> ServedModel:
        return ServedModel(name, Unnamed(Reason.NO_TOKENIZER, "none here"), (16,))


async def test_body_with_the_names_of_pictures_is_what_the_engine_gets() -> None:
    made = stream()
    made.fleet = WithPictures({"10.0.0.1:8000": {}})
    made.director.fleet = made.fleet
    body = b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}'

    answered = await made.send(rqh((":path", "/v1/chat/completions"), JSON), rqb(body, eos=True))

    assert piece(answered[1]).body == body.replace(b'{"type"', b'{"uuid":"new","type"')


async def test_they_keep_to_the_addresses_that_the_gateway_allows() -> None:
    meta = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": "10.0.0.2:8000"}}

    answered = await asked(stream(), b'{"model":"large"}', JSON, meta=meta)

    assert destination(answered[0]) == "10.0.0.2:8000"


async def test_a_body_with_two_content_types_is_refused() -> None:
    multipart = ("content-type", "multipart/form-data; boundary=b")

    [reply] = await asked(stream(), b'{"model":"large"}', JSON, multipart)

    assert reply.immediate_response.status.code == InvalidRequestError.status


@pytest.mark.parametrize(
    "body",
    [
        b"{broken",
        b'{"model":"large","stop":"\\ud800","kv_transfer_params":{"remote_host":"evil"}}',
        b'{"model":"large","cache_salt":5,"priority":-1}',
        '{"kv_transfer_params":{"remote_host":"evil"},"model":5}'.encode("utf-16"),
        b'{"kv_transfer_params":{"remote_host":"evil"},"x":%b%b}' % (b"[" * 5000, b"]" * 5000),
    ],
)
async def test_an_object_that_cannot_be_read_goes_nowhere(body: bytes) -> None:
    """An engine may read it: where it does not know a field that we do, or goes deeper."""
    [reply] = await asked(stream(), body, JSON)

    assert reply.immediate_response.status.code == InvalidRequestError.status


async def test_an_object_that_says_it_is_a_form_is_read_as_an_object() -> None:
    body = b'{"model":"large","kv_transfer_params":{"remote_host":"evil"}}'

    [reply] = await asked(stream(), body, ("content-type", "multipart/form-data; boundary=b"))

    assert reply.immediate_response.status.code == InvalidRequestError.status


@pytest.mark.parametrize("model", [b'"model":"large",', b'"model":"unknown",', b""])
@pytest.mark.parametrize("said", [b'"kv_transfer_params":{"remote_host":"evil"}', b'"priority":-1'])
async def test_clients_do_not_say_where_blocks_are_fetched_and_who_is_first(
    model: bytes, said: bytes
) -> None:
    body = b"{%b%b}" % (model, said)

    [reply] = await asked(stream(), body, JSON)

    assert reply.immediate_response.status.code == InvalidRequestError.status
