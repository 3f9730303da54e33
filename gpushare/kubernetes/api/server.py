# SPDX-License-Identifier: Apache-2.0
"""A client of the Kubernetes API server: JSON over one kept connection for each thread.

No call waits for ever: each request has a deadline for the whole answer, a failed one is repeated
after growing pauses for at most `PATIENCE_SECONDS`, and `stop` ends every wait. All requests can be
repeated safely: those that create an object name it, and those that change one name its
resourceVersion or set the same fields again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import gpushare
from gpushare.errors import UserError
from gpushare.kubernetes.api.credentials import Credentials


class ApiError(UserError):
    """The API server answered, and refused; `status` is HTTP's, `reason` that of the Status."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.said = message  # without the request and the fix
        self.retry_after = 0.0  # seconds to wait at least, as the server asks


class ApiUnreachable(ApiError):
    """No complete answer in time: a network, TLS or server fault, which may pass."""


class ApiNotFound(ApiError):
    """There is no such object, or the server does not know its kind."""


class ApiConflict(ApiError):
    """The object has changed since it was read: read it again."""


class ApiExists(ApiError):
    """An object of this name exists already."""


class ApiExpired(ApiError):
    """The resourceVersion is too old for the server: list again."""


class ApiForbidden(ApiError):
    """The credentials are missing, invalid, or lack a permission; the message has the fix."""


_CLASSES: Final[dict[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: ApiForbidden,
    HTTPStatus.FORBIDDEN: ApiForbidden,
    HTTPStatus.NOT_FOUND: ApiNotFound,
    HTTPStatus.CONFLICT: ApiConflict,
    HTTPStatus.GONE: ApiExpired,
}
_FIXES: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "the API server does not accept the token or the certificate",
    HTTPStatus.FORBIDDEN: "kubectl apply -f configs/kubernetes/MODE/rbac.yaml",
}
_MESSAGE_CHARACTERS: Final = 500


def refusal(request: str, status: int, body: Any) -> ApiError:
    """Return the exception for an answer `status` to `request` (`GET /api/v1/nodes/n`).

    `body` is the decoded answer, a Status of `meta/v1` unless a proxy wrote it. Source: Kubernetes
    API conventions, "Response Status Kind".
    """
    kind = body if isinstance(body, dict) and body.get("kind") == "Status" else {}
    reason = str(kind.get("reason") or "")
    reason_text = str(kind.get("message") or body or "no reason given")[:_MESSAGE_CHARACTERS]
    fix = _FIXES.get(status)
    message = f"{request}: {status} {reason_text}{f'. Fix: {fix}' if fix else ''}"
    error_class = ApiExists if reason == "AlreadyExists" else _CLASSES.get(status, ApiError)
    error = error_class(message, status, reason)
    error.said = reason_text
    return error


Object = dict[str, Any]
Query = Mapping[str, str]

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 30.0
FAILURES: Final = (OSError, http.client.HTTPException)
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_MOST_BYTES: Final = 64 << 20
_PAGE: Final = "500"
_PASSING: Final = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


def path_of(collection: str, name: str = "", namespace: str = "") -> str:
    """Return the path of an object, or of a collection if `name` is empty.

    `collection` is `/api/v1/nodes` or, with a namespace, `/api/v1/events`.
    """
    root, _, plural = collection.rpartition("/")
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{inside}/{plural}" + (f"/{quote(name, safe='')}" if name else "")


@dataclass(frozen=True)
class ApiRequest:
    """A request to the API server; `body` is sent as `kind`."""

    method: str
    path: str
    query: Query | None = None
    body: Object | None = None
    kind: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def data(self) -> bytes | None:
        """The body as bytes."""
        if self.body is None:
            return None
        return json.dumps(self.body, separators=(",", ":"), allow_nan=False).encode()


