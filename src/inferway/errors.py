"""Every exception this package raises on purpose.

* InferwayError
  x RequestError            the client's fault; `status` is 4xx, nothing was forwarded
    - InvalidRequestError     400  a field is missing, has the wrong type or cannot hold
    - SpecError               400  the shape asked of the answer is invalid or cannot be kept
    - PromptTooLongError      400  the prompt does not fit the model's context
    - TemplateError           400  the model's chat template refuses this conversation
    - UnauthorizedError       401  the path wants a key, and the request has not got it
    - ForbiddenError          403  the path wants an admin's key, and this is another's
    - UnknownModelError       404  no engine serves this model
    - UnknownPathError        404  no such route
    - MethodNotAllowedError   405
    - BodyTooLargeError       413  the body is over the configured limit
    - SaturatedError          429  the engines are full, and the request may be refused then
      + BodiesFullError       429  the bodies of all requests are over the configured limit
      + QueueFullError        429  they are full, and so is the queue
      + WaitTooLongError      429  its turn would come, or has come, too late for it
    - BadHttpError            400  the bytes are not an HTTP request (or over a limit of ours)
  x FleetError              ours or the engines' fault; `status` is 5xx
    - NoEndpointError         503  no engine can take the request now
    - UpstreamError           502  the engine's connection failed before an answer
      + UpstreamTimeoutError  504  the engine did not answer in time
      + OurFaultError         500  we have lost its answer, by a fault of ours
    - IndexAwayError          503  the shared index does not answer; a request is still forwarded,
                              by load only: only who asks for scores sees this error
    - RenderError             503  we cannot derive the prompt, for reasons of our own; a request
                              is still forwarded, by load only, and counted: only who asks for
                              scores sees this error
    - ChecksBusyError         503  too many shapes asked for wait to be checked
    - CompileError          500  a grammar could not be made, for reasons of our own
  x HeavyError              work that only a helper process may do; never reaches a client
  x ClientGoneError         the client has gone; there is nobody to be told
  x HelperError             the helper process cannot be had; never reaches a client
    - HelperBusyError         too many jobs wait for it, nothing was tried
    - JobKilledError          the job passed a limit, or brought its process down
    - JobFailedError          the job raised
  x JournalError            a file in `state_dir` is not whole; never reaches a client
  x ConfigError             raised at start only, never while serving
  x WireError               an engine sent bytes we cannot read
* PanicError                a library written in Rust has panicked; `panic_as_error` makes it.
                            No InferwayError: like every fault of ours it ends at a boundary

Messages say place, value, what is allowed and the cure: lower case, no full stop, `!r` for
values. They never contain prompt text.
"""

from __future__ import annotations

import traceback


class InferwayError(Exception):
    """The root: `except InferwayError` catches all that is raised on purpose. `retry_after`: in so
    many seconds it may be over, for the header of that name; None: waiting does not help."""

    retry_after: int | None = None


class RequestError(InferwayError):
    """The client's fault. `param` names the field, `code` is OpenAI's machine-readable code."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A field is missing, has the wrong type, or cannot hold."""


