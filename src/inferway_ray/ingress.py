"""An ingress deployment that hands OpenAI requests to engines, bytes as they came.

Behind Ray's proxy the router of the *ingress* sees an opaque request; that of a handle sees what
the ingress hands on. So requests go proxy -> ingress -> engine, and the second hop is chosen.
"""

from typing import Any

from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from inferway.openai_api.kinds import PARSERS
from inferway_ray.observed import AnswerHead


def path_of(request: Request) -> str:
    """Return the path behind the application's route prefix."""
    prefix: str = request.scope.get("root_path", "")
    path: str = request.scope["path"]
    return path.removeprefix(prefix.rstrip("/"))


class OpenAiIngress:
    """A deployment's class; `engines` is the bound deployment of EngineProgram."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self._engines: Any = engines.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        path = path_of(request)
        if request.method != "POST" or path not in PARSERS:
            known = ", ".join(PARSERS)
            message = f"{request.method} {path[:200]}: no such path; known: POST {known}"
            error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
            return JSONResponse({"error": error}, 404)
        headers = [(name, value) for name, value in request.scope["headers"]]
        pieces = self._engines.answer.remote(path, headers, await request.body())
        head = await anext(pieces)
        if not isinstance(head, AnswerHead):
            raise TypeError(f"{type(head).__name__} came before the head of an answer")
        response = StreamingResponse(pieces, head.status)
        response.raw_headers = list(head.headers)
        return response
