# SPDX-License-Identifier: Apache-2.0
"""The client of the API server: conflicts, retries, deadlines, pages, and no endless wait."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubernetes.api.credentials import BadCredentials, Credentials, read_kubeconfig
from gpushare.kubernetes.api.server import (
    ApiConflict,
    ApiError,
    ApiExists,
    ApiForbidden,
    ApiNotFound,
    ApiServer,
    ApiUnreachable,
    WatchedObjects,
    path_of,
)
from tests.stack.api_server import Body, Refused, StandInApiServer
from tests.system.waiting import wait_until
from tests.unit.kubernetes.test_credentials import written

pytestmark = pytest.mark.gate

NODES = "/api/v1/nodes"
NODE = f"{NODES}/n"


def node(name: str = "n") -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def test_paths_are_quoted_and_namespaced() -> None:
    assert path_of(NODES, "a/../b") == "/api/v1/nodes/a%2F..%2Fb"
    assert path_of("/api/v1/events", "e", "team-a") == "/api/v1/namespaces/team-a/events/e"
    claims = "/apis/resource.k8s.io/v1/resourceclaims"
    assert path_of(claims, "", "t") == "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims"


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


def test_a_long_list_is_read_in_pages(api: ApiServer, cluster: StandInApiServer) -> None:
    for number in range(1203):
        cluster.objects[f"{NODES}/n{number}"] = {"metadata": {"name": f"n{number}"}}
    found, version = api.all_of(NODES)
    assert len(found) == 1203
    assert version == str(cluster.version)
    assert len(cluster.requests) == 3


def test_tls_accepts_the_authority_of_the_kubeconfig_alone(
    tmp_path: Path, certificate: Path
) -> None:
    with StandInApiServer(certificate, token="secret").running() as server:
        data = base64.b64encode(certificate.read_bytes().partition(b"-----BEGIN PRIV")[0]).decode()
        trusted = {"server": server.url, "certificate-authority-data": data}

        def asked(cluster: dict[str, Any], token: str = "secret", **user: str) -> Any:
            credentials = read_kubeconfig(written(tmp_path, cluster, {"token": token, **user}))
            with contextlib.closing(ApiServer(credentials, patience_seconds=0)) as api:
                return api.get("/version")["gitVersion"]

        assert asked(trusted) == "v1.36.2"
        pair = base64.b64encode(certificate.read_bytes()).decode()
        for key in ({"client-key-data": pair}, {"client-key": str(certificate)}):
            assert asked(trusted, **{"client-certificate-data": pair, **key}) == "v1.36.2"
        with pytest.raises(BadCredentials, match=r"certificates for https.* \(PEM text\)"):
            asked(trusted, **{"client-certificate-data": pair, "client-key-data": data})
        with pytest.raises(ApiForbidden, match="does not accept the token"):
            asked(trusted, "wrong")
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):
            asked({"server": server.url})
        with pytest.raises(ApiUnreachable, match="not valid for 'elsewhere'"):
            asked({**trusted, "tls-server-name": "elsewhere"})


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


def test_only_what_is_needed_of_an_object_is_kept(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(f"{NODES}/listed", {"spec": {"x": 1}})
    watched = WatchedObjects(api, NODES, kept=lambda body: {"metadata": body["metadata"]})
    watched.start()
    wait_until(lambda: cluster.watchers == 1)
    cluster.put(f"{NODES}/watched", {"spec": {"x": 1}})
    wait_until(lambda: names(watched) == {"listed", "watched"})
    watched.close()
    assert [set(one) for one in watched.objects()] == [{"metadata"}] * 2


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
