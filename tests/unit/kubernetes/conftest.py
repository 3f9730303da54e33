# SPDX-License-Identifier: Apache-2.0
"""An API server and gpushared in this process, and a clock that a test moves."""

from __future__ import annotations

import pytest

from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer
from tests.unit.kubernetes.gpushared import Clock, FakeGpushared
from tests.unit.kubernetes.in_process import InProcessApiServer


@pytest.fixture
def cluster() -> StandInApiServer:
    return StandInApiServer()


@pytest.fixture
def api(cluster: StandInApiServer) -> ApiServer:
    """A client of the cluster."""
    return InProcessApiServer(cluster)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def daemon() -> FakeGpushared:
    return FakeGpushared()
