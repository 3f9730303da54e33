# SPDX-License-Identifier: Apache-2.0
"""A stand-in API server, and clients of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes.api.credentials import Credentials
from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer

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
    folder = tmp_path_factory.mktemp("tls")
    key, file = folder / "key.pem", folder / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=stand-in", "-keyout", key, "-out", file),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + key.read_text())
    return file
