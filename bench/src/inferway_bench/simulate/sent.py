"""Chats that are sent over HTTP, as a simulation gets them: the same prompts in the same blocks at
the same times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from inferway.blocks.keys import BlockHasher
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.loading.workload import Conversation, Session
from inferway_bench.policies.requests import SimRequest, Workload


def as_workload(sessions: Sequence[Session], prompts: EnginePrompts, block_tokens: int) -> Workload:
    """All turns of `sessions` at their intended times. Their answers are replaced by what the
    sessions say, so none of an answer's blocks is reused; but they are kept, and displace others.
    """
    hasher = BlockHasher(block_tokens)
    requests, numbers = [], count(1)
    for session in sessions:
        conversation = Conversation()
        for turn, at in zip(session.turns, session.at, strict=True):
            _, body = conversation.ask(turn, {"model": "any"})
            ids = np.array(prompts.token_ids(body), np.uint32)
            blocks, output = tuple(hasher.keys(ids)), int(turn.fields["max_tokens"])
            # the last token of an answer is not computed
            num_answer = (len(ids) + output - 1) // block_tokens - len(blocks)
            requests.append(
                SimRequest(
                    blocks=blocks,
                    prompt_tokens=len(ids),
                    output_tokens=output,
                    session=session.number,
                    start=at,
                    # no key is negative
                    answer_blocks=tuple(-next(numbers) for _ in range(num_answer)),
                )
            )
            conversation.hear(turn, "")
    requests.sort(key=lambda request: request.start)
    return Workload("sent", "chats that were sent over HTTP", block_tokens, requests)
