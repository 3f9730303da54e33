# SPDX-License-Identifier: Apache-2.0
"""Requests of unknown clients: each is answered or ended, and others do not wait."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare.exporter import http_server as served
from gpushare.exporter.__main__ import ExporterServer
from gpushare.exporter.http_server import (
    BadHttpRequest,
    HttpRequest,
    HttpServer,
    Response,
    parse_request,
)
from gpushare.exporter.metric_family import SnapshotSource

pytestmark = pytest.mark.gate

TOKEN = "0123456789abcdef"
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
Address = tuple[str, int]


def serving(site: ExporterServer) -> tuple[socket.socket, Address]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = HttpServer(listener, site.answer)
    threading.Thread(target=server.serve, daemon=True).start()
    return listener, listener.getsockname()


@pytest.fixture
def site(tmp_path: Path) -> ExporterServer:
    return ExporterServer(
        SnapshotSource(tmp_path / "control.sock", "node-1"), None, open_to_all=True
    )


@pytest.fixture
def address(site: ExporterServer) -> Iterator[Address]:
    listener, found = serving(site)
    yield found
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


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


def test_a_slow_client_is_disconnected_and_delays_no_other(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "HEAD_SECONDS", 1.0)
    slow = [socket.create_connection(address, timeout=30) for _ in range(served.MOST)]
    for link in slow:
        link.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    answers = {link.recv(4096).split()[1] for link in slow}
    assert answers <= {b"408", b"503"}
    for link in slow:
        link.close()
    assert status_in_the_end(address) == 200


def status_in_the_end(address: Address) -> int:
    """Return what a request comes to once those before have let go of their places."""
    for _ in range(1000):
        found = status(address, GET)
        if found != HTTPStatus.SERVICE_UNAVAILABLE:
            return found
    raise AssertionError("the places are never free again")


def test_a_client_above_the_limit_gets_a_message(address: Address) -> None:
    held = [socket.create_connection(address, timeout=30) for _ in range(served.MOST)]
    for link in held:
        link.sendall(b"GET")
    while status(address, GET) != HTTPStatus.SERVICE_UNAVAILABLE:
        pass  # until the last of them has its place
    for link in held:
        link.close()
    assert status_in_the_end(address) == 200


def test_a_client_that_does_not_read_is_disconnected(
    site: ExporterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, serve = threading.Event(), HttpServer._serve

    def until_its_end(server: HttpServer, link: socket.socket) -> None:
        serve(server, link)
        ended.set()

    monkeypatch.setattr(HttpServer, "_serve", until_its_end)
    monkeypatch.setattr(served, "SEND_SECONDS", 0.1)
    monkeypatch.setattr(site, "answer", lambda _request: Response(body=b"x" * 50_000_000))
    listener, address = serving(site)
    with listener, socket.create_connection(address, timeout=30) as link:
        link.sendall(GET)
        assert ended.wait(60)
        received = 0
        with contextlib.suppress(ConnectionError):
            while more := link.recv(1 << 20):
                received += len(more)
    assert received < 50_000_000


def test_without_the_token_there_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    site = ExporterServer(
        SnapshotSource(tmp_path / "control.sock", "node-1"), file, open_to_all=True
    )

    def code(**headers: str) -> int:
        return site.answer(HttpRequest("GET", "/metrics", headers)).status

    assert code(authorization=f"Bearer {TOKEN}") == 200
    assert [code(), code(authorization="Bearer x"), code(authorization=TOKEN)] == [401, 401, 401]
    assert site.answer(HttpRequest("GET", "/", {})).status == 401
    assert site.answer(HttpRequest("GET", "/metrics", {})).headers == {"WWW-Authenticate": "Bearer"}
    file.write_text("f" * 32)  # changed, without a restart
    assert code(authorization=f"Bearer {TOKEN}") == 401
    assert code(authorization=f"Bearer {'f' * 32}") == 200
    file.unlink()
    assert code(authorization="Bearer ") == 500


def test_loopback_does_not_show_data_that_read_group_hides(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(path))
        path.chmod(0o660)
        source = SnapshotSource(path, "node-1")
        answer = ExporterServer(source, None, open_to_all=True).answer(
            HttpRequest("GET", "/metrics")
        )
        assert answer.status == 403
        assert b"read_group" in answer.body
        control.listen()  # nobody accepts
        assert (
            ExporterServer(source, None, open_to_all=False)
            .answer(HttpRequest("GET", "/metrics"))
            .status
            == 200
        )
