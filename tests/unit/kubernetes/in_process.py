# SPDX-License-Identifier: Apache-2.0
"""A client that asks the stand-in API server by a call: no socket, no thread, no wait."""

from __future__ import annotations

import threading
import time
from typing import Any

from gpushare.kubernetes.api.credentials import Credentials
from gpushare.kubernetes.api.server import ApiRequest, ApiServer, ApiUnreachable, refusal
from tests.stack.api_server import Body, Refused, StandInApiServer


class NoWait(threading.Event):
    """A pause that is over at once."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - threading's
        """Whether it is set."""
        return self.is_set()


class InProcessApiServer(ApiServer):
    """All of a client but the connection: conflicts, repeats and refusals are the real one's.

    A watch needs a connection: what watches is tried in tests/system/kubernetes.
    """

    def __init__(self, cluster: StandInApiServer, patience_seconds: float = 2.0) -> None:
        super().__init__(
            Credentials("http://127.0.0.1:1"), NoWait(), patience_seconds=patience_seconds
        )
        self._cluster = cluster

    def clock(self) -> float | None:
        """Return this machine's clock."""
        return time.time()

    def _once(self, request: ApiRequest) -> Body:
        cluster, text = self._cluster, str(request)
        cluster.requests.append(f"{request.method} {request.target}")
        failure = cluster.fault(request.method, request.path)
        if failure == "drop":
            raise ApiUnreachable(f"{text}: the connection was closed")
        if isinstance(failure, int):
            raise refusal(text, failure, Refused(failure, "Injected").body)
        query, data = dict(request.query or {}), request.data
        body: Any = cluster.parse(data) if data else None
        try:
            return cluster.answer(request.method, request.path, query, body)
        except Refused as refused:
            raise refusal(text, refused.code, refused.body) from refused
