# SPDX-License-Identifier: Apache-2.0
"""A copy of some objects that a watch keeps current, on a thread of its own.

Source: Kubernetes API concepts, "Efficient detection of changes": list, then watch from that
resourceVersion; a bookmark moves it on; after 410 the list is read again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.kubernetes.api.server import (
    FAILURES,
    ApiError,
    ApiExpired,
    ApiRequest,
    ApiServer,
    ApiUnreachable,
    Object,
    Query,
    decode_answer,
    pauses,
    shut,
)

#: The server ends a watch after this time; each node takes another part of it.
WATCH_SECONDS: Final = 300
_GRACE_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 2.0
_MOST_LINE_BYTES: Final = 8 << 20
_LONGEST_PAUSE: Final = 30.0
_SHORT_SECONDS: Final = 1.0  # a watch that ends earlier is begun again after a pause


class WatchedObjects:
    """The objects at `path` that `query` selects; `changed` is called after each change.

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
        watch_seconds: int = WATCH_SECONDS,
    ) -> None:
        self.is_synced = False
        self.fault = ""  # why the copy may be old
        self._api = api
        self._path = path
        self._query = dict(query or {})
        self._changed = changed
        self._watch_seconds = watch_seconds
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
        waits, version = pauses(_LONGEST_PAUSE), ""
        while not self._ends:
            try:
                if not version:
                    version = self._list()
                started = time.monotonic()
                for later in self._watch(version):
                    version, waits = later, pauses(_LONGEST_PAUSE)
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
        found, version = self._api.all_of(self._path, self._query)
        with self._lock:
            self._objects = {_key(one): one for one in found}
        self.is_synced, self.fault = True, ""
        self._changed()
        return version

    def _watch(self, version: str) -> Iterator[str]:
        """Apply the changes since `version` until the server ends; yield each later version."""
        seconds = int(self._watch_seconds * random.uniform(0.7, 1.0))  # noqa: S311 - not a secret
        query = {
            **self._query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(seconds, 1)),
        }
        for event in self._events(ApiRequest("GET", self._path, query), seconds + _GRACE_SECONDS):
            kind, one = event.get("type"), event.get("object")
            if not isinstance(one, dict):
                raise ApiUnreachable(f"watch {self._path}: an event without an object")
            if kind == "ERROR":
                message = f"watch {self._path}: {one.get('message')}"
                raise (ApiExpired if one.get("code") == HTTPStatus.GONE else ApiError)(message)
            if kind != "BOOKMARK":
                with self._lock:
                    if kind == "DELETED":
                        self._objects.pop(_key(one), None)
                    else:
                        self._objects[_key(one)] = one
                self._changed()
            self.fault = ""
            yield str(one["metadata"]["resourceVersion"])

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


def _key(one: Object) -> str:
    metadata = one["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
