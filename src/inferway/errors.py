"""Every exception this package raises on purpose.

* InferwayError
  x RequestError            the client's fault; `status` is 4xx, nothing was forwarded
    - InvalidRequestError     400  a field is missing, has the wrong type or cannot hold
    - SpecError               400  the shape asked of the answer is invalid or cannot be kept
      + QuarantinedError      400  compiling it has killed a process, or engines
    - PromptTooLongError      400  the prompt does not fit the model's context
    - TemplateError           400  the model's chat template refuses this conversation
    - UnauthorizedError       401  the path wants a key, and the request has not got it
    - ForbiddenError          403  the path wants an admin's key, and this is another's
    - UnknownModelError       404  no engine serves this model
    - UnknownPathError        404  no such route
    - MethodNotAllowedError   405
    - ConflictError           409  not now: something that is so, or under way, forbids it
    - QuarantinedRequestError 400  engines were lost while they had an equal request
    - BodyTooLargeError       413  the body is over the configured limit
    - SaturatedError          429  the engines are full, and the request may be refused then
      + BodiesFullError       429  the bodies of all requests are over the configured limit
      + QueueFullError        429  they are full, and so is the queue
      + WaitTooLongError      429  its turn would come, or has come, too late for it
      + TooManyGuessesError   429  too many wrong keys have come from there
    - UnsupportedCodingError  415  the body is compressed in a way that is not known here
    - BadHttpError            400  the bytes are not an HTTP request (or over a limit of ours)
  x FleetError              ours or the engines' fault; `status` is 5xx
    - NoEndpointError         503  no engine can take the request now
      + EnginesSuspendedError 503  all that could sleep, are paused or scale
      + HeldTooLongError      503  and did so for as long as the request could wait
    - ShuttingDownError       503  the gateway ends, and running answers have had their time
    - UpstreamError           502  the engine's connection failed before an answer
      + UpstreamTimeoutError  504  the engine did not answer in time
      + EngineLostError       502  the engine closed the connection, and had the request
      + EnginesLostError      502  so did a second engine, and the request is tried no more
      + SilentEngineError     504  the engine says nothing any more, and no other one answers
      + OurFaultError         500  we have lost its answer, by a fault of ours
      + MovedError            502  its engine is drained, and another one goes on with the answer
    - RenderError             503  we cannot derive the prompt, for reasons of our own; a request
                              is still forwarded, by load only, and counted: only who asks for
                              scores sees this error
    - ChecksBusyError         503  too many shapes asked for wait to be checked
    - CompileError          500  a grammar could not be made, for reasons of our own
  x HeavyError              work that only a helper process may do; never reaches a client
  x ClientGoneError         the client has gone; there is nobody to be told
  x SandboxError            the helper process cannot be had; never reaches a client
    - SandboxBusyError        too many jobs wait for it, nothing was tried
    - JobKilledError          the job passed a limit, or brought its process down
    - JobFailedError          the job raised
  x SnapshotError           a file in `state_dir` is not whole; never reaches a client
  x SeamError               an engine goes on with other text than the client has; the client
                            hears of the engine that was lost before
  x PeerMessageError        another gateway has told what cannot be; never reaches a client
  x ConfigError             raised at start only, never while serving
  x WireError               an engine sent bytes we cannot read
    - BadReferenceError       parameters of a transfer that no engine may get
* PanicError                a library written in Rust has panicked; `panic_as_error` makes it.
                            No InferwayError: like every fault of ours it ends at a boundary

Messages say place, value, what is allowed and the fix: lower case, no full stop, `!r` for
values. They never contain prompt text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferway_structured.errors import (
    BodyTooLargeError as BodyTooLargeError,
)
from inferway_structured.errors import (
    ChecksBusyError as ChecksBusyError,
)
from inferway_structured.errors import (
    CompileError as CompileError,
)
from inferway_structured.errors import (
    ConfigError as ConfigError,
)
from inferway_structured.errors import (
    FleetError as FleetError,
)
from inferway_structured.errors import (
    HeavyError as HeavyError,
)
from inferway_structured.errors import (
    InferwayError as InferwayError,
)
from inferway_structured.errors import (
    InvalidRequestError as InvalidRequestError,
)
from inferway_structured.errors import (
    JobFailedError as JobFailedError,
)
from inferway_structured.errors import (
    JobKilledError as JobKilledError,
)
from inferway_structured.errors import (
    PanicError as PanicError,
)
from inferway_structured.errors import (
    QuarantinedError as QuarantinedError,
)
from inferway_structured.errors import (
    RequestError as RequestError,
)
from inferway_structured.errors import (
    SandboxBusyError as SandboxBusyError,
)
from inferway_structured.errors import (
    SandboxError as SandboxError,
)
from inferway_structured.errors import (
    SaturatedError as SaturatedError,
)
from inferway_structured.errors import (
    SpecError as SpecError,
)
from inferway_structured.errors import (
    crash_report as crash_report,
)
from inferway_structured.errors import (
    is_panic as is_panic,
)
from inferway_structured.errors import (
    panic_as_error as panic_as_error,
)


class PromptTooLongError(RequestError):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"


class TemplateError(RequestError):
    """The model's own chat template refuses this conversation."""

    code = "chat_template_error"


