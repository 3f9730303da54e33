# SPDX-License-Identifier: Apache-2.0
"""A dashboard that listens, in a thread of the test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.dashboard.server import DashboardOptions, opened
from gpushare.listen_address import Address
from gpushare.unix_http import UnixSocketConnection


@dataclass
class ServedDashboard:
    """`address` is what the command prints."""

    address: str
    options: DashboardOptions

    @property
    def token(self) -> str:
        return self.address.partition("#token=")[2]

    @property
    def port(self) -> int:
        return int(self.address.split("/")[2].rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        path = self.options.listen.path
        if path is not None:
            return UnixSocketConnection(path, 30)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Return status, headers and body; `headers` replace the token."""
        if headers is None:
            headers = {"Authorization": f"Bearer {self.token}"}
        link = self.connection()
        try:
            link.request(method, path, headers=dict(headers))
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            link.close()

    def json(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)


@contextmanager
def served(options: DashboardOptions) -> Iterator[ServedDashboard]:
    with opened(options) as (server, address):
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield ServedDashboard(address, options)
        finally:
            server.stop()
            thread.join()


LOOPBACK = Address(host="127.0.0.1", port=0)


def options_of(socket: Path, history: Path, **more: Any) -> DashboardOptions:
    return DashboardOptions(**{"listen": LOOPBACK, "socket": socket, "history": history, **more})
