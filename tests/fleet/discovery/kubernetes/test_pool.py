"""An InferencePool's pods, from a small API server that does what a real one was seen to do. What
is asked of `either` is asked of a real one, too (`make kube`, see real.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.discovery.kubernetes.api_server import ApiServerDouble, Object, pod, pool, refused
from tests.fleet.discovery.kubernetes.real import RealApiServer, assets
from tests.fleet.discovery.told import running

from inferway.config import ModelRewrite
from inferway.errors import ConfigError
from inferway.fleet.discovery.kubernetes import PodSelection, PoolPods, SelectedPods
from inferway.fleet.discovery.list_watch import Access, ApiServer, ListWatch, WatchDecoder


class Cluster(ApiServerDouble):
    """One pool, and clients of it."""

    async def __aenter__(self) -> Cluster:
        await super().__aenter__()
        self.clients: list[ApiServer] = []
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients:
            await client.close()
        await super().__aexit__(*error)

    def client(self, slack: float = 15, **access: Any) -> ApiServer:
        self.clients.append(ApiServer(Access(self.url, **access), slack))
        return self.clients[-1]

    def pool_pods(self, **more: Any) -> PoolPods:
        return PoolPods(more.pop("server", None) or self.client(), "ns", "pool", **more)


class Either:
    """A cluster that is either, as far as both do the same."""

    def __init__(self, double: Cluster | None, real: RealApiServer | None) -> None:
        self._double = double
        self._real = real
        self._clients: list[ApiServer] = []

    async def put(self, kind: str, item: Object) -> None:
        if self._double is not None:
            self._double.put(kind, item)
        elif self._real is not None:
            await asyncio.to_thread(self._real.put, kind, item)

    async def delete(self, kind: str, name: str) -> None:
        if self._double is not None:
            self._double.delete(kind, name)
        elif self._real is not None:
            await asyncio.to_thread(self._real.delete, kind, name)

    @property
    def access(self) -> Access:
        if self._double is not None:
            return Access(self._double.url)
        assert self._real is not None
        return Access(self._real.url, self._real.token_file, self._real.ca_file)

    def forget(self) -> None:
        """The past."""
        if self._double is not None:
            self._double.expire()
        elif self._real is not None:
            self._real.forget()

    def client(self) -> ApiServer:
        self._clients.append(ApiServer(self.access))
        return self._clients[-1]

    def pool_pods(self, **more: Any) -> PoolPods:
        return PoolPods(self.client(), "ns", "pool", **more)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture(scope="module")
def real_server() -> Iterator[RealApiServer]:
    server = RealApiServer(assets())
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.kube)])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with AsyncExitStack() as stack:
        if request.param == "double":
            made = Either(await stack.enter_async_context(Cluster()), None)
        else:
            server: RealApiServer = request.getfixturevalue("real_server")
            server.wipe()
            made = Either(None, server)
        stack.push_async_callback(made.close)
        await made.put("inferencepools", pool())
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as made:
        made.put("inferencepools", pool())
        yield made


async def test_ready_pods_of_the_pool_are_its_engines(either: Either) -> None:
    await either.put("pods", pod("a", "10.0.0.1"))
    await either.put("pods", pod("not-ready", "10.0.0.2", ready=False))
    await either.put("pods", pod("no-address-yet", None))
    await either.put("pods", pod("of-another-app", "10.0.0.4", app="redis"))
    source = either.pool_pods()

    async with running(source) as told:
        await told.until("10.0.0.1:8000")

    [engine] = told.lists[-1]
    assert engine.name == "a-rank-0"
    assert engine.labels == {"app": "vllm"}
    assert source.synced


async def test_pods_come_and_go(either: Either) -> None:
    async with running(either.pool_pods()) as told:
        await told.until()
        await either.put("pods", pod("a", "10.0.0.1"))
        await told.until("10.0.0.1:8000")
        await either.put("pods", pod("b", "10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await either.put("pods", pod("a", "10.0.0.1", ready=False))
        await told.until("10.0.0.2:8000")
        await either.put("pods", pod("b", "10.0.0.2", app="other"))  # relabelled out
        await told.until()
        await either.put("pods", pod("b", "10.0.0.2"))  # and in again
        await told.until("10.0.0.2:8000")
        await either.delete("pods", "b")
        await told.until()


async def test_a_pod_that_is_being_deleted_is_gone_at_once(cluster: Cluster) -> None:
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods()) as told:
        await told.until("10.0.0.1:8000")
        going = pod("a", "10.0.0.1")
        going["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        cluster.put("pods", going)
        await told.until()


async def test_every_port_of_a_pod_is_an_engine(either: Either) -> None:
    await either.put("inferencepools", pool("pool", 8000, 8001))
    await either.put("pods", pod("a", "fd00::1"))

    async with running(either.pool_pods()) as told:
        await told.until("[fd00::1]:8000", "[fd00::1]:8001")

    assert [engine.name for engine in told.lists[-1]] == ["a-rank-0", "a-rank-1"]


async def test_a_pool_whose_selector_or_ports_change_has_other_pods(either: Either) -> None:
    await either.put("pods", pod("a", "10.0.0.1"))
    await either.put("pods", pod("b", "10.0.0.2", app="sglang"))
    async with running(either.pool_pods()) as told:
        await told.until("10.0.0.1:8000")
        await either.put("inferencepools", pool("pool", 9000))
        await told.until("10.0.0.1:9000")
        await either.put("inferencepools", pool("pool", 9000, app="sglang"))
        await told.until("10.0.0.2:9000")
        await either.delete("inferencepools", "pool")
        await told.until()


async def test_a_pool_that_is_not_there_yet_is_waited_for(
    either: Either, caplog: pytest.LogCaptureFixture
) -> None:
    await either.delete("inferencepools", "pool")
    await either.put("pods", pod("a", "10.0.0.1"))
    source = either.pool_pods()
    async with running(source) as told:
        await told.until()
        assert source.synced
        assert (
            "the InferencePool ns/pool does not exist yet; the gateway waits for it" in caplog.text
        )
        await either.put("inferencepools", pool())
        await told.until("10.0.0.1:8000")


async def test_lines_may_be_cut_anywhere(cluster: Cluster) -> None:
    cluster.chunk = 7
    async with running(cluster.pool_pods()) as told:
        await told.until()
        for number in range(3):
            cluster.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
        await told.until(*(f"10.0.0.{number}:8000" for number in range(3)))


async def test_a_list_comes_in_pages(cluster: Cluster) -> None:
    cluster.page = 2
    for number in range(5):
        cluster.put("pods", pod(f"p{number}", f"10.0.0.{number}"))

    async with running(cluster.pool_pods()) as told:
        await told.until(*(f"10.0.0.{number}:8000" for number in range(5)))


async def test_a_watch_that_ends_goes_on_from_the_last_version(cluster: Cluster) -> None:
    async with running(cluster.pool_pods()) as told:
        await told.until()
        cluster.put("pods", pod("a", "10.0.0.1"))
        await told.until("10.0.0.1:8000")
        cluster.end_watches()
        cluster.put("pods", pod("b", "10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")

    assert cluster.asked.count("list pods") == 1


async def test_bookmarks_keep_the_version_young(cluster: Cluster) -> None:
    async with running(cluster.pool_pods()) as told:
        await told.until()
        await watched(cluster, "pods")
        cluster.bookmark("pods")
        cluster.expire()  # all before the bookmark
        cluster.bookmark("inferencepools")
        cluster.end_watches()
        cluster.put("pods", pod("a", "10.0.0.1"))
        await told.until("10.0.0.1:8000")

    assert cluster.asked.count("list pods") == 1


async def test_a_version_that_is_too_old_is_listed_anew(cluster: Cluster) -> None:
    async with running(cluster.pool_pods()) as told:
        await told.until()
        await watched(cluster, "pods")
        cluster.silent = True  # a watch that misses something
        cluster.put("pods", pod("a", "10.0.0.1"))
        cluster.put("pods", pod("b", "10.0.0.2"))
        cluster.expire()
        cluster.silent = False
        cluster.end_watches()
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")


async def test_the_past_is_refused_within_the_stream(either: Either) -> None:
    either.forget()
    watch = either.client().watch("/api/v1/namespaces/ns/pods", "", "1", 5)
    said = b"".join([chunk async for chunk in watch])
    [event] = WatchDecoder().feed(said)

    assert (event.type, event.object["code"]) == ("ERROR", 410)


async def test_a_server_whose_versions_are_lower_is_listed_anew(cluster: Cluster) -> None:
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods()) as told:
        await told.until("10.0.0.1:8000")
        await watched(cluster, "pods")
        cluster.restart(5)
        cluster.put("pods", pod("b", "10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")


async def test_a_connection_that_falls_silent_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    """Half a connection: the server has ended the watch, and we have not heard it."""
    listed: list[int] = []
    path = "/api/v1/namespaces/ns/pods"
    server = cluster.client(slack=0.05)
    follower = ListWatch(server, path, lambda pods: listed.append(len(pods)), watch_seconds=0)
    following = asyncio.ensure_future(follower.run())
    await watched(cluster, "pods")
    cluster.silent = True

    cluster.put("pods", pod("a", "10.0.0.1"))

    while listed[-1] != 1:
        await asyncio.sleep(0)
    following.cancel()


async def test_too_many_requests_are_asked_again_when_the_server_says(cluster: Cluster) -> None:
    refusals = [refused(429, "TooManyRequests", details={"retryAfterSeconds": 0})]
    cluster.quirk = lambda request: (
        refusals.pop() if refusals and request.path.endswith("pods") else None
    )
    cluster.put("pods", pod("a", "10.0.0.1"))

    async with running(cluster.pool_pods()) as told:
        await told.until("10.0.0.1:8000")

    assert cluster.asked.count("list pods") == 2


async def test_a_token_that_is_not_taken_any_more_is_read_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    cluster.tokens = {"old"}
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods(server=cluster.client(token_file=token))) as told:
        await told.until("10.0.0.1:8000")
        token.write_text("new\n")
        cluster.tokens = {"new"}
        cluster.put("pods", pod("b", "10.0.0.2"))
        cluster.end_watches()
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")


async def test_what_is_not_allowed_is_said_with_its_cure(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    denied = True
    cluster.quirk = lambda request: (
        refused(403, "pods is forbidden") if denied and request.path.endswith("pods") else None
    )
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods()) as told:
        while "must be allowed to get, list and watch" not in caplog.text:
            await asyncio.sleep(0)
        denied = False
        await told.until("10.0.0.1:8000")


async def test_a_cluster_that_cannot_be_asked_keeps_its_engines(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods()) as told:
        await told.until("10.0.0.1:8000")
        cluster.quirk = lambda _: refused(500, "etcd is away")
        cluster.end_watches()
        while "etcd is away; what is known stays" not in caplog.text:
            await asyncio.sleep(0)
        assert told.urls == ["10.0.0.1:8000"]


async def test_pods_of_a_selector_need_no_pool(either: Either) -> None:
    await either.put("pods", pod("a", "10.0.0.1", tier="gpu"))
    await either.put("pods", pod("b", "10.0.0.2"))
    source = SelectedPods(either.client(), "ns", PodSelection("app=vllm,tier=gpu", [7000]))

    async with running(source) as told:
        await told.until("10.0.0.1:7000")

    assert source.synced


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("tier in (gpu, tpu)", "ab"),
        ("tier notin (gpu,cpu)", "bd"),  # who has none is not in
        ("app=vllm,tier!=gpu", "bcd"),
        ("app==vllm, !tier", "d"),
        ("tier,tier notin (cpu)", "ab"),
    ],
)
async def test_a_selector_may_name_sets(either: Either, selector: str, names: str) -> None:
    for number, (name, tier) in enumerate([("a", "gpu"), ("b", "tpu"), ("c", "cpu"), ("d", "")]):
        labels = {"tier": tier} if tier else {}
        await either.put("pods", pod(name, f"10.0.0.{number}", True, **labels))
    source = SelectedPods(either.client(), "ns", PodSelection(selector, [8000]))

    async with running(source) as told:
        await told.until(*(f"10.0.0.{'abcd'.index(name)}:8000" for name in names))


def objective(name: str, priority: int, of: str = "pool") -> Object:
    return {"metadata": {"name": name}, "spec": {"priority": priority, "poolRef": {"name": of}}}


def rewrite(name: str, *rules: Object, of: str = "pool") -> Object:
    return {"metadata": {"name": name}, "spec": {"rules": list(rules), "poolRef": {"name": of}}}


async def test_objectives_and_rewrites_of_the_pool_are_its_rules(either: Either) -> None:
    came = asyncio.Event()
    rules: list[tuple[dict[str, int], list[ModelRewrite]]] = []

    def told_rules(objectives: dict[str, int], rewrites: list[ModelRewrite]) -> None:
        rules.append((objectives, rewrites))
        if objectives and rewrites:
            came.set()

    await either.put("inferenceobjectives", objective("batch", -1))
    await either.put("inferenceobjectives", objective("of-another-pool", 9, of="other"))
    canary = [{"modelRewrite": "v1", "weight": 9}, {"modelRewrite": "v2", "weight": 1}]
    await either.put(
        "inferencemodelrewrites",
        rewrite(
            "a",
            {"targets": [{"modelRewrite": "any"}]},
            {"matches": [{"model": {"value": "chat"}}], "targets": canary},
        ),
    )
    async with running(either.pool_pods(rules=told_rules)):
        await came.wait()

    objectives, rewrites = rules[-1]
    assert objectives == {"batch": -1}
    assert [(rule.models, [(t.model, t.weight) for t in rule.targets]) for rule in rewrites] == [
        (["chat"], [("v1", 9), ("v2", 1)]),
        ([], [("any", 1)]),
    ]


async def test_kinds_that_are_not_installed_are_no_fault(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("pods", pod("a", "10.0.0.1"))
    async with running(cluster.pool_pods(rules=lambda *_: None)) as told:
        await told.until("10.0.0.1:8000")
        await asked(cluster, "list inferenceobjectives")

    assert "inferenceobjectives" not in caplog.text


def test_outside_of_a_pod_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(ConfigError, match="this is no pod; give --kube-api URL"):
        Access.in_cluster()


async def watched(cluster: Cluster, kind: str) -> None:
    """Until a watch of it is open."""
    await asked(cluster, f"watch {kind}")
    while not any(watched == kind for watched, *_ in cluster._watches):
        await asyncio.sleep(0)


async def asked(cluster: Cluster, what: str) -> None:
    while what not in cluster.asked:
        await asyncio.sleep(0)
