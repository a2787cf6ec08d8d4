"""Exceptions of this package, and of the gateway, too. Their tree is in `inferway.errors`."""

from __future__ import annotations

import traceback
from typing import TypeVar


class InferwayError(Exception):
    """The root: `except InferwayError` catches all that is raised on purpose. `retry_after`: in so
    many seconds it may be over, for the header of that name; None: waiting does not help."""

    retry_after: int | None = None


E = TypeVar("E", bound=InferwayError)


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
        self, message: str, *, place: str = "", keyword: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.place = place
        self.keyword = keyword


class QuarantinedError(SpecError):
    """The spec is refused, because compiling it was killed with its process, now or not long ago,
    or because engines were lost with it."""


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


class FleetError(InferwayError):
    """A request failed because of the gateway or the engines, not because of the client.
    `in_public` replaces a message that may name engines where the reader may not know them; None if
    the message names none."""

    status = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None
    in_public: str | None = None


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


class SandboxError(InferwayError):
    """The helper process cannot be had. Who gave it the job says what that means."""


class SandboxBusyError(SandboxError):
    """Too many jobs wait, or this one waited for too long; nothing was tried."""


class JobKilledError(SandboxError):
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


class JobFailedError(SandboxError):
    """The job raised; the message is the error's type, without its words."""


class ConfigError(InferwayError):
    """A setting that cannot hold. Raised at start only."""


class PanicError(Exception):
    """A library written in Rust has panicked. `words` are the library's: they may quote a text that
    somebody sent, so the message has none of them."""

    def __init__(self, words: str) -> None:
        super().__init__("a library written in Rust has panicked")
        self.words = words


def again(error: E) -> E:
    """Return an equal error: each request that gets one raises its own, because a raised error
    grows by where it was raised."""
    if isinstance(error, SpecError):
        return type(error)(str(error), place=error.place, keyword=error.keyword, param=error.param)
    return type(error)(*error.args)


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust has given up: pyo3's error for that is no Exception, and has
    no name that could be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def panic_as_error(error: BaseException) -> Exception:
    """Return what was raised, a panic as a PanicError: for `except BaseException`, the only one
    that catches a panic. An interrupt, a cancellation and the end of the process are raised
    again."""
    if isinstance(error, Exception):
        return error
    if is_panic(error):
        return PanicError(str(error)[:200]).with_traceback(error.__traceback__)
    raise error


def crash_report(error: BaseException) -> str:
    """Return an error that is a fault of ours as the log has it: its type and where it came from,
    without its words, which may quote a prompt."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
