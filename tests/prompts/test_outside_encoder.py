"""A regex that takes long for some texts keeps neither the event loop nor anybody's lock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prompts.texts import drawn_texts

from inferway.errors import InvalidRequestError, PanicError, RenderError
from inferway.openai_api.requests import ChatRequest, CompletionRequest
from inferway.prompts import (
    GetOrCreateTokenizerKeyRequest,
    ModelPrompts,
    Renderer,
    RenderRequest,
    RenderResult,
)
from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.files.model_processes import MAX_WAITING, OutsideEncoder
from inferway.prompts.files.raw_files import read_raw_files
from inferway.prompts.tokenizer.tokenizer import CHECK_TEXTS, Tokenizer
from inferway_structured.sandbox.process import Limits

MakeModel = Callable[..., Path]

HARMLESS = "[a-z]+ ?[a-z]| ?[^ ]+|."  # but of no form that is known to be
HOSTILE, LONG_FOR_IT = r"\s+$", " " * 200_000 + "x"
PANICKING, PANICS = "(q+)+$", "q" * 40 + "b"
TEXT = "What's that? 12 tokens, or 13: ünïcödé  \n"

TIGHT = Limits(memory_bytes=1 << 30, cpu_seconds=0.3, wall_seconds=60, result_bytes=1 << 20)


def splitting(regex: str) -> dict[str, Any]:
    split = {"pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    flags = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    parts = [{"type": "Split", **split}, {"type": "ByteLevel", **flags}]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def load(renderer: Renderer, directory: Path) -> str:
    return renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(directory)))


@pytest.fixture
def make_encoder(make_model: MakeModel) -> Iterator[Callable[[str], OutsideEncoder]]:
    """With the process there."""
    made: list[OutsideEncoder] = []

    def make(regex: str) -> OutsideEncoder:
        raw = read_raw_files(make_model("gpt-2", splitting(regex)))
        made.append(OutsideEncoder(raw, limits=TIGHT))
        made[-1].wait_until_loaded()
        return made[-1]

    yield make
    for encoder in made:
        encoder.close()


MakeEncoder = Callable[[str], OutsideEncoder]


@pytest.mark.slow
def test_ids_are_those_that_the_tokenizer_gives_here(
    own_renderer: Renderer, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    directory = make_model("gpt-2", splitting(HARMLESS))
    with caplog.at_level(logging.WARNING):
        key = load(own_renderer, directory)
    there = own_renderer.loaded(key).tokenizer
    here = Tokenizer(read_model_files(directory).tokenizer)
    added = ["<|endoftext|>"]
    texts = [*CHECK_TEXTS, *drawn_texts(1, 200, added), " ".join(drawn_texts(2, 3_000, added))]

    for text in texts:
        for special in (True, False):
            ids = there.encode(text, add_special_tokens=special)
            assert np.array_equal(ids, here.encode(text, add_special_tokens=special))
            found = there.encode_with_offsets(text, add_special_tokens=special)
            expected = here.encode_with_offsets(text, add_special_tokens=special)
            assert all(map(np.array_equal, found, expected))
        assert there.decode(ids) == here.decode(ids)
        last = there.encode(text, add_special_tokens=True, keep_last=3)
        assert np.array_equal(last, here.encode(text, add_special_tokens=True, keep_last=3))

    assert (there.is_outside, here.is_outside) == (True, False)
    [said] = [record.message for record in caplog.records if HARMLESS in record.message]
    assert "go by load" in said


@pytest.mark.slow
async def test_all_of_a_models_prompts_are_encoded_there(
    own_renderer: Renderer, make_model: MakeModel
) -> None:
    directory = make_model("gpt-2", splitting(HARMLESS))
    prompts = ModelPrompts(own_renderer, load(own_renderer, directory))
    here = Tokenizer(read_model_files(directory).tokenizer)

    completion = await prompts.tokenize(CompletionRequest(model="m", prompt=[TEXT, "b"]))
    chat = await prompts.render_chat(
        ChatRequest(model="m", messages=[{"role": "user", "content": TEXT}])
    )

    expected = [here.encode(text, add_special_tokens=True).tolist() for text in (TEXT, "b")]
    assert [ids.tolist() for ids in completion.token_ids] == expected
    assert chat.input_ids.tolist() == here.encode(chat.text, add_special_tokens=False).tolist()
    assert own_renderer.num_off_loop == 2  # however short they are
    assert own_renderer.outside_stats.jobs == 3


@pytest.mark.slow
@pytest.mark.parametrize("regex", [HOSTILE, "(z+)+y|.", r"(z+)\1+y|.", "z.*z.*z.*y|."])
def test_a_text_that_takes_too_long_goes_by_load_and_the_next_is_encoded(
    regex: str, make_encoder: MakeEncoder
) -> None:
    encoder = make_encoder(regex)
    expected = encoder.encode("Hi")

    with pytest.raises((RenderError, PanicError)) as e:
        encoder.encode(LONG_FOR_IT if regex == HOSTILE else "z" * 20_000)

    # killed, or ended by the library's own limit for one place of a text
    if isinstance(e.value, RenderError):
        assert e.value.reason == "helper-busy"
        assert "json: the helper process has not encoded the text: took more" in str(e.value)
        assert "zzz" not in str(e.value)
    assert until_it_is_there_again(encoder, "Hi").tolist() == expected.tolist()


def until_it_is_there_again(encoder: OutsideEncoder, text: str) -> np.ndarray[Any, Any]:
    """Meanwhile all go by load."""
    while True:
        with contextlib.suppress(RenderError):
            return encoder.encode(text)
        encoder.wait_until_loaded()


@pytest.mark.slow
def test_a_process_that_dies_costs_one_text(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(HARMLESS)
    expected = encoder.encode(TEXT)
    [process] = encoder.helper._processes
    os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(RenderError, match="ended its process") as e:
        encoder.encode(TEXT)

    assert e.value.reason == "helper-busy"
    assert until_it_is_there_again(encoder, TEXT).tolist() == expected.tolist()
    assert encoder.helper.stats.started == 2


@pytest.mark.slow
def test_while_it_loads_again_nobody_waits(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(HARMLESS)
    [process] = encoder.helper._processes
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RenderError):
        encoder.encode(TEXT)

    with pytest.raises(RenderError, match="it is loading the model again") as e:
        encoder.encode(TEXT)

    assert e.value.reason == "helper-busy"


@pytest.mark.slow
def test_of_many_hostile_texts_at_once_most_are_refused(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(HOSTILE)

    def reason(_: int) -> str:
        with pytest.raises(RenderError) as e:
            encoder.encode(LONG_FOR_IT)
        return e.value.reason

    with ThreadPoolExecutor(16) as threads:
        reasons = list(threads.map(reason, range(16)))

    assert set(reasons) == {"helper-busy"}
    assert encoder.helper.stats.jobs <= 1 + MAX_WAITING


@pytest.mark.slow
def test_a_panic_there_is_a_panic_here(
    own_renderer: Renderer, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = own_renderer.loaded(
        load(own_renderer, make_model("gpt-2", splitting(PANICKING)))
    ).tokenizer

    for _ in range(2):
        with pytest.raises(RenderError, match="has panicked on the text") as e:
            tokenizer.encode(PANICS, add_special_tokens=False)
        assert e.value.reason == "bad-tokenizer"
    with pytest.raises(RenderError, match="has panicked on the text"):
        tokenizer.encode_with_offsets(PANICS, add_special_tokens=False)

    assert len(tokenizer.encode("a text", add_special_tokens=False))
    assert tokenizer.num_panics == 3
    assert len([record for record in caplog.records if "has panicked" in record.message]) == 1
    assert "qqqq" not in caplog.text.replace(PANICKING, "")


class Garbling:
    """A helper whose process says anything."""

    is_ready = True

    def submit(self, function: str, argument: bytes) -> Future[bytes]:
        del function, argument
        answer: Future[bytes] = Future()
        answer.set_result(b"\xff\xff\xff")
        return answer

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_an_answer_that_cannot_be_read_is_the_tokenizers_fault(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(HARMLESS)
    encoder.close()
    encoder.helper = Garbling()  # type: ignore[assignment]

    for ask in (
        lambda: encoder.encode(TEXT),
        lambda: encoder.encode_with_offsets(TEXT, add_special_tokens=True),
        lambda: encoder.decode([1], skip_special_tokens=False),
    ):
        with pytest.raises(RenderError, match="its answer cannot be read") as e:
            ask()
        assert e.value.reason == "bad-tokenizer"


@pytest.mark.slow
async def test_a_lone_surrogate_is_the_clients_fault(
    own_renderer: Renderer, make_model: MakeModel
) -> None:
    key = load(own_renderer, make_model("gpt-2", splitting(HARMLESS)))

    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        await own_renderer.render_async(RenderRequest(key, "\ud800"))


@pytest.mark.slow
async def test_closing_ends_what_waits_for_a_text(make_model: MakeModel) -> None:
    renderer = Renderer()
    key = load(renderer, make_model("gpt-2", splitting(HOSTILE)))
    texts: list[asyncio.Task[RenderResult]] = [
        asyncio.create_task(renderer.render_async(RenderRequest(key, LONG_FOR_IT)))
        for _ in range(3)
    ]
    while renderer.outside_stats.jobs == 0:
        await asyncio.sleep(0)

    await asyncio.to_thread(renderer.close)

    for text in texts:
        with pytest.raises(RenderError, match="the helper is closed") as e:
            await text
        assert e.value.reason == "helper-busy"


@pytest.mark.slow
def test_closing_ends_a_model_that_is_loading(make_model: MakeModel) -> None:
    renderer = Renderer()
    directory = make_model("gpt-2", splitting(HARMLESS))

    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(load, renderer, directory)
        while renderer.outside_stats.started == 0:
            pass
        renderer.close()

        with pytest.raises(RenderError, match="the helper is closed"):
            loading.result()


@pytest.mark.slow
def test_a_model_that_is_replaced_leaves_no_process(
    own_renderer: Renderer, make_model: MakeModel
) -> None:
    directory = make_model("gpt-2", splitting(HARMLESS))
    key = load(own_renderer, directory)
    [encoder] = own_renderer._outside
    [process] = encoder.helper._processes
    del encoder
    file = directory / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | splitting("[0-9]+")))

    load(own_renderer, directory)
    gc.collect()

    assert not own_renderer._outside
    assert process._child.returncode == -signal.SIGKILL
    assert not own_renderer.loaded(key).tokenizer.is_outside
