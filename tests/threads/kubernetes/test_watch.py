# SPDX-License-Identifier: Apache-2.0
"""A watched copy follows the server through restarts, lost connections, 410 and bookmarks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.errors import UserError
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.watch import WatchedObjects
from tests.stack.api_server import Body, Refused, StandInApiServer
from tests.system.waiting import wait_until

NODES = "/api/v1/nodes"


def names(watched: WatchedObjects) -> set[str]:
    return {one["metadata"]["name"] for one in watched.objects()}


@pytest.fixture
def watched(api: ApiServer, cluster: StandInApiServer) -> Iterator[WatchedObjects]:
    cluster.put(f"{NODES}/a", {})
    made = WatchedObjects(api, NODES)
    made.start()
    wait_until(lambda: cluster.watchers == 1)
    yield made
    made.close()
    assert not made._thread.is_alive()


def test_what_is_there_and_what_comes_changes_and_goes(
    watched: WatchedObjects, cluster: StandInApiServer
) -> None:
    assert names(watched) == {"a"}
    cluster.put(f"{NODES}/b", {"spec": {"x": 1}})
    wait_until(lambda: names(watched) == {"a", "b"})
    cluster.put(f"{NODES}/b", {"spec": {"x": 2}})
    wait_until(lambda: {"x": 2} in [one.get("spec") for one in watched.objects()])
    cluster.remove(f"{NODES}/a")
    wait_until(lambda: names(watched) == {"b"})


def test_a_watch_that_ends_goes_on_where_it_was(
    watched: WatchedObjects, cluster: StandInApiServer
) -> None:
    cluster.end_watches()
    cluster.put(f"{NODES}/b", {})
    wait_until(lambda: names(watched) == {"a", "b"})
    assert sum("watch=1" not in request for request in cluster.requests) == 1, "no second list"


@pytest.mark.parametrize("in_stream", [True, False])
def test_after_410_the_list_is_read_again(
    watched: WatchedObjects, cluster: StandInApiServer, in_stream: bool
) -> None:
    with cluster._lock:  # the watch is away while these happen
        cluster.objects.pop(f"{NODES}/a")
        cluster.version += 50
        cluster.compact()
        cluster.end_watches(expired=in_stream)
    cluster.put(f"{NODES}/c", {})
    wait_until(lambda: names(watched) == {"c"})


def test_a_bookmark_moves_a_quiet_watch_on(api: ApiServer, cluster: StandInApiServer) -> None:
    cluster.bookmark_seconds = 0.1
    watched = WatchedObjects(api, NODES)
    watched.start()
    wait_until(lambda: cluster.watchers == 1)
    cluster.put("/api/v1/pods/p", {})  # moves the version, and is not ours
    before, version = cluster.bookmarks, cluster.version
    wait_until(lambda: cluster.bookmarks > before + 1)
    cluster.end_watches()
    wait_until(lambda: any(f"resourceVersion={version}&" in one for one in cluster.requests))
    watched.close()


def test_failures_are_survived_and_told_once(
    api: ApiServer, cluster: StandInApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    failures: list[int | str] = [403, 403, 500, "drop", 403]
    cluster.fault = lambda *_: failures.pop() if failures else None
    watched = WatchedObjects(api, NODES)
    watched.start()
    cluster.put(f"{NODES}/a", {})
    wait_until(lambda: names(watched) == {"a"})
    wait_until(lambda: not watched.fault)
    watched.close()
    assert capsys.readouterr().err.count("403") == 1


def test_only_what_the_query_selects_is_copied(api: ApiServer, cluster: StandInApiServer) -> None:
    cluster.put(f"{NODES}/a", {"spec": {"pool": "x"}})
    cluster.put(f"{NODES}/b", {"spec": {"pool": "y"}})
    watched = WatchedObjects(api, NODES, {"fieldSelector": "spec.pool=x"})
    watched.start()
    wait_until(lambda: cluster.watchers == 1)
    cluster.put(f"{NODES}/c", {"spec": {"pool": "y"}})
    cluster.put(f"{NODES}/d", {"spec": {"pool": "x"}})
    wait_until(lambda: names(watched) == {"a", "d"})
    watched.close()


def test_what_a_listener_could_not_do_is_tried_again(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    calls: list[int] = []

    def changed() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            raise UserError("gpushared is away")

    watched = WatchedObjects(api, NODES, changed=changed)
    watched.start()
    wait_until(lambda: len(calls) >= 3 and cluster.watchers == 1)
    watched.close()


def test_a_close_ends_a_watch_that_nothing_happens_on(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    watched = WatchedObjects(api, NODES)
    watched.start()
    wait_until(lambda: cluster.watchers == 1)
    watched.close()
    assert not watched._thread.is_alive()
    wait_until(lambda: cluster.watchers == 0)


def test_an_error_of_a_listener_does_not_end_the_watch(
    api: ApiServer, cluster: StandInApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def changed() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("spec")

    watched = WatchedObjects(api, NODES, changed=changed)
    watched.start()
    wait_until(lambda: len(calls) == 2 and cluster.watchers == 1)
    watched.close()
    assert "internal error" in capsys.readouterr().err


@pytest.mark.parametrize("failure", ["expired", "empty"])
def test_a_server_that_ends_every_watch_at_once_is_not_flooded(
    api: ApiServer, cluster: StandInApiServer, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def ended(_path: str, _query: dict[str, str]) -> Iterator[Body | None]:
        if failure == "expired":
            raise Refused(410, "Expired")
        yield None

    monkeypatch.setattr(cluster, "watch", ended)
    waited: list[float] = []
    watched = WatchedObjects(api, NODES)
    monkeypatch.setattr(watched._closed, "wait", waited.append)
    watched.start()
    wait_until(lambda: len(waited) >= 8)
    watched._closed.set()
    wait_until(lambda: not watched._thread.is_alive())
    assert waited[7] > 2 * waited[0] > 0.1
