# SPDX-License-Identifier: Apache-2.0
"""The thread of gpushare-node that keeps labels, slices and settings current."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.__main__ import main
from gpushare.kubernetes.api import reporter
from gpushare.kubernetes.api.events import EVENTS
from gpushare.kubernetes.api.labels import NodeLabels
from gpushare.kubernetes.api.reporter import NodeReporter
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from tests.stack.api_server import StandInApiServer
from tests.stack.node_agent import write_kubeconfig
from tests.system.waiting import wait_until
from tests.unit.kubernetes.gpushared import FakeGpushared
from tests.unit.kubernetes.made import card, node
from tests.unit.kubernetes.test_reporter import NODE, devices, label

pytestmark = pytest.mark.gate


@pytest.fixture
def made(
    api: ApiServer,
    cluster: StandInApiServer,
    daemon: FakeGpushared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[NodeReporter]:
    monkeypatch.setattr(reporter, "STEP_SECONDS", 0.05)
    cluster.put(NODE, {})
    node = NodeReporter(api, daemon, "n", StatusLog(), "", tmp_path)
    yield node
    node.close()
    assert not node._thread.is_alive()


def test_slices_come_after_the_registration_and_again_and_labels_at_once(
    made: NodeReporter, cluster: StandInApiServer
) -> None:
    made.start()
    wait_until(lambda: label(cluster) == "dra")
    assert not cluster.of(SLICES)
    made.register()
    made.register()
    wait_until(lambda: len(devices(cluster)) == 2 and cluster.watchers == 2)
    cluster.remove(f"{SLICES}/n-gpu.gpushare.io-0")
    wait_until(lambda: len(devices(cluster)) == 2)


def test_a_row_that_is_malformed_does_not_end_the_reporter(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: FakeGpushared,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    daemon.rows = [{"uuid": "GPU-1"}]
    made.start()
    wait_until(lambda: "internal error" in said.getvalue())
    daemon.rows = [card(0)]
    wait_until(lambda: label(cluster) == "dra")


def test_a_node_without_a_card_says_why_in_one_event(
    made: NodeReporter, cluster: StandInApiServer, daemon: FakeGpushared
) -> None:
    rows, daemon.rows = daemon.rows, []
    daemon.warnings = ["no driver: there is no libcuda.so.1", "something else"]
    made.start()
    wait_until(lambda: bool(cluster.of(EVENTS)))
    wait_until(lambda: label(cluster) == "dra")
    daemon.rows = rows
    wait_until(lambda: label(cluster, "gpushare.io/gpu.count") == "2")
    [event] = cluster.of(EVENTS)
    assert (event["reason"], event["type"], event["count"]) == (reporter.NO_CARDS, "Warning", 1)
    assert event["message"] == "gpushared has no card: no driver: there is no libcuda.so.1"
    assert event["involvedObject"]["kind"] == "Node"


def test_what_stays_is_removed_on_request(
    api: ApiServer, cluster: StandInApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("/api/v1/nodes/n", {"metadata": {"labels": {"mine": "1"}}})
    NodeLabels(api, "n").write(node())
    SlicePublisher(api, "n").write(node(card(0)))
    kept = write_kubeconfig(tmp_path / "kubeconfig", cluster)
    options = ["--remove", "--node", "n", "--kubeconfig", str(kept)]
    monkeypatch.setattr("sys.argv", ["gpushare-node", *options])
    main()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()  # Ctrl-C ends it
    assert cluster.objects["/api/v1/nodes/n"]["metadata"]["labels"] == {"mine": "1"}
    assert not [path for path in cluster.objects if "resourceslices" in path]


def test_labels_of_the_node_configure_gpushared_and_those_of_another_node_do_not(
    made: NodeReporter, cluster: StandInApiServer, daemon: FakeGpushared
) -> None:
    cluster.put("/api/v1/nodes/m", {"metadata": {"labels": {"gpushare.io/wanted-mode": "plugin"}}})
    made.start()
    wait_until(lambda: label(cluster) == "dra")
    policy = {"gpushare.io/wanted-policy": "burst-share"}
    cluster.put(NODE, {"metadata": {"labels": policy}})
    wait_until(lambda: bool(daemon.settings))
    source = "node label gpushare.io/wanted-policy"
    assert daemon.settings == {"defaults.policy": {"value": "burst-share", "source": source}}
    daemon.is_away = True
    cluster.put(NODE, {})
    daemon.is_away = False
    wait_until(lambda: not daemon.settings)
    # Of a node that is deleted the labels are not known.
    cluster.put(NODE, {"metadata": {"labels": policy}})
    wait_until(lambda: bool(daemon.settings))
    cluster.remove(NODE)
    wait_until(lambda: not made._nodes.objects())
    made.step()
    assert daemon.settings
