# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests of untrusted clients, bounded in size, time and number.

Each connection serves one request. A slow client occupies one of `MOST` slots for `HEAD_SECONDS`
and then for `SEND_SECONDS`. If all slots are in use, a client gets status 503 immediately.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import io
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST: Final = 16
HEAD_BYTES: Final = 8192
HEAD_SECONDS: Final = 5.0
SEND_SECONDS: Final = 10.0
_REST_BYTES: Final = 65536
_REST_SECONDS: Final = 1.0

#: Outside 9100-9999, which other exporters use (see the list of default ports in Prometheus' wiki).
DEFAULT: Final = "127.0.0.1:10418"


class BadHttpRequest(Exception):
    """An invalid request; `status` has the reason."""

    def __init__(self, status: http.HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request; the names of `headers` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """A response; without a body, the body is the status."""

    status: http.HTTPStatus = http.HTTPStatus.OK
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Respond = Callable[[HttpRequest], Response]


class HttpServer:
    """Serves `listener` until it is closed."""

    def __init__(self, listener: socket.socket, answer: Respond) -> None:
        self._listener = listener
        self._answer = answer
        self._places = threading.BoundedSemaphore(MOST)

    def serve(self) -> None:
        """Accept connections, each on its own thread."""
        while True:
            try:
                link, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors or memory: wait for other connections to end
                continue
            if not self._places.acquire(blocking=False):
                with contextlib.suppress(OSError), link:
                    link.settimeout(0)
                    link.send(_packed(Response(http.HTTPStatus.SERVICE_UNAVAILABLE), head=False))
                continue
            threading.Thread(target=self._serve, args=(link,), name="http", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                self._answer_one(link)
        except OSError:
            pass  # the client has disconnected, or reads too slowly
        finally:
            self._places.release()

    def _answer_one(self, link: socket.socket) -> None:
        head = False
        try:
            request = parse_request(_head(link))
        except BadHttpRequest as bad:
            response = Response(bad.status)
        else:
            head = request.method == "HEAD"
            response = self._response(request)
        link.settimeout(SEND_SECONDS)
        link.sendall(_packed(response, head=head))
        _drain(link)

    def _response(self, request: HttpRequest) -> Response:
        try:
            return self._answer(request)
        except Exception:  # noqa: BLE001 - an error in one request must not affect others
            sys.stderr.write(traceback.format_exc())
            return Response(http.HTTPStatus.INTERNAL_SERVER_ERROR)


def parse_request(head: bytes) -> HttpRequest:
    """Return the request with this head; BadHttpRequest if it is invalid."""
    line, _, rest = head.partition(b"\n")
    words = line.rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not line.isascii():
        raise BadHttpRequest(http.HTTPStatus.BAD_REQUEST)
    method, target = words[0].decode(), words[1].decode()
    if not method.isalpha() or not target.startswith("/"):
        raise BadHttpRequest(http.HTTPStatus.BAD_REQUEST)
    try:
        headers = http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException as error:
        raise BadHttpRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from error
    found: dict[str, str] = {}
    for name, value in headers.items():
        known = found.get(name.lower())
        found[name.lower()] = str(value) if known is None else f"{known}, {value}"
    return HttpRequest(method, target.partition("?")[0], found)


def _head(link: socket.socket) -> bytes:
    """Return the data up to the empty line."""
    until = time.monotonic() + HEAD_SECONDS
    read = bytearray()
    while True:
        ends = [at for mark in (b"\r\n\r\n", b"\n\n") if (at := read.find(mark)) >= 0]
        if ends and min(ends) <= HEAD_BYTES:
            return bytes(read[: min(ends) + 4])
        if len(read) > HEAD_BYTES:
            raise BadHttpRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        left = until - time.monotonic()
        if left <= 0:
            raise BadHttpRequest(http.HTTPStatus.REQUEST_TIMEOUT)
        link.settimeout(left)
        try:
            more = link.recv(4096)
        except TimeoutError:
            raise BadHttpRequest(http.HTTPStatus.REQUEST_TIMEOUT) from None
        if not more:
            raise ConnectionResetError
        read += more


def _packed(response: Response, *, head: bool) -> bytes:
    status = response.status
    body = response.body or f"{status.value} {status.phrase}\n".encode()
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode("ascii")
    return start if head else start + body


def _drain(link: socket.socket) -> None:
    """Read a limited amount of remaining data: closing immediately would discard the response."""
    link.shutdown(socket.SHUT_WR)
    until = time.monotonic() + _REST_SECONDS
    read = 0
    while read < _REST_BYTES and (left := until - time.monotonic()) > 0:
        link.settimeout(left)
        more = len(link.recv(4096))
        if not more:
            return
        read += more
