# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests of untrusted clients, bounded in size, time and number.

Each connection has one request. It is in one of three stages: its head is read, its answer is made,
its answer is sent. A stage takes `MOST` connections, and `EACH` of one client. Where it is full,
the next connection takes the place of the one that is in it longest, of the client with the most.
So a slow client, or a thousand of them, keeps no other one out.

One thread reads and sends. Answers that take time are made on `WORKERS` other threads, of which a
client has `WORKERS_EACH` at a time, and those that take long on `WORKERS_EACH` of their own. Their
work ends if the client disconnects, or after `WORK_SECONDS`: they ask `HttpRequest.is_wanted`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import http.client
import io
import ipaddress
import math
import socket
import ssl
import struct
import sys
import threading
import time
import traceback
import urllib.parse
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakValueDictionary

MOST: Final = 256
EACH: Final = 128
WORKERS: Final = 4
WORKERS_EACH: Final = 2
HEAD_BYTES: Final = 8192
HEAD_SECONDS: Final = 5.0
WORK_SECONDS: Final = 60.0
SEND_SECONDS: Final = 10.0
_UNREAD_BYTES: Final = 65536  # what is kept of an answer that its client does not read
_REST_BYTES: Final = 65536
_REST_SECONDS: Final = 1.0
_NO_MEMORY_SECONDS: Final = 0.1
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_UIDS: Final = 65536
_CREDENTIALS: Final = struct.Struct("3i")  # of SO_PEERCRED: PID, UID, GID


class BadHttpRequest(Exception):
    """An invalid request; its one argument is the status of the answer."""


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request; the names of `headers` are in lower case.

    `target` is the path with the query. `is_wanted` is false once nobody waits for the answer.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)

    @property
    def path(self) -> str:
        """The path alone."""
        return self.target.partition("?")[0]

    def values(self, name: str) -> list[str]:
        """Return all values of a parameter of the query."""
        query = self.target.partition("?")[2]
        return [value for key, value in urllib.parse.parse_qsl(query) if key == name]

    def value(self, name: str) -> str:
        """Return the last value of a parameter; empty without one."""
        return ["", *self.values(name)][-1]


@dataclass(frozen=True)
class Response:
    """A response; without a body, the body is the status."""

    status: http.HTTPStatus = http.HTTPStatus.OK
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


#: Makes an answer, on a thread of its own.
Work = Callable[[], Response]


class SlowWork(functools.partial[Response]):
    """Work that can take many seconds: other work does not wait for it."""


#: Answers a request at once, or returns the work that does. Whoever may not ask is refused here.
Respond = Callable[[HttpRequest], "Response | Work"]


