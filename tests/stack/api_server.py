# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Kubernetes API server: what gpushare-node relies on of one, over HTTP or TLS.

It keeps objects with a uid and a resourceVersion, refuses a stale one, watches, ends a watch that
is too old with 410, selects by field and label, passes requests on to pods, merges patches, and
fails, delays or drops fields as a test tells it. It validates nothing else: tests check what it
keeps against the published schemas. Seen with a real one (1.36.2): labels, slices, claims and their
status, events, watches, refusals of both policies, the list and watch of pods by a label and an
empty `spec.nodeName` (one that gets a node leaves the watch as DELETED; here one that was never
selected does too). Never: a server of another version, or several.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import select
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Body = dict[str, Any]
#: Called with the method and the path of a request before it is served. It may sleep, or return a
#: status to fail with; "drop" closes the connection instead of an answer.
Fault = Callable[[str, str], int | str | None]


class Refused(Exception):
    """A Status that is not a success."""

    def __init__(self, code: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message or reason,
        }
        self.code = code


@dataclass
class StandInApiServer:
    """Objects by path; `requests` are what was asked, method and path with the query."""

    certificate: Path | None = None  # with its key; None: plain HTTP
    token: str = ""  # required of every request; empty: none
    fault: Fault = lambda _method, _path: None
    drop_fields: Callable[[Body], None] = lambda _body: None  # of what is written
    requests: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    objects: dict[str, Body] = field(default_factory=dict)
    version: int = 100
    oldest: int = 0  # versions before it are no longer watchable
    port: int = 0
    #: Of `pods/POD:PORT/proxy`: the path without `/proxy...`, and the address of what serves there.
    pods: dict[str, tuple[str, int]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _log: list[tuple[int, str, str, Body]] = field(default_factory=list)
    _watchers: dict[int, tuple[str, queue.Queue[tuple[int, str, str, Body] | None]]] = field(
        default_factory=dict
    )

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[StandInApiServer]:
        """Serve until the block ends."""
        server = _QuietServer(("127.0.0.1", self.port), _handler(self))
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        try:
            yield self
        finally:
            self.end_watches()
            server.shutdown()
            thread.join()
            server.server_close()

    # --- what tests do to it ---

    def put(self, path: str, body: Body) -> Body:
        """Store an object as another client would, created or changed."""
        with self._lock:
            before = self.objects.get(path)
            metadata = {
                "uid": before["metadata"]["uid"] if before else str(uuid.uuid4()),
                **body.get("metadata", {}),
                "name": path.rpartition("/")[2],
            }
            if "/namespaces/" in path:
                metadata["namespace"] = path.partition("/namespaces/")[2].partition("/")[0]
            return self._store(path, {**body, "metadata": metadata}, exists=before is not None)

    def remove(self, path: str) -> None:
        """Delete an object as another client would."""
        with self._lock:
            self._note("DELETED", path, self.objects.pop(path))

    def compact(self) -> None:
        """Forget all earlier versions: a watch from one of them gets 410."""
        with self._lock:
            self.oldest = self.version
            self._log.clear()

    def end_watches(self, *, expired: bool = False) -> None:
        """End all watches, with an ERROR event of 410 if `expired`."""
        with self._lock:
            for _, events in self._watchers.values():
                if expired:
                    gone = Refused(410, "Expired").body
                    events.put((0, "ERROR", "", gone))
                events.put(None)

    def of(self, collection: str) -> list[Body]:
        """Return the objects of a collection, such as `/api/v1/nodes`."""
        with self._lock:
            return [one for path, one in self.objects.items() if _is_in(path, collection)]

    @property
    def watchers(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    # --- what clients do ---

    def parse(self, content: bytes) -> Body:
        """Return the body of a request."""
        found: Body = json.loads(content)
        return found

    def answer(self, method: str, path: str, query: dict[str, str], body: Body | None) -> Body:
        """Return the answer to a request other than a watch."""
        with self._lock:
            if path == "/version":
                return {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
            if method == "POST":
                assert body is not None
                return self._create(path, body)
            if method == "GET" and path not in self.objects and _is_collection(path):
                return self._list(path, query)
            target = path.removesuffix("/status")
            before = self.objects.get(target)
            if before is None:
                raise Refused(404, "NotFound", f'"{path}" not found')
            if method == "GET":
                return before
            if method == "DELETE":
                wanted = ((body or {}).get("preconditions") or {}).get("uid")
                if wanted not in {None, before["metadata"]["uid"]}:
                    raise Refused(409, "Conflict", "the UID in the precondition does not match")
                self._note("DELETED", target, self.objects.pop(target))
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            assert body is not None
            return self._change(method, target, before, body)

    def watch(self, path: str, query: dict[str, str]) -> Iterator[Body | None]:
        """Yield the events of a watch; None in between, to see whether the client is there."""
        version = int(query.get("resourceVersion") or 0)
        until = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        events: queue.Queue[tuple[int, str, str, Body] | None] = queue.Queue()
        with self._lock:
            if version < self.oldest:
                raise Refused(410, "Expired", "too old resource version")
            for one in self._log:
                if one[0] > version and _is_in(one[2], path):
                    events.put(one)
            self._watchers[id(events)] = path, events
        try:
            while time.monotonic() < until:
                try:
                    found = events.get(timeout=0.05)
                except queue.Empty:
                    yield None
                    continue
                if found is None:
                    return
                if found[1] == "ERROR" or _selected(found[3], query):
                    yield {"type": found[1], "object": found[3]}
                elif found[1] == "MODIFIED":
                    yield {"type": "DELETED", "object": found[3]}
        finally:
            with self._lock:
                del self._watchers[id(events)]

    def _create(self, path: str, body: Body) -> Body:
        name = body["metadata"]["name"]
        place = f"{path}/{name}"
        if place in self.objects:
            raise Refused(409, "AlreadyExists", f'"{name}" already exists')
        if body["metadata"].get("resourceVersion"):
            raise Refused(422, "Invalid", "resourceVersion may not be set on create")
        return self._store(
            place,
            {**body, "metadata": {**body["metadata"], "uid": str(uuid.uuid4())}},
            exists=False,
        )

    def _change(self, method: str, path: str, before: Body, body: Body) -> Body:
        if method == "PATCH":
            body = merged(before, body)
        wanted = body["metadata"].get("resourceVersion")
        if method == "PUT" and not wanted:
            raise Refused(422, "Invalid", "resourceVersion must be specified for an update")
        if wanted != before["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", "the object has been modified")
        return self._store(path, body, exists=True)

    def _list(self, path: str, query: dict[str, str]) -> Body:
        found = [
            one
            for place, one in sorted(self.objects.items())
            if _is_in(place, path) and _selected(one, query)
        ]
        start, most = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(found)
        page = found[start : start + most]
        metadata = {"resourceVersion": str(self.version)}
        if start + most < len(found):
            metadata["continue"] = str(start + most)
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page}

    def _store(self, path: str, body: Body, *, exists: bool) -> Body:
        kept: Body = json.loads(json.dumps(body))
        self.drop_fields(kept)
        self.version += 1
        kept["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = kept
        self._note("MODIFIED" if exists else "ADDED", path, kept)
        return kept

    def _note(self, kind: str, path: str, body: Body) -> None:
        if kind == "DELETED":
            self.version += 1
            metadata = {**body["metadata"], "resourceVersion": str(self.version)}
            body = {**body, "metadata": metadata}
        event = (self.version, kind, path, body)
        self._log.append(event)
        for collection, events in self._watchers.values():
            if _is_in(path, collection):
                events.put(event)


class _QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that do not trust it, or go away."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


def merged(before: Any, change: Any) -> Any:
    """Return a JSON merge patch applied (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2 if parts[0] == "api" else 3 :]
    return len(rest) == 1 or (len(rest) == 3 and rest[0] == "namespaces")


def _is_in(path: str, collection: str) -> bool:
    """Whether `path` is an object of a collection; one of all namespaces too."""
    folder = path.rpartition("/")[0]
    if folder == collection:
        return True
    root, _, plural = collection.rpartition("/")
    return "/namespaces/" in folder and folder.startswith(root) and folder.endswith(f"/{plural}")


def _selected(one: Body, query: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels") or {}
    terms = re.findall(r"([^ ,=()]+)(?: in \(([^)]*)\)|=([^,]*))", query.get("labelSelector", ""))
    if not all(labels.get(name) in (among or equal).split(",") for name, among, equal in terms):
        return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, wanted = term.partition("=")
        value: Any = one
        for part in name.split("."):
            value = (value or {}).get(part)
        if (value or "") != wanted:
            return False
    return True


def _handler(server: StandInApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # as the real one, whose answers are not 40 ms late

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            with suppress(ConnectionError, TimeoutError, ssl.SSLError):
                self._answer()

        def _answer(self) -> None:
            split = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            server.requests.append(f"{self.command} {self.path}")
            server.tokens.append(self.headers.get("Authorization", ""))
            query = dict(parse_qsl(split.query))
            failure = server.fault(self.command, split.path)
            if failure == "drop":
                self.close_connection = True
                return
            if isinstance(failure, int):
                self._send(failure, Refused(failure, "Injected").body)
                return
            if server.token and server.tokens[-1] != f"Bearer {server.token}":
                self._send(401, Refused(401, "Unauthorized").body)
                return
            try:
                if "/proxy/" in split.path:
                    self._pass_on(*split.path.split("/proxy", 1))
                    return
                if query.get("watch"):
                    self._stream(server.watch(split.path, query))
                    return
                body = server.parse(content) if content else None
                self._send(200, server.answer(self.command, split.path, query, body))
            except Refused as refused:
                self._send(refused.code, refused.body)

        def _pass_on(self, pod: str, path: str) -> None:
            """Answer as the pod does, which gets all headers but Authorization."""
            if pod not in server.pods:
                raise Refused(503, "ServiceUnavailable", "error trying to reach service")
            headers = {name: self.headers[name] for name in self.headers}
            headers.pop("Authorization", None)
            connection = http.client.HTTPConnection(*server.pods[pod], timeout=30)
            try:
                connection.request(self.command, path, headers=headers)
                answer = connection.getresponse()
                self._write(answer.status, answer.headers["Content-Type"], answer.read())
            except OSError as error:
                raise Refused(503, "ServiceUnavailable", f"dial tcp: {error.strerror}") from error
            finally:
                connection.close()

        def _send(self, status: int, body: Body) -> None:
            self._write(status, "application/json", json.dumps(body).encode())

        def _write(self, status: int, kind: str, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, events: Iterator[Body | None]) -> None:
            first = next(events, None)  # 410 comes before the head
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk(first)
            for event in events:
                self._chunk(event)
            self.wfile.write(b"0\r\n\r\n")

        def _is_left(self) -> bool:
            """Whether the client has closed the connection."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

        def _chunk(self, event: Body | None) -> None:
            if event is None:
                if server.certificate is None and self._is_left():
                    raise ConnectionResetError
            else:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's

    return Handler
