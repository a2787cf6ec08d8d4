"""The router for Ray's own LLM deployments (`ray[llm]`), which stay as they are:

    LLMConfig(..., deployment_config={"request_router_config": llm_router_config(MODEL)})

Ray lets vLLM publish KV events, gives each replica a port for them and announces it in the routing
stats where the deployment's router is its KVAwareRouter, or one that derives from it as this one
does. Nothing else of it is used: neither `ai-dynamo` nor its rules for hashes are needed.
"""

from __future__ import annotations

from typing import Any

from ray.serve.config import RequestRouterConfig
from ray.serve.llm.request_router import KVAwareRouter

from inferway_ray.router import InferwayRouter, router_config

ROUTER = "inferway_ray.llm:InferwayLLMRouter"


class InferwayLLMRouter(InferwayRouter, KVAwareRouter):  # type: ignore[misc]
    """All that chooses is InferwayRouter's."""


def llm_router_config(model: str, root: str | None = None, **settings: Any) -> RequestRouterConfig:
    """Return the `request_router_config` of an LLMConfig. `model` is its model_id, `root` its
    model_source where that is another; the rest as `router_config` has it. Raises ConfigError."""
    held = {"id": model} if root is None else {"id": model, "root": root}
    return router_config(ROUTER, model=held, **settings)
