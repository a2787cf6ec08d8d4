"""A simulated engine in a thread of the test's: what `inferway simulate` runs with such flags,
without a process that imports it all and loads the tokenizer again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread

from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.cli.simulate import make_config, simulate
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel


@cache
def _smollm2() -> tuple[Renderer, str]:
    """Loaded once in a process; its key."""
    renderer = Renderer()
    request = GetOrCreateTokenizerKeyRequest(str(prepare_smollm2()))
    return renderer, renderer.get_or_create_tokenizer_key(request)


@contextmanager
def simulated(*flags: str) -> Iterator[SimulatedEngine]:
    """An engine on a free port, of the model that `inferway simulate` has by default. `flags`: of
    that command."""
    words = ["--port", "0", *flags]
    config = make_config(simulate.make_context("simulate", words).params)
    engine = SimulatedEngine(config, RenderedModel(*_smollm2(), config.max_model_len))
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="simulated engine")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(engine.__aenter__(), loop).result()
        try:
            yield engine
        finally:
            asyncio.run_coroutine_threadsafe(engine.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
