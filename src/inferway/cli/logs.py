"""The log of commands, as text or as JSON, on standard error; the access log has its own place."""

from __future__ import annotations

import logging
import os
import sys
import threading
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import click

from inferway.errors import ConfigError
from inferway.telemetry.log_lines import FORMATTERS, JsonFormatter, LogFormat

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_log = logging.getLogger("inferway")


def set_up(level: str, access_log: str | None = None, log_format: LogFormat = "text") -> None:
    """Give everything that is written to standard error from now on this form: log records,
    Python's warnings, and uncaught exceptions. `access_log` is a file, "-" for standard error, or
    None for no access log. Raises ConfigError."""
    everything = logging.StreamHandler(sys.stderr)
    everything.setFormatter(FORMATTERS[log_format]())
    logging.basicConfig(level=level.upper(), handlers=[everything], force=True)
    for name in ("httpx", "PIL"):  # Pillow writes a line for each part of a picture
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _uncaught_in_thread
    logger = logging.getLogger("inferway.access")
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    if access_log is None:
        return
    handler = _file(access_log) if access_log != "-" else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))  # whole lines, as access_log makes them
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def set_up_early(log_format: object) -> None:
    """Before the settings are read: if a flag, or the environment, asks for JSON, what is wrong
    with the settings is said in it, too."""
    if log_format == "json":
        set_up("info", log_format="json")


def refuse(command: str, error: Exception) -> NoReturn:
    """`inferway COMMAND` cannot start: exit status 2."""
    words = f"inferway {command}: {error}"
    if any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers):
        _log.error("%s", words)
    else:
        click.echo(words, err=True)
    sys.exit(2)


def refuse_words(error: click.ClickException) -> NoReturn:
    """The command line cannot be understood, and asks for JSON."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and error.message == context.get_help():  # no arguments at all
        error.show()
        sys.exit(error.exit_code)
    set_up("info", log_format="json")
    place = "inferway" if context is None else context.command_path
    _log.error("%s: %s", place, error.format_message())
    sys.exit(error.exit_code)


class _AccessLogFile(WatchedFileHandler):
    """Opened anew when logrotate has moved it away. It has clients' addresses, so that a file that
    is made here is the user's own."""

    def _open(self) -> TextIOWrapper:
        opened = open(  # noqa: SIM115 - the handler closes it
            *(self.baseFilename, self.mode),
            encoding=self.encoding,
            errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )
        assert isinstance(opened, TextIOWrapper)
        return opened


def _file(path: str) -> logging.Handler:
    try:
        return _AccessLogFile(path)
    except OSError as e:
        raise ConfigError(f"access log {path!r} cannot be written: {e.strerror}") from e


def _uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    _log.critical(
        "the program ends: nothing has caught this exception", exc_info=(kind, error, traceback)
    )


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "that is unknown"
    _log.error(
        "the thread %s ends: nothing has caught this exception",
        name,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _unraisable(args: UnraisableHookArgs) -> None:
    if args.exc_value is None:
        return
    _log.error(
        "an exception in %r cannot be raised to anybody",
        args.object,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
