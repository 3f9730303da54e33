# SPDX-License-Identifier: Apache-2.0
"""The client of the API server: conflicts, retries, deadlines, pages, and no endless wait."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gpushare.kubernetes.api.credentials import Credentials
from gpushare.kubernetes.api.server import (
    ApiConflict,
    ApiError,
    ApiExists,
    ApiForbidden,
    ApiNotFound,
    ApiServer,
    ApiUnreachable,
    path_of,
    pauses,
)
from tests.stack.api_server import StandInApiServer
from tests.unit.kubernetes.conftest import Connect

NODES = "/api/v1/nodes"
NODE = f"{NODES}/n"


def node(name: str = "n") -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def test_paths_are_quoted_and_namespaced() -> None:
    assert path_of(NODES, "a/../b") == "/api/v1/nodes/a%2F..%2Fb"
    assert path_of("/api/v1/events", "e", "team-a") == "/api/v1/namespaces/team-a/events/e"
    claims = "/apis/resource.k8s.io/v1/resourceclaims"
    assert path_of(claims, "", "t") == "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims"


def test_an_object_is_created_read_replaced_patched_and_deleted(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    made = api.create(NODES, node())
    api.replace(NODE, {**made, "spec": {"a": 1, "b": 2}})
    api.patch(NODE, {"spec": {"b": None, "c": 3}})
    assert api.get(NODE)["spec"] == {"a": 1, "c": 3}
    api.delete(NODE)
    api.delete(NODE)
    assert not cluster.objects


def test_each_refusal_has_a_class_of_its_own(api: ApiServer, cluster: StandInApiServer) -> None:
    made = api.create(NODES, node())
    with pytest.raises(ApiExists):
        api.create(NODES, node())
    api.replace(NODE, made)
    with pytest.raises(ApiConflict, match="has been modified"):
        api.replace(NODE, made)
    with pytest.raises(ApiConflict):
        api.delete(NODE, uid="of another")
    with pytest.raises(ApiNotFound, match="GET /api/v1/nodes/other: 404"):
        api.get(f"{NODES}/other")
    cluster.fault = lambda *_: 403
    with pytest.raises(ApiForbidden, match="Fix: kubectl apply -f configs/kubernetes/"):
        api.get(NODE)


@pytest.mark.parametrize("failure", [429, 500, 503, "drop"])
def test_a_failure_that_passes_is_retried(
    api: ApiServer, cluster: StandInApiServer, failure: int | str
) -> None:
    failures = [failure, failure]
    cluster.fault = lambda *_: failures.pop() if failures else None
    api.create(NODES, node())
    assert not failures
    assert len(cluster.of(NODES)) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_a_refusal_is_not_retried(api: ApiServer, cluster: StandInApiServer, status: int) -> None:
    cluster.fault = lambda *_: status
    with pytest.raises(ApiError):
        api.get(NODE)
    assert len(cluster.requests) == 1


def test_patience_ends(connect: Connect, cluster: StandInApiServer) -> None:
    cluster.fault = lambda *_: 503
    with pytest.raises(ApiError, match="503"):
        connect(patience_seconds=0.5).get(NODE)
    assert len(cluster.requests) >= 2


def test_a_stop_ends_the_wait_for_a_retry(connect: Connect, cluster: StandInApiServer) -> None:
    api = connect(patience_seconds=600.0)

    def stop(*_: str) -> int:
        api.stop.set()
        return 503

    cluster.fault = stop
    with pytest.raises(ApiError):
        api.get(NODE)
    assert len(cluster.requests) == 1


def test_a_server_that_does_not_answer_is_given_up(
    connect: Connect, cluster: StandInApiServer
) -> None:
    over = threading.Event()
    cluster.fault = lambda *_: over.wait(30) and None
    try:
        with pytest.raises(ApiUnreachable, match=r"no answer within 0.2 s"):
            connect(answer_seconds=0.2, patience_seconds=0).get(NODE)
    finally:
        over.set()


def test_a_server_that_trickles_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def trickle() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    try:
                        link.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            credentials = Credentials(f"http://127.0.0.1:{listener.getsockname()[1]}")
            with pytest.raises(ApiUnreachable, match=r"no answer within 0.4 s"):
                ApiServer(credentials, answer_seconds=0.4, patience_seconds=0).get(NODE)
        finally:
            over.set()
            thread.join()


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    api = ApiServer(Credentials(f"http://127.0.0.1:{port}"), patience_seconds=0)
    with pytest.raises(ApiUnreachable, match=rf"http://127.0.0.1:{port}: Connection refused"):
        api.get(NODE)


def test_a_kept_connection_that_the_server_closed_is_opened_again(
    connect: Connect, cluster: StandInApiServer
) -> None:
    api = connect(patience_seconds=0)
    api.create(NODES, node())
    closes = ["drop"]
    cluster.fault = lambda *_: closes.pop() if closes else None
    assert api.get(NODE)["kind"] == "Node"


def test_a_restarted_server_is_reached_again() -> None:
    again = StandInApiServer()
    with again.running():
        api = ApiServer(Credentials(again.url), patience_seconds=10)
        api.create(NODES, node())
    with again.running():
        assert api.get(NODE)["kind"] == "Node"
    api.close()


def test_an_answer_that_is_no_json_is_not_believed(
    connect: Connect, cluster: StandInApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "answer", lambda *_: ["a", "list"])
    with pytest.raises(ApiUnreachable, match="not a JSON object"):
        connect(patience_seconds=0).get(NODE)


def test_a_long_list_is_read_in_pages(api: ApiServer, cluster: StandInApiServer) -> None:
    for number in range(1203):
        cluster.objects[f"{NODES}/n{number}"] = {"metadata": {"name": f"n{number}"}}
    found, version = api.all_of(NODES)
    assert len(found) == 1203
    assert version == str(cluster.version)
    assert len(cluster.requests) == 3


def test_a_list_that_expires_between_two_pages_begins_again(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    for number in range(600):
        cluster.objects[f"{NODES}/n{number}"] = {"metadata": {"name": f"n{number}"}}
    answers = [None, 410]
    cluster.fault = lambda *_: answers.pop(0) if answers else None
    assert len(api.all_of(NODES)[0]) == 600


def test_the_servers_clock_is_read(api: ApiServer) -> None:
    clock = api.clock()
    assert clock is not None
    assert abs(clock - time.time()) < 60


def test_pauses_grow_up_to_a_limit() -> None:
    waits = pauses()
    found = [next(waits) for _ in range(20)]
    assert found[0] <= 0.2
    assert all(2.5 <= wait <= 5.0 for wait in found[8:])