class SpecError(RequestError):
    """The shape asked of the answer is invalid, over a limit, or cannot be kept. `place` is a JSON
    pointer into it, `keyword` what stands there; `param` is that place in the whole request."""

    code = "invalid_structure"

    def __init__(
        self,
        message: str,
        *,
        place: str = "",
        keyword: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.place = place
        self.keyword = keyword


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
    """No such route."""

    status = 404
    code = "path_not_found"


class MethodNotAllowedError(RequestError):
    """The route exists, for another method; `allowed` goes into the Allow header."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class BodyTooLargeError(RequestError):
    """The body is over the configured limit."""

    status = 413
    code = "body_too_large"


class SaturatedError(RequestError):
    """The engines are full, and the request is one that may be refused then."""

    status = 429
    type = "rate_limit_error"
    code = "saturated"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BodiesFullError(SaturatedError):
    """The bodies of all requests together are over the configured limit."""

    code = "bodies_full"


class QueueFullError(SaturatedError):
    """Who would have to wait finds no room, or has lost it to somebody else."""

    code = "queue_full"


class WaitTooLongError(SaturatedError):
    """It may not wait for as long as it would have to."""

    code = "wait_too_long"


class BadHttpError(RequestError):
    """The bytes are not an HTTP request, or pass a limit on lines or headers."""

    code = "bad_http"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class FleetError(InferwayError):
    """Ours or the engines' fault. `in_public` stands for a message that may name engines where its
    reader may not know them; None: it names none."""

    status = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None
    in_public: str | None = None


class NoEndpointError(FleetError):
    """No engine can take the request now."""

    status = 503
    code = "no_engine_available"
    retry_after = 1
    in_public = "no engine can take the request now"


class UpstreamError(FleetError):
    """The engine's connection failed before an answer began. `attempts` is how many engines were
    tried for the request in all."""

    status = 502
    code = "engine_unreachable"
    in_public: str | None = "the engine was lost before its answer was whole"
    attempts = 1


class UpstreamTimeoutError(UpstreamError):
    """The engine did not answer in time."""

    status = 504
    code = "engine_timeout"
    in_public = "the engine did not answer in time"


class OurFaultError(UpstreamError):
    """An answer was lost by a fault of ours, not the engine's. The log has the reason."""

    status = 500
    code = "internal_error"
    in_public = None


class IndexAwayError(FleetError):
    """The shared index does not answer, or not in time."""

    status = 503
    code = "index_away"
    retry_after = 1


# of a RenderError: what is over in a moment, whatever anybody does
_PASSING_REASONS = frozenset({"tokenizer-loading", "helper-busy", "remote-late"})


class RenderError(FleetError):
    """We cannot derive the prompt's tokens; `reason` is a short label for a metric."""

    status = 503

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = 1 if reason in _PASSING_REASONS else None
        self.code = reason.replace("-", "_")


class ChecksBusyError(FleetError):
    """Too many shapes wait to be checked. None is let through unchecked: try again."""

    status = 503
    code = "checks_busy"
    retry_after = 1


class CompileError(FleetError):
    """No grammar could be made of a spec, and it is not known to be the client's fault."""

    code = "compile_failed"


class HeavyError(InferwayError):
    """Left to a helper process: here it might take, or has taken, too much."""


class ClientGoneError(InferwayError):
    """The client has gone while its request waited."""


class HelperError(InferwayError):
    """The helper process cannot be had. Who gave it the job says what that means."""


class HelperBusyError(HelperError):
    """Too many jobs wait, or this one waited for too long; nothing was tried."""


class JobKilledError(HelperError):
    """The job's process is dead; `limit` is what it passed: memory, cpu, wall or result, or
    "crash" if it was none of them."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit

    @property
    def lacked_cpu(self) -> bool:
        """The clock ended it and not its CPU time: the machine was busy, and of the job this tells
        nothing."""
        return self.limit == "wall"


class JobFailedError(HelperError):
    """The job raised; the message is the error's type, without its words."""


class JournalError(InferwayError):
    """A file in `state_dir` is not whole. It is not used."""


class ConfigError(InferwayError):
    """A setting that cannot hold. Raised at start only."""


class WireError(InferwayError):
    """An engine sent bytes we cannot read."""


class PanicError(Exception):
    """A library written in Rust has panicked. `words` are the library's: they may quote a text that
    somebody sent, so the message has none of them."""

    def __init__(self, words: str) -> None:
        super().__init__("a library written in Rust has panicked")
        self.words = words


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has given up: pyo3's error for that is no Exception, and has no
    name that could be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def panic_as_error(error: BaseException) -> Exception:
    """For `except BaseException`, the only one that catches a panic: what was raised, a panic as a
    PanicError. An interrupt, a cancellation and the end of the process are raised again."""
    if isinstance(error, Exception):
        return error
    if is_panic(error):
        return PanicError(str(error)[:200]).with_traceback(error.__traceback__)
    raise error


def crash_report(error: BaseException) -> str:
    """An error that is a fault of ours, for the log: its type and where it came from, without
    its words, which may quote a prompt."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
