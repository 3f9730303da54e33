# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: reserved before the kubelet is answered, shared by containers, and released."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle import claims
from gpushare.daemon.state import DaemonState
from tests.unit.daemon.test_claims import CLAIM, POD, a_node, container, device, prepare


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonState]:
    with a_node(tmp_path) as made:
        yield made


def test_a_pod_that_joins_while_its_container_is_created_is_waited_for(
    node: DaemonState, tmp_path: Path
) -> None:
    prepare(node, device(20))

    def join() -> None:
        time.sleep(0.2)
        node.decide.run(lambda: claims.set_pods(CLAIM, (POD, "ffff"), node))

    joining = threading.Thread(target=join)
    joining.start()
    assert container(node, tmp_path, pod="ffff").create(node)["mode"] == "shared"
    joining.join()
