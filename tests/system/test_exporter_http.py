# SPDX-License-Identifier: Apache-2.0
"""Requests of unknown clients: each is answered or ended, and others do not wait."""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import http_server as served
from gpushare.exporter import metric_family
from gpushare.exporter.__main__ import ExporterServer
from gpushare.exporter.metric_family import Snapshot, SnapshotSource
from gpushare.http_server import (
    BadHttpRequest,
    HttpRequest,
    HttpServer,
    Respond,
    Response,
    SlowWork,
    Work,
    parse_request,
)

pytestmark = pytest.mark.gate

TOKEN = "0123456789abcdef"
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
Address = tuple[str, int]


@contextlib.contextmanager
def serving(respond: Respond) -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = HttpServer(listener, respond)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.stop()
            thread.join()


@pytest.fixture
def site(tmp_path: Path) -> ExporterServer:
    return ExporterServer(
        SnapshotSource(tmp_path / "control.sock", "node-1"), None, open_to_all=True
    )


@pytest.fixture
def address(site: ExporterServer) -> Iterator[Address]:
    with serving(site.answer) as found:
        yield found


def ask(address: Address, sent: bytes) -> bytes:
    """Return all that comes back."""
    with socket.create_connection(address, timeout=30) as link:
        with contextlib.suppress(ConnectionError):
            link.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionError):
            while more := link.recv(65536):
                received += more
        return received


def status(address: Address, sent: bytes) -> int:
    answer = ask(address, sent)
    assert answer.startswith(b"HTTP/1.1 ")
    return int(answer.split()[1])


