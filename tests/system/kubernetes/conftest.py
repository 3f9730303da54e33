# SPDX-License-Identifier: Apache-2.0
"""The chart, by the real helm and kubectl, and objects by the published schemas of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes.api.credentials import Credentials
from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer
from tests.stack.certificate import write_certificate


@pytest.fixture
def cluster() -> Iterator[StandInApiServer]:
    """An API server over plain HTTP."""
    with StandInApiServer().running() as server:
        yield server


@pytest.fixture
def api(cluster: StandInApiServer) -> Iterator[ApiServer]:
    """A client of the cluster."""
    client = ApiServer(Credentials(cluster.url), None)
    yield client
    client.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for 127.0.0.1 that signs itself, and its key."""
    return write_certificate(tmp_path_factory.mktemp("tls"))
