"""What all tests share."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Generator, Iterator
from random import Random, SystemRandom
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from tests import leftovers
from tests.leftovers import There

# CI machines are slow and shared: a property is judged by what it finds, not by its seconds.
# There the examples are always the same, for what lands must not hang on a draw.
settings.register_profile(
    "inferway",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("inferway")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="run files, and the tests of each, in the order that SEED draws; without it, in any",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist's processes must have one order."""
    node.workerinput["shuffle"] = node.config.getoption("shuffle")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle")
    return None if seed is None else f"shuffled: --shuffle={seed} has this order again"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file's tests stay together, for they may share what takes long to start."""
    seed = config.getoption("shuffle")
    if seed is None:
        return
    draw = Random(seed)
    files = {item.path: draw.random() for item in items}
    items.sort(key=lambda item: (files[item.path], draw.random()))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A child gets the signals that its test sends: what a shell has us ignore, in its background
    or for nohup, our children would ignore as well. What we have a handler for, they begin
    without one."""
    if config.getoption("shuffle") == -1:
        told = getattr(config, "workerinput", {})
        config.option.shuffle = told.get("shuffle", SystemRandom().randrange(1_000_000))
    if threading.current_thread() is not threading.main_thread():
        return
    for number in leftovers.SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    config.pluginmanager.register(Leftovers(), "leftovers")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its whole process. The tests that come
    after it in that process must not see its level and its handlers."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Nor its signal handlers, which it never gives back."""
    handlers = leftovers.handlers()
    yield
    leftovers.restore(handlers)


class Leftovers:
    """Fails the test that leaves something behind. What a fixture of several tests has opened, now
    or when one of them needs it, may stay until that fixture ends."""

    def __init__(self) -> None:
        self._before: There | None = None  # None: something else than a test has changed it
        self._shared: set[str] = set()  # fixtures of several tests that are there
        self._has_ended = False  # one of them
        uvloop.new_event_loop().close()  # the first one opens a pipe for all

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        del request
        if fixturedef.scope != "function":
            self._before = None
            if fixturedef.baseid:  # else it is pytest's or a plugin's
                self._shared.add(fixturedef.argname)
        return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef.scope != "function" and fixturedef.cached_result is not None:
            self._before, self._has_ended = None, True
            self._shared.discard(fixturedef.argname)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        del item
        if (
            call.excinfo is not None and call.when != "teardown"
        ):  # its traceback keeps what the test had
            self._before = None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException:
            self._before = None
            raise
        if isinstance(item, pytest.Function):
            item.funcargs.clear()
        left = leftovers.collect(self._has_ended)
        self._has_ended = False
        before = self._before
        uses = self._shared.intersection(getattr(item, "fixturenames", ()))
        if before is not None and not uses and There.now() != before:
            left += leftovers.beside(before)
        self._before = There.now()
        if left:
            pytest.fail("the test left behind:\n" + "\n".join(left), pytrace=False)
        return result
