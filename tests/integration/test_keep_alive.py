"""The client of a stream that waits in the queue, and then at its engine."""

from __future__ import annotations

import asyncio

from tests.integration.recorders import Recorder, in_front_of

from inferway.config import FlowSettings, TimeoutSettings

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
ANSWER = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


async def test_a_stream_that_waits_is_sent_comments_and_then_its_answer() -> None:
    pause = asyncio.Event()
    engine = Recorder(answer=ANSWER, headers={"content-type": "text/event-stream"}, pause=pause)
    timeouts = TimeoutSettings(stream_keep_alive=0.05)
    async with in_front_of(engine, flow=FlowSettings(in_flight=1), timeouts=timeouts) as front:
        url = front.url + "/v1/chat/completions"
        async with (
            front.http.post(url, json=BODY) as at_the_engine,
            front.http.post(url, json=BODY) as in_the_queue,
        ):
            for answer in (at_the_engine, in_the_queue):
                assert answer.status == 200
                assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            assert len(engine.seen) == 1
            pause.set()
            for answer in (at_the_engine, in_the_queue):
                rest = (await answer.read()).replace(b": keep-alive\n\n", b"")
                assert rest == ANSWER