class ApiServer:
    """The API server of `credentials`. Threads can share it; each has its own connection."""

    def __init__(
        self,
        credentials: Credentials,
        stop: threading.Event | None = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.credentials = credentials
        self.stop = threading.Event() if stop is None else stop
        self._answer_seconds = answer_seconds
        self._patience_seconds = patience_seconds
        self._kept = threading.local()
        self._open: set[http.client.HTTPConnection] = set()

    def get(self, path: str, query: Query | None = None) -> Object:
        """Return the object at `path`."""
        return self._repeated(ApiRequest("GET", path, query))

    def all_of(
        self, path: str, query: Query | None = None, kept: Callable[[Object], Object] = dict
    ) -> tuple[list[Object], str]:
        """Return what is `kept` of all objects of a collection, and their resourceVersion."""
        while True:
            objects: list[Object] = []
            page = {**(query or {}), "limit": _PAGE}
            try:
                while True:
                    answer = self.get(path, page)
                    objects += map(kept, answer.get("items") or [])
                    metadata = answer.get("metadata") or {}
                    if not metadata.get("continue"):
                        return objects, str(metadata.get("resourceVersion") or "")
                    page["continue"] = str(metadata["continue"])
            except ApiExpired:  # between two pages: begin again
                if "continue" not in page:
                    raise

    def create(self, path: str, body: Object) -> Object:
        """Create `body`, which has a name, in the collection `path`; ApiExists if there is one."""
        return self._repeated(ApiRequest("POST", path, body=body))

    def replace(self, path: str, body: Object) -> Object:
        """Replace the object at `path`; ApiConflict if it is no longer `body`'s resourceVersion."""
        return self._repeated(ApiRequest("PUT", path, body=body))

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into the object at `path`: null removes a field (RFC 7386)."""
        kind = "application/merge-patch+json"
        return self._repeated(ApiRequest("PATCH", path, body=body, kind=kind))

    def delete(self, path: str, uid: str = "") -> None:
        """Delete the object at `path`, with `uid` only that one; one that is gone is fine."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            body["preconditions"] = {"uid": uid}
        with contextlib.suppress(ApiNotFound):
            self._repeated(ApiRequest("DELETE", path, body=body))

    def clock(self) -> float | None:
        """Return the server's clock in seconds since the epoch; None if it does not report it."""
        request = ApiRequest("GET", "/version")
        connection = self.open_connection(self._answer_seconds)
        try:
            with contextlib.closing(connection), Deadline(connection, self._answer_seconds):
                date = self.send(connection, request).headers.get("Date", "")
            return parsedate_to_datetime(date).timestamp()
        except FAILURES as error:
            raise ApiUnreachable(f"{request}: {_text(error)}") from error
        except ValueError:
            return None

    def close(self) -> None:
        """Stop, and close the kept connections of all threads; no request may be under way."""
        self.stop.set()
        while self._open:
            self._open.pop().close()

    def open_connection(self, seconds: float) -> http.client.HTTPConnection:
        """Return an open connection; `seconds` limits each wait on it. ApiUnreachable."""
        credentials = self.credentials
        connection: http.client.HTTPConnection = (
            _TlsConnection(credentials)
            if credentials.is_encrypted
            else http.client.HTTPConnection(
                credentials.host, credentials.port, timeout=CONNECT_SECONDS
            )
        )
        try:
            with Deadline(connection, CONNECT_SECONDS):
                connection.connect()
        except FAILURES as error:
            connection.close()
            raise ApiUnreachable(f"{credentials.server}: {_text(error)}") from error
        connection.sock.settimeout(seconds)
        return connection

    def send(
        self,
        connection: http.client.HTTPConnection,
        request: ApiRequest,
        more: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send one request, with `more` headers; return its answer, only whose head is read."""
        headers = {"Accept": "application/json", "User-Agent": f"gpushare/{gpushare.__version__}"}
        headers |= more or {}
        authorization = self.credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.kind
        target = self.credentials.base_path + request.target
        connection.request(request.method, target, body=request.data, headers=headers)
        return connection.getresponse()

    def _repeated(self, request: ApiRequest) -> Object:
        """Send a request until it is answered, or refused, or patience ends."""
        until = time.monotonic() + self._patience_seconds
        waits = pauses()
        while True:
            try:
                return self._once(request)
            except ApiError as error:
                passes = isinstance(error, ApiUnreachable) or error.status in _PASSING
                wait = max(next(waits), error.retry_after)
                if not passes or time.monotonic() + wait > until or self.stop.wait(wait):
                    raise

    def _once(self, request: ApiRequest) -> Object:
        connection: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if connection is not None:
            # A server may close a connection that was idle just as it is used again.
            with contextlib.suppress(ConnectionError):
                return self._exchange(connection, request)
        connection = self._kept.connection = self.open_connection(self._answer_seconds)
        self._open.add(connection)
        try:
            return self._exchange(connection, request)
        except ConnectionError as error:
            raise ApiUnreachable(f"{request}: {_text(error)}") from error

    def _exchange(self, connection: http.client.HTTPConnection, request: ApiRequest) -> Object:
        """Send a request; ConnectionError if the connection was closed before the answer."""
        is_done = False
        try:
            with Deadline(connection, self._answer_seconds) as deadline:
                try:
                    response = self.send(connection, request)
                    content = response.read(_MOST_BYTES + 1)
                    if response.length or deadline.has_passed:
                        raise http.client.IncompleteRead(content)
                except FAILURES as error:
                    if deadline.has_passed or isinstance(error, TimeoutError):
                        limit = f"no answer within {self._answer_seconds:g} s"
                        raise ApiUnreachable(f"{request}: {limit}") from error
                    if isinstance(error, ConnectionError):
                        raise
                    raise ApiUnreachable(f"{request}: {_text(error)}") from error
            is_done = not response.will_close and len(content) <= _MOST_BYTES
        finally:
            if not is_done:
                connection.close()
                self._open.discard(connection)
                self._kept.connection = None
        return decode_answer(str(request), response, content)


class _TlsConnection(http.client.HTTPSConnection):
    """A connection whose certificates are read when it opens."""

    def __init__(self, credentials: Credentials) -> None:
        self._settings = credentials.context()
        super().__init__(
            credentials.host, credentials.port, timeout=CONNECT_SECONDS, context=self._settings
        )
        self._server_name = credentials.server_name or credentials.host

    def connect(self) -> None:
        """Open the connection; the name in the server's certificate may differ from its host."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._settings.wrap_socket(self.sock, server_hostname=self._server_name)


class Deadline:
    """Ends every wait on a connection once `seconds` have passed, whatever trickles in."""

    def __init__(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        self._connection = connection
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True
        self.has_passed = False

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _pass(self) -> None:
        self.has_passed = True
        shut(self._connection)


def shut(connection: http.client.HTTPConnection) -> None:
    """End every wait on `connection`, from any thread."""
    link = connection.sock
    if link is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(link, socket.SHUT_RDWR)  # of TLS too, without a farewell


def pauses(longest: float = _LONGEST_PAUSE) -> Iterator[float]:
    """Yield how long to wait before each next attempt, s: growing, and different on each node."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        pause = min(2 * pause, longest)


def decode_answer(what: str, response: http.client.HTTPResponse, content: bytes) -> Object:
    """Return the object in an answer; ApiError for a refusal, or what is no object."""
    decoded: Any = None
    try:
        decoded = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        decoded = content[:200].decode("utf-8", "replace")
    if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
        if isinstance(decoded, dict):
            return decoded
        raise ApiUnreachable(f"{what}: the answer is not a JSON object of at most 64 MiB")
    error = refusal(what, response.status, decoded)
    with contextlib.suppress(ValueError):
        error.retry_after = min(float(response.headers.get("Retry-After", "0")), _LONGEST_PAUSE)
    raise error


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or repr(error)


# --- a copy of some objects that a watch keeps current, on a thread of its own ---
#
# Source: Kubernetes API concepts, "Efficient detection of changes": list, then watch from that
# resourceVersion; a bookmark moves it on; after 410 the list is read again.

#: The server ends a watch after this time; each node takes another part of it.
WATCH_SECONDS: Final = 300
_GRACE_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 2.0
_MOST_LINE_BYTES: Final = 8 << 20
_LONGEST_WATCH_PAUSE: Final = 30.0
_SHORT_SECONDS: Final = 1.0  # a watch that ends earlier is begun again after a pause


class WatchedObjects:
    """The objects at `path` that `query` selects; `changed` is called after each change.

    `kept` returns what is needed of an object, with its name, where there may be thousands.

    `start` begins, `close` ends. Until `is_synced`, nothing is known. A fault is logged
    once, and the last known objects stay.
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        query: Query | None = None,
        *,
        changed: Callable[[], None] = lambda: None,
        kept: Callable[[Object], Object] = dict,
    ) -> None:
        self.is_synced = False
        self.fault = ""  # why the copy may be old
        self._api = api
        self._path = path
        self._query = dict(query or {})
        self._changed = changed
        self._kept = kept
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def end(self) -> None:
        """Have the watch end, without waiting for it."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            shut(connection)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End the watch, and wait at most `seconds`: a server may be about to answer."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(max(seconds, 0.0))

    def objects(self) -> list[Object]:
        """Return the objects as they are known now; they must not be changed."""
        with self._lock:
            return list(self._objects.values())

    @property
    def _ends(self) -> bool:
        return self._closed.is_set() or self._api.stop.is_set()

    def _serve(self) -> None:
        waits, version = pauses(_LONGEST_WATCH_PAUSE), ""
        while not self._ends:
            try:
                if not version:
                    version = self._list()
                started = time.monotonic()
                for later in self._watch(version):
                    version, waits = later, pauses(_LONGEST_WATCH_PAUSE)
                if time.monotonic() - started >= _SHORT_SECONDS:
                    continue  # as agreed with the server
            except ApiExpired:
                version = ""
            except UserError as error:
                self._fail(str(error))
                if not isinstance(error, ApiUnreachable):
                    version = ""  # what was refused may differ after a new list
            except Exception:  # noqa: BLE001 - one malformed object must not end the watch
                self._fail(f"internal error: {traceback.format_exc()}")
                version = ""
            self._closed.wait(next(waits))

    def _list(self) -> str:
        objects, version = self._api.all_of(self._path, self._query, self._kept)
        with self._lock:
            self._objects = {_key(body): body for body in objects}
        self.is_synced, self.fault = True, ""
        self._changed()
        return version

    def _watch(self, version: str) -> Iterator[str]:
        """Apply the changes since `version` until the server ends; yield each later version."""
        seconds = int(WATCH_SECONDS * random.uniform(0.7, 1.0))  # noqa: S311 - not a secret
        query = {
            **self._query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        for event in self._events(ApiRequest("GET", self._path, query), seconds + _GRACE_SECONDS):
            kind, body = event.get("type"), event.get("object")
            if not isinstance(body, dict):
                raise ApiUnreachable(f"watch {self._path}: an event without an object")
            if kind == "ERROR":
                message = f"watch {self._path}: {body.get('message')}"
                raise (ApiExpired if body.get("code") == HTTPStatus.GONE else ApiError)(message)
            if kind != "BOOKMARK":
                with self._lock:
                    if kind == "DELETED":
                        self._objects.pop(_key(body), None)
                    else:
                        self._objects[_key(body)] = self._kept(body)
                self._changed()
            self.fault = ""
            yield str(body["metadata"]["resourceVersion"])

    def _events(self, request: ApiRequest, seconds: float) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + seconds
        connection = self._api.open_connection(seconds)
        self._connection = connection
        try:
            with contextlib.closing(connection):
                if self._ends:
                    return
                response = self._api.send(connection, request)
                if response.status != HTTPStatus.OK:
                    decode_answer(str(request), response, response.read(_MOST_LINE_BYTES))
                while line := response.readline(_MOST_LINE_BYTES):
                    yield json.loads(line)
                    if time.monotonic() > until:  # the server was to end it
                        return
        except FAILURES as error:
            if not self._ends:
                raise ApiUnreachable(f"{request}: {error}") from error
        except ValueError as error:
            raise ApiUnreachable(f"{request}: not a line of JSON: {error}") from error
        finally:
            self._connection = None

    def _fail(self, fault: str) -> None:
        if fault != self.fault:
            sys.stderr.write(f"gpushare-node: {fault}\n")
        self.fault = fault


def _key(body: Object) -> str:
    metadata = body["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