class HttpServer:
    """Serves `listener`, with TLS if `tls` is set, until it is stopped."""

    def __init__(
        self, listener: socket.socket, respond: Respond, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener = listener
        self._respond = respond
        self._tls = tls
        self._reading, self._working, self._sending = _Stage(), _Stage(), _Stage()
        self._turns_of: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(WORKERS, "http")
        self._slow_workers = ThreadPoolExecutor(WORKERS_EACH, "slow")

    def serve(self) -> None:
        """Answer requests until `stop`."""
        _map_large_blocks()
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._accept())

    def stop(self) -> None:
        """End `serve`, from any thread or a signal handler."""
        self._stopped.set()
        self._soon(lambda: self._task.cancel())  # noqa: PLW0108 - there may be none yet

    async def _accept(self) -> None:
        self._task, self._loop = _current_task(), (loop := asyncio.get_running_loop())
        self._listener.setblocking(False)
        served: set[asyncio.Task[None]] = set()
        while not self._stopped.is_set():
            try:
                link, address = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue
            except OSError:  # out of descriptors or memory: wait for other connections to end
                await asyncio.sleep(_NO_MEMORY_SECONDS)
                continue
            served.add(one := loop.create_task(self._serve(link, address)))
            one.add_done_callback(served.discard)
            await asyncio.sleep(0)  # a flood of connections delays no other task

    async def _serve(self, link: socket.socket, address: Any) -> None:
        """Serve one connection. The one that takes its place cancels it."""
        ended = threading.Event()
        # The client has disconnected, is too slow, or has lost its place.
        gone = contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError)
        with gone, link, contextlib.ExitStack() as at_end:
            at_end.callback(ended.set)
            client = client_of(link, address)
            with self._reading.place(client):
                reader, writer = await asyncio.wait_for(self._open(link), HEAD_SECONDS)
                at_end.callback(writer.transport.abort)
                is_head, response = await asyncio.wait_for(self._first(reader, ended), HEAD_SECONDS)
            if not isinstance(response, Response):
                with self._working.place(client):
                    response = await self._made(reader, client, response)
            with self._sending.place(client):
                body = b"" if is_head else _body_of(response)
                await asyncio.wait_for(_send(writer, _head_of(response), body), SEND_SECONDS)
                await asyncio.wait_for(_finish(reader, writer), _REST_SECONDS)

    async def _open(self, link: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=HEAD_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, link, ssl=self._tls)
        transport.set_write_buffer_limits(1)  # drain() waits for all; with 0, TLS waits for ever
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _first(
        self, reader: asyncio.StreamReader, ended: threading.Event
    ) -> tuple[bool, Response | Work]:
        """Read a request; return whether it wants no body, and its answer or the work for it."""
        try:
            request = parse_request(await _head(reader))
        except BadHttpRequest as bad:
            return False, Response(bad.args[0])
        until = time.monotonic() + WORK_SECONDS
        wanted = replace(request, is_wanted=lambda: not ended.is_set() and time.monotonic() < until)
        return request.method == "HEAD", _guarded(functools.partial(self._respond, wanted))

    async def _made(self, reader: asyncio.StreamReader, client: Hashable, work: Work) -> Response:
        """Return what `work` makes on another thread; stop waiting if the client disconnects."""
        task = _current_task()
        watch = asyncio.create_task(_rest(reader))
        watch.add_done_callback(lambda done: done.cancelled() or task.cancel())
        # Requests of a client wait for each other first, and then for those of others.
        is_slow = isinstance(work, SlowWork)
        own = self._turns_of.setdefault((client, is_slow), asyncio.Semaphore(WORKERS_EACH))
        try:
            await own.acquire()
            made = (self._slow_workers if is_slow else self._workers).submit(_guarded, work)
            # A turn is over when the thread is, even if nobody waits for that.
            made.add_done_callback(lambda _: self._soon(own.release))
            return await asyncio.wrap_future(made)
        finally:
            watch.cancel()
            await asyncio.wait([watch])

    def _soon(self, call: Callable[[], object]) -> None:
        """Call it on the thread that serves, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)


def _map_large_blocks() -> None:
    """Have malloc map each block of 128 KiB or more, so that answers go back to the kernel.

    glibc raises that bound with the first such block that is freed (mallopt(3)), and from then on
    answers stay in the memory of each thread that has made one.
    """
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


class _Stage:
    """The connections in one stage, the longest there first."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Task[Any], Hashable] = {}

    @contextlib.contextmanager
    def place(self, client: Hashable) -> Iterator[None]:
        """Take a place, if necessary that of another connection."""
        held, of_clients = self._held, Counter(self._held.values())
        loser = client if of_clients[client] >= EACH else None
        if loser is None and len(held) >= MOST:
            [(loser, _)] = of_clients.most_common(1)
        if loser is not None:
            longest = next(task for task, one in held.items() if one == loser)
            del held[longest]
            longest.cancel()
        task = _current_task()
        held[task] = client
        try:
            yield
        finally:
            held.pop(task, None)


async def _send(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    """Send them in pieces: the piece that the client does not read is kept a second time."""
    for part in parts:
        for start in range(0, len(part), _UNREAD_BYTES):
            writer.write(part[start : start + _UNREAD_BYTES])
            await writer.drain()


async def _finish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for the client's end: to close before it would discard what is on its way."""
    if writer.can_write_eof():
        writer.write_eof()
        await _rest(reader, _REST_BYTES)
    else:
        writer.close()
        await writer.wait_closed()


async def _rest(reader: asyncio.StreamReader, most: float = math.inf) -> None:
    """Read until the client's end, or until it has sent more than `most`."""
    while most > 0 and (more := await reader.read(4096)):
        most -= len(more)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:  # noqa: BLE001 - an error in one request must not affect others
        sys.stderr.write(traceback.format_exc())
        return Response(http.HTTPStatus.INTERNAL_SERVER_ERROR)


def client_of(link: socket.socket, address: Any) -> Hashable:
    """Return the client: a uid, an IPv4 address, or the first 64 bits of an IPv6 address.

    The users of this machine cannot be told apart on loopback, which has many addresses. Of large
    uids, which a user has 65536 of by subuid(5), the neighbors count as one.
    """
    if link.family == socket.AF_UNIX:
        found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid = int(_CREDENTIALS.unpack(found)[1])
        return uid if uid < _UIDS else ("large", uid // _UIDS)
    host = ipaddress.ip_address(address[0].partition("%")[0])
    host = getattr(host, "ipv4_mapped", None) or host
    if host.is_loopback:
        return "loopback"
    return host if host.version == 4 else int(host) >> 64


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
    return HttpRequest(method, target, found)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the data up to the empty line."""
    read = b""
    while not read.endswith((b"\n\n", b"\n\r\n")):
        try:
            line = await reader.readline()
        except ValueError:  # longer than the reader's limit
            line = b" " * (HEAD_BYTES + 1)
        if not line:
            raise ConnectionResetError
        read += line
        if len(read) > HEAD_BYTES:
            raise BadHttpRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    return read


def _body_of(response: Response) -> bytes:
    status = response.status
    return response.body or f"{status.value} {status.phrase}\n".encode()


def _head_of(response: Response) -> bytes:
    status = response.status
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(_body_of(response))),
        "Connection": "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode("ascii")
