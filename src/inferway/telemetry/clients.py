"""A user agent -> the family of clients that it is of: a word of a fixed list, nothing of the
client's own."""

from __future__ import annotations

import re
from functools import lru_cache

from inferway.model import Headers

OTHER = "other"

# What a user agent holds, in lower case, and the family. The first of them in the text counts: an
# agent names itself before the libraries that it is built on.
_FAMILIES = {
    **{b"claude-cli": "claude-code", b"claude-code": "claude-code", b"codex": "codex"},
    **{b"opencode": "opencode", b"cline": "cline", b"roo-code": "roo-code"},
    **{b"roocode": "roo-code", b"kilo-code": "kilo-code", b"githubcopilot": "copilot"},
    **{b"cursor": "cursor", b"continue": "continue", b"aider": "aider", b"litellm": "litellm"},
    **{b"langchain": "langchain", b"llamaindex": "llamaindex", b"ai-sdk": "ai-sdk"},
    **{b"anthropic": "anthropic-sdk", b"asyncanthropic": "anthropic-sdk"},
    **{b"openai": "openai-sdk", b"asyncopenai": "openai-sdk", b"python-requests": "requests"},
    **{b"python-httpx": "httpx", b"aiohttp": "aiohttp", b"curl": "curl"},
    **{b"go-http-client": "go", b"okhttp": "java", b"java/": "java", b"axios": "node"},
    **{b"undici": "node", b"node": "node", b"mozilla": "browser"},
}
_MARKS = re.compile(b"|".join(map(re.escape, _FAMILIES)))
AGENT_BYTES = 200  # of a user agent that are looked at
_USER_AGENT = b"user-agent"


@lru_cache(maxsize=256)
def family(agent: bytes) -> str:
    """Return the client's family by its user agent, of which AGENT_BYTES are enough; `other` if it
    is of none that we know."""
    found = _MARKS.search(agent[:AGENT_BYTES].lower())
    return OTHER if found is None else _FAMILIES[found[0]]


def user_agent(headers: Headers) -> bytes:
    """Return the client that has sent these headers, in its own words; empty if it does not say."""
    for name, value in headers:
        if name == _USER_AGENT:
            return value
    return b""
