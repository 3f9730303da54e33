# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests of strangers: each is bounded in size and time, and all in number.

One request a connection. Who is slow costs one of `MOST` places for `HEAD_SECONDS` and then for
`SEND_SECONDS`; who finds all of them taken is told so at once.
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


class BadHead(Exception):
    """What was sent is no request that is answered; `status` says why."""

    def __init__(self, status: http.HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@dataclass(frozen=True)
class Request:
    """The head of a request; `headers` by their names in small letters."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """An answer; without a body the status says it."""

    status: http.HTTPStatus = http.HTTPStatus.OK
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[Request], Response]


class Server:
    """Answers on `listener` until the process ends."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._answer = answer
        self._places = threading.BoundedSemaphore(MOST)

    def serve(self) -> None:
        """Take one connection after another, each on a thread of its own."""
        while True:
            try:
                link, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                time.sleep(0.1)  # no descriptor, no memory: others end meanwhile
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
            pass  # it has gone, or reads too slowly
        finally:
            self._places.release()

    def _answer_one(self, link: socket.socket) -> None:
        head = False
        try:
            request = parse(_head(link))
            head = request.method == "HEAD"
            response = self._answer(request)
        except BadHead as bad:
            response = Response(bad.status)
        except Exception:  # noqa: BLE001 - a fault with one request is not the others'
            sys.stderr.write(traceback.format_exc())
            response = Response(http.HTTPStatus.INTERNAL_SERVER_ERROR)
        link.settimeout(SEND_SECONDS)
        link.sendall(_packed(response, head=head))
        _drain(link)


def parse(head: bytes) -> Request:
    """Return the request whose head this is; BadHead where it is none."""
    line, _, rest = head.partition(b"\n")
    words = line.rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not line.isascii():
        raise BadHead(http.HTTPStatus.BAD_REQUEST)
    method, target = words[0].decode(), words[1].decode()
    if not method.isalpha() or not target.startswith("/"):
        raise BadHead(http.HTTPStatus.BAD_REQUEST)
    try:
        headers = http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException as error:
        raise BadHead(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from error
    found: dict[str, str] = {}
    for name, value in headers.items():
        known = found.get(name.lower())
        found[name.lower()] = str(value) if known is None else f"{known}, {value}"
    return Request(method, target.partition("?")[0], found)


def _head(link: socket.socket) -> bytes:
    """Return what comes up to the empty line."""
    until = time.monotonic() + HEAD_SECONDS
    read = bytearray()
    while True:
        ends = [at for mark in (b"\r\n\r\n", b"\n\n") if (at := read.find(mark)) >= 0]
        if ends and min(ends) <= HEAD_BYTES:
            return bytes(read[: min(ends) + 4])
        if len(read) > HEAD_BYTES:
            raise BadHead(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        left = until - time.monotonic()
        if left <= 0:
            raise BadHead(http.HTTPStatus.REQUEST_TIMEOUT)
        link.settimeout(left)
        try:
            more = link.recv(4096)
        except TimeoutError:
            raise BadHead(http.HTTPStatus.REQUEST_TIMEOUT) from None
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
    """Read what was still sent, a little: closed at once, the answer would be lost with it."""
    link.shutdown(socket.SHUT_WR)
    until = time.monotonic() + _REST_SECONDS
    read = 0
    while read < _REST_BYTES and (left := until - time.monotonic()) > 0:
        link.settimeout(left)
        more = len(link.recv(4096))
        if not more:
            return
        read += more