def call(address: Address, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_metrics_are_at_their_path_alone(address: Address) -> None:
    answer = call(address, "GET", "/metrics")
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'gpushare_up{node="node-1"} 0.0' in answer.read()
    assert call(address, "GET", "/metrics?name[]=x").status == 200
    assert call(address, "GET", "/").status == 200
    for path in ("/metrics/", "//metrics", "/../metrics", "/favicon.ico", "/etc/passwd"):
        assert call(address, "GET", path).status == 404


def test_rows_are_at_a_path_of_their_own(address: Address) -> None:
    answer = call(address, "GET", "/rows")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert json.loads(answer.read()) == {"cards": [], "tenants": [], "daemon": None}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_nothing_but_reading_is_allowed(address: Address, method: str) -> None:
    sent = f"{method} /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody".encode()
    assert status(address, sent) == 405


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"G\0T /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /m\xc3\xa9trics HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),  # TLS
        (b"GET /metrics HTTP/1.1\n\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_odd_requests_have_an_answer(address: Address, sent: bytes, code: int) -> None:
    assert status(address, sent) == code


@settings(max_examples=100)
@given(st.binary(max_size=400))
@example(b"GET / HTTP/1.1\r\n: \r\n\x00: \xff\r\n\r\n")
def test_any_bytes_are_a_request_or_none(sent: bytes) -> None:
    with contextlib.suppress(BadHttpRequest):
        assert parse_request(sent).path.startswith("/")


@contextlib.contextmanager
def clients(address: Address, sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` connections, and send the same on each."""
    with contextlib.ExitStack() as opened:
        made = []
        for _ in range(count):
            link = opened.enter_context(socket.create_connection(address, timeout=30))
            with contextlib.suppress(ConnectionError):
                link.sendall(sent)
            made.append(link)
        yield made


def is_ended(link: socket.socket) -> bool:
    """Wait until the server says or ends something; whether it is the end."""
    try:
        return not link.recv(4096)
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_a_thousand_half_open_requests_keep_no_scrape_out(address: Address, sent: bytes) -> None:
    for _ in range(4):
        with clients(address, sent, 300) as held:
            assert status(address, GET) == 200
            # The oldest have made room for the later ones, of which there is no end.
            assert all(map(is_ended, held[: -served.EACH]))


def test_a_slow_client_is_disconnected(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "HEAD_SECONDS", 0.5)
    with clients(address, b"GET /metrics HTTP/1.1\r\nX: ", 20) as held:
        assert all(map(is_ended, held))


LARGE = Response(body=b"x" * 50_000_000)


def test_clients_that_do_not_read_keep_no_scrape_out() -> None:
    def respond(request: HttpRequest) -> Response:
        return LARGE if request.path == "/large" else Response()

    large = b"GET /large HTTP/1.1\r\n\r\n"
    with serving(respond) as address, clients(address, large, 3 * served.EACH):
        assert status(address, GET) == 200


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, send = threading.Event(), served._send

    async def until_its_end(writer: Any, *parts: bytes) -> None:
        try:
            await send(writer, *parts)
        finally:
            ended.set()

    monkeypatch.setattr(served, "_send", until_its_end)
    monkeypatch.setattr(served, "SEND_SECONDS", 0.1)
    with serving(lambda _: LARGE) as address, socket.create_connection(address, 30) as link:
        link.sendall(GET)
        assert ended.wait(60)
        received = 0
        with contextlib.suppress(ConnectionError):
            while more := link.recv(1 << 20):
                received += len(more)
    assert received < len(LARGE.body)


def test_other_work_does_not_wait_for_slow_work() -> None:
    def respond(request: HttpRequest) -> Work:
        if request.path == "/slow":
            return SlowWork(until_unwanted, request)
        return Response

    slow = b"GET /slow HTTP/1.1\r\n\r\n"
    with serving(respond) as address, clients(address, slow, 2 * served.WORKERS):
        assert status(address, GET) == 200


@pytest.mark.parametrize("is_one", [True, False])
def test_a_client_has_few_threads_and_all_together_have_some_more(
    monkeypatch: pytest.MonkeyPatch, is_one: bool
) -> None:
    most = served.WORKERS_EACH if is_one else served.WORKERS
    if not is_one:
        monkeypatch.setattr(served, "client_of", lambda _, address: address)
    lock, running, counts = threading.Lock(), [0], []
    all_of_them = threading.Barrier(most)

    def work() -> Response:
        with lock:
            running[0] += 1
            counts.append(running[0])
        all_of_them.wait(60)
        with lock:
            running[0] -= 1
        return Response()

    with serving(lambda _: work) as address, clients(address, GET, 3 * most) as held:
        assert all(link.recv(4096).startswith(b"HTTP/1.1 200 ") for link in held)
    assert max(counts) == most


def until_unwanted(request: HttpRequest) -> Response:
    while request.is_wanted():
        os.sched_yield()
    return Response(HTTPStatus.SERVICE_UNAVAILABLE)


def test_work_ends_with_its_client() -> None:
    events: queue.Queue[str] = queue.Queue()

    def work(request: HttpRequest) -> Response:
        events.put("begun")
        until_unwanted(request)
        events.put("ended")
        return Response()

    with serving(lambda request: functools.partial(work, request)) as address:
        with clients(address, GET, 1):
            assert events.get(timeout=60) == "begun"
        assert events.get(timeout=60) == "ended"


def test_work_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "WORK_SECONDS", 0.2)
    with serving(lambda request: functools.partial(until_unwanted, request)) as address:
        assert status(address, GET) == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("10.0.0.7", ipaddress.ip_address("10.0.0.7")),
        ("::ffff:10.0.0.7", ipaddress.ip_address("10.0.0.7")),
        ("2001:db8:0:1::1", 0x20010DB800000001),
        ("2001:db8:0:1:ffff::", 0x20010DB800000001),
        ("fe80::1%eth0", 0xFE80000000000000),
    ],
)
def test_a_network_of_many_addresses_is_one_client(address: str, client: object) -> None:
    with socket.socket(socket.AF_INET6) as link:
        assert served.client_of(link, (address, 1, 0, 0)) == client


def test_a_client_of_a_unix_socket_is_its_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert served.client_of(one, "") == os.getuid()


def test_the_subordinate_uids_of_a_user_are_few_clients() -> None:
    def client(uid: int) -> object:
        packed = struct.pack("3i", 1, uid, 100)
        link: Any = SimpleNamespace(family=socket.AF_UNIX, getsockopt=lambda *_: packed)
        return served.client_of(link, "")

    assert len({client(100000 + number) for number in range(65536)}) == 2
    assert len({client(number) for number in (0, 1000, 1001, 65533, 100000)}) == 5


def answer(site: ExporterServer, path: str, headers: Mapping[str, str] | None = None) -> Response:
    found = site.answer(HttpRequest("GET", path, headers or {}))
    return found if isinstance(found, Response) else found()


def test_without_the_token_there_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    site = ExporterServer(
        SnapshotSource(tmp_path / "control.sock", "node-1"), file, open_to_all=True
    )

    def code(**headers: str) -> int:
        return answer(site, "/metrics", headers).status

    assert code(authorization=f"Bearer {TOKEN}") == 200
    assert [code(), code(authorization="Bearer x"), code(authorization=TOKEN)] == [401, 401, 401]
    assert answer(site, "/").status == 401
    assert answer(site, "/metrics").headers == {"WWW-Authenticate": "Bearer"}
    file.write_text("f" * 32)  # changed, without a restart
    assert code(authorization=f"Bearer {TOKEN}") == 401
    assert code(authorization=f"Bearer {'f' * 32}") == 200
    file.unlink()
    assert code(authorization="Bearer ") == 500


def test_while_a_silent_daemon_is_asked_again_no_other_client_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SnapshotSource(tmp_path / "control.sock", "node-1")
    assert source.snapshot().metrics is None
    asked, go, gone_on = threading.Event(), threading.Event(), []

    def ask() -> Snapshot:
        asked.set()
        gone_on.append(go.wait(10))
        return Snapshot("node-1", None)

    monkeypatch.setattr(metric_family, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(source, "_ask", ask)
    thread = threading.Thread(target=source.snapshot)
    thread.start()
    assert asked.wait(60)
    assert source.snapshot().metrics is None
    go.set()
    thread.join()
    assert gone_on == [True]


def test_loopback_does_not_show_data_that_read_group_hides(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(path))
        path.chmod(0o660)
        source = SnapshotSource(path, "node-1")
        refusal = answer(ExporterServer(source, None, open_to_all=True), "/metrics")
        assert refusal.status == 403
        assert b"read_group" in refusal.body
        control.listen()  # nobody accepts
        assert answer(ExporterServer(source, None, open_to_all=False), "/metrics").status == 200
