# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests of untrusted clients, bounded in size, time and number.

Each connection serves one request. A slow client occupies one of `MOST` slots for `HEAD_SECONDS`
and then for `SEND_SECONDS`. If all slots are in use, a client gets status 503 immediately.

Every address but this machine's loopback address is on a network, where the names of containers
and pods are confidential, and requires a token.
"""

from __future__ import annotations

import contextlib
import hmac
import http
import http.client
import io
import ipaddress
import re
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.errors import UserError

MOST: Final = 16
HEAD_BYTES: Final = 8192
HEAD_SECONDS: Final = 5.0
SEND_SECONDS: Final = 10.0
_REST_BYTES: Final = 65536
_REST_SECONDS: Final = 1.0

#: Outside 9100-9999, which other exporters use (see the list of default ports in Prometheus' wiki).
DEFAULT: Final = "127.0.0.1:10418"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+|localhost):([0-9]{1,5})")
_BACKLOG: Final = 32


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
    """Serves `listener` until the process ends."""

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
            head = request.method == "HEAD"
            response = self._answer(request)
        except BadHttpRequest as bad:
            response = Response(bad.status)
        except Exception:  # noqa: BLE001 - an error in one request must not affect others
            sys.stderr.write(traceback.format_exc())
            response = Response(http.HTTPStatus.INTERNAL_SERVER_ERROR)
        link.settimeout(SEND_SECONDS)
        link.sendall(_packed(response, head=head))
        _drain(link)


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


_LEAST: Final = 16
_MOST: Final = 4096


class BadToken(UserError):
    """The file does not contain a secure token."""


def read_token(file: Path) -> bytes:
    """Return the token in `file`, which is read for each request so that it can be changed."""
    try:
        with file.open("rb") as opened:
            mode = file.stat().st_mode
            content = opened.read(_MOST + 1).strip()
    except OSError as error:
        raise BadToken(f"--token-file {file}: {error.strerror}") from error
    if mode & 0o004:
        raise BadToken(f"--token-file {file}: readable by every user. Run chmod 640 {file}")
    if not _LEAST <= len(content) <= _MOST or not content.isascii() or b" " in content:
        raise BadToken(
            f"--token-file {file}: must contain one word of at least {_LEAST} ASCII characters. "
            f"Create one: openssl rand -hex 32 > {file}"
        )
    return content


def is_authorized(authorization: str, token: bytes) -> bool:
    """Whether the header `authorization` contains `token`; compares in constant time."""
    scheme, _, shown = authorization.partition(" ")
    wanted = hmac.compare_digest(shown.strip().encode("utf-8", "surrogateescape"), token)
    return scheme.lower() == "bearer" and wanted


class BadAddress(UserError):
    """The exporter cannot, or must not, listen on this address; the message has the fix."""


@dataclass(frozen=True)
class Address:
    """An address to listen on: a path, or a numeric host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can connect."""
        return self.path is not None or ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str) -> Address:
    """Return the address in `text`; BadAddress if it is invalid."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise BadAddress(f'--listen "{text}": not an absolute path. Use unix:/run/NAME.sock')
        return Address(path=path)
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise BadAddress(
            f'--listen "{text}": not an address. Use HOST:PORT with a numeric host, [IPV6]:PORT, '
            f"or unix:/PATH (default: {DEFAULT})"
        )
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise BadAddress(f'--listen "{text}": {error}. Use, for example, {DEFAULT}') from error
    return Address(host=host, port=int(found[2]))


def refuse_open(address: Address, token: Path | None) -> None:
    """Raise BadAddress if other machines could connect without a token."""
    if not address.is_local and token is None:
        raise BadAddress(
            f"--listen {address}: reachable from other machines, and the metrics contain the names "
            f"of containers. Add --token-file FILE (clients then send that bearer token), or "
            f"listen on {DEFAULT}"
        )


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on `address`; BadAddress if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(socket.AF_UNIX if address.path else family, socket.SOCK_STREAM)
    try:
        if address.path is not None:
            _bind(listener, address.path)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BadAddress(f"--listen {address}: {error.strerror}. Use another address") from error
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind to `path`, and replace a socket on which no process listens."""
    try:
        listener.bind(str(path))
    except OSError:
        if not path.is_socket() or _is_used(path):
            raise
        path.unlink()
        listener.bind(str(path))
    path.chmod(0o660)  # no client can connect before listen(2)


def _is_used(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def is_restricted(control: Path) -> bool:
    """Whether only some users may query gpushared: read_group in gpushare.yaml."""
    try:
        mode = control.stat().st_mode
    except OSError:
        return False  # no daemon, no metrics
    return stat.S_ISSOCK(mode) and mode & 0o006 != 0o006
