# SPDX-License-Identifier: Apache-2.0
"""A stand-in API server with clients of it, over real connections, and a kubelet's folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes.api.credentials import Credentials
from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer
from tests.stack.certificate import write_certificate
from tests.unit.kubernetes.gpushared import Clock, FakeGpushared

Connect = Callable[..., ApiServer]


@pytest.fixture
def cluster() -> Iterator[StandInApiServer]:
    """An API server over plain HTTP."""
    with StandInApiServer().running() as server:
        yield server


@pytest.fixture
def connect(cluster: StandInApiServer) -> Iterator[Connect]:
    """Return a client of the cluster, which is stopped at the end."""
    clients = []

    def made(**settings: float) -> ApiServer:
        clients.append(ApiServer(Credentials(cluster.url), None, **settings))
        return clients[-1]

    yield made
    for client in clients:
        client.close()


@pytest.fixture
def api(connect: Connect) -> ApiServer:
    """A client of the cluster."""
    return connect(answer_seconds=5.0, patience_seconds=10.0)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for 127.0.0.1 that signs itself, and its key."""
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kubelet's folder, whose path is short: a socket's is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made)


@pytest.fixture
def daemon() -> FakeGpushared:
    return FakeGpushared()


@pytest.fixture
def clock() -> Clock:
    return Clock()
