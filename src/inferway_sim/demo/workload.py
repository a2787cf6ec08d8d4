"""The demo's requests: prompts, and chats of two turns, that all begin with one system prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Long enough to fill a block of 256 tokens (BLOCK_SIZE=256, the seed's default).
SYSTEM_PROMPT = (
    "You are the assistant of a platform team that runs large language models for a whole "
    "company. Answer briefly and precisely, name the assumption you make, and say so when you do "
    "not know. The engines keep the keys and values of every token they have seen in a paged "
    "cache: a prompt is cut into blocks of equal size, each block is known by a hash over its "
    "tokens and over all blocks before it, and a block that is still in the cache is not "
    "computed again. A request is therefore answered soonest by the engine that already holds "
    "the longest part of its beginning, unless that engine has more to do than the others. "
    "Conversations grow at their end only, so each turn begins with all turns before it; a long "
    "system prompt such as this one is shared by every conversation of a team. When somebody "
    "asks why an answer was slow, look first at how much of the prompt was computed again, then "
    "at the queue of the engine, then at the length of the answer. When somebody asks what to "
    "buy, ask how many tokens their prompts share. Never guess a number that a metric could "
    "tell: the gateway counts prompt tokens, tokens believed to be cached, and tokens that the "
    "engines say they took from their caches, for each engine apart. If the second and the third "
    "differ, the gateway's picture of that engine is wrong, and it says so in its log. Keep "
    "these rules in mind, use plain words, and do not repeat the question."
)
PROMPTS: Final = (
    "Hello, how are you today?",
    "What is the weather like?",
    "Can you help me with a programming question?",
    "Tell me about machine learning",
)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A user's message in one of the chats, sent when the chat's turn before was answered."""

    chat: str
    text: str


# Users do not answer in the order in which they began: the second turns come in another one.
TURNS: Final = (
    ChatTurn("A", "Hello! Can you help me understand how KV-cache works?"),
    ChatTurn("B", "What are the benefits of using template rendering?"),
    ChatTurn("C", "Explain the concept of attention mechanisms."),
    ChatTurn("B", "Which of these benefits matters most for a small team?"),
    ChatTurn("A", "And what happens to it when the cache is full?"),
    ChatTurn("C", "Can you give me a practical example?"),
)