class UnauthorizedError(RequestError):
    """The path wants a key. Nothing of what was sent instead is in the message."""

    status = 401
    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """The key is known, and is not one for this path."""

    status = 403
    code = "permission_denied"


class UnknownModelError(RequestError):
    """No engine serves this model."""

    status = 404
    code = "model_not_found"


class UnknownPathError(RequestError):
    """There is no such route."""

    status = 404
    code = "path_not_found"


class MethodNotAllowedError(RequestError):
    """The route exists, for another method; `allowed` goes into the Allow header."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class ConflictError(RequestError):
    """A request that cannot be done now; the message says what would have to be otherwise."""

    status = 409
    code = "conflict"


class QuarantinedRequestError(RequestError):
    """Engines were lost while they had an equal request."""

    code = "request_quarantined"


class BodiesFullError(SaturatedError):
    """The bodies of all requests together are over the configured limit."""

    code = "bodies_full"


class QueueFullError(SaturatedError):
    """The queue has no room for the request, or has given its room to another one."""

    code = "queue_full"


class WaitTooLongError(SaturatedError):
    """The request would have to wait longer than it may."""

    code = "wait_too_long"


class TooManyGuessesError(SaturatedError):
    """Too many wrong keys have come from there, or in all."""

    code = "too_many_guesses"


class UnsupportedCodingError(RequestError):
    """The body's Content-Encoding is not one that is known here."""

    status = 415
    code = "unsupported_content_encoding"


class BadHttpError(RequestError):
    """The bytes are not an HTTP request, or pass a limit on lines or headers."""

    code = "bad_http"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class NoEndpointError(FleetError):
    """No engine can take the request now."""

    status = 503
    code = "no_engine_available"
    retry_after = 1
    in_public = "no engine can take the request now"


class EnginesSuspendedError(NoEndpointError):
    """The engines of `model` that could take the request sleep, are paused or scale."""

    code = "engines_suspended"
    retry_after = 5
    in_public = "the engines of the model sleep or are paused; ask again later"

    def __init__(self, message: str, *, model: str) -> None:
        super().__init__(message)
        self.model = model


class HeldTooLongError(NoEndpointError):
    """The engines were suspended for as long as the request could wait."""

    code = EnginesSuspendedError.code
    retry_after = EnginesSuspendedError.retry_after
    in_public = EnginesSuspendedError.in_public


class ShuttingDownError(FleetError):
    """The gateway ends, and the time that running answers have is over."""

    status = 503
    code = "shutting_down"
    retry_after = 1


class HubAwayError(FleetError):
    """The process that answers the path has ended; those that answer requests go on."""

    status = 503
    code = "hub_away"
    retry_after = 1
    in_public = "this path cannot be answered now"


class UpstreamError(FleetError):
    """The engine's connection failed before an answer began. `attempts` is how many engines were
    tried for the request in all."""

    status = 502
    code = "engine_unreachable"
    in_public: str | None = "the engine was lost before its answer was whole"
    attempts = 1


class EngineLostError(UpstreamError):
    """The engine closed the connection on which it had read the request."""


class EnginesLostError(UpstreamError):
    """A second engine was lost while it had the request, which may be the cause."""

    code = "engines_lost"
    in_public = "two engines were lost while they had this request; it is tried no more"


class UpstreamTimeoutError(UpstreamError):
    """The engine did not answer in time."""

    status = 504
    code = "engine_timeout"
    in_public = "the engine did not answer in time"


class SilentEngineError(UpstreamTimeoutError):
    """`engine` says nothing any more, although its connections stand."""

    def __init__(self, engine: str, message: str) -> None:
        super().__init__(message)
        self.engine = engine


class OurFaultError(UpstreamError):
    """An answer was lost by a fault of ours, not the engine's. The log has the reason."""

    status = 500
    code = "internal_error"
    in_public = None


# of a RenderError: faults that are over in a moment by themselves
_PASSING_REASONS = frozenset({"tokenizer-loading", "helper-busy", "remote-late"})


class RenderError(FleetError):
    """We cannot derive the prompt's tokens; `reason` is a short label for a metric."""

    status = 503

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = 1 if reason in _PASSING_REASONS else None
        self.code = reason.replace("-", "_")


class UnknownMediaError(RenderError):
    """Nothing is known of a prompt before its first part that is not text; `names` are those that
    its media get all the same (model.MediaName)."""

    def __init__(self, message: str, names: Sequence[Any] = ()) -> None:
        super().__init__(message, reason="media")
        self.names = names


class ClientGoneError(InferwayError):
    """The client has gone while its request waited."""


class SnapshotError(InferwayError):
    """A file in `state_dir` is not whole. It is not used."""


class PeerMessageError(InferwayError):
    """Another gateway has sent what cannot be read or be true; `reason` is a label of a metric."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class WireError(InferwayError):
    """An engine sent bytes we cannot read."""


class SeamError(InferwayError):
    """The engine that goes on with a stream does not say again what its client was sent last."""


class MovedError(UpstreamError):
    """The engine is drained, and its answer is to be gone on with elsewhere."""


class BadReferenceError(WireError):
    """`kv_transfer_params` that no engine may get. The message names a field, and holds no
    values."""
