# SPDX-License-Identifier: Apache-2.0
"""Labels, slices and events stay current while gpushared and the API server come and go."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client, DaemonUnreachable
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.__main__ import main
from gpushare.kubernetes.api import reporter
from gpushare.kubernetes.api.labels import NodeLabels
from gpushare.kubernetes.api.reporter import NodeReporter, NodeSource
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from gpushare.quota.node_settings import NodeSetting
from tests.stack.api_server import Body, StandInApiServer
from tests.stack.node_agent import write_kubeconfig
from tests.system.waiting import wait_until
from tests.unit.kubernetes.made import GIB, STATUS, card, node

NODE = "/api/v1/nodes/n"


class Daemon:
    """Reports cards, or is away."""

    def __init__(self) -> None:
        self.rows = [card(0), card(1)]
        self.mode = "dra"
        self.is_away = False
        self.settings: dict[str, NodeSetting] = {}

    def cards(self) -> Sequence[Mapping[str, Any]]:
        if self.is_away:
            raise DaemonUnreachable("gpushared is not running: start it")
        return self.rows

    def status(self) -> Mapping[str, Any]:
        if self.is_away:
            raise DaemonUnreachable("gpushared is not running: start it")
        return {**STATUS, "kubernetes_mode": self.mode, "node_settings": dict(self.settings)}

    def set_node_setting(self, key: str, setting: NodeSetting | None) -> None:
        if setting is None:
            del self.settings[key]
        else:
            self.settings[key] = setting

    def history(self, name: str = "", since: float = 0.0, after: int = 0) -> Iterator[Any]:
        assert not name
        assert after <= since
        yield from ()

    def tenants(self, *, everything: bool = False) -> Sequence[Any]:
        assert everything
        return []


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def made(
    api: ApiServer,
    cluster: StandInApiServer,
    daemon: Daemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[NodeReporter]:
    monkeypatch.setattr(reporter, "STEP_SECONDS", 0.05)
    cluster.put(NODE, {})
    node = NodeReporter(api, daemon, "n", StatusLog(), tmp_path)
    yield node
    node.close()
    assert not node._thread.is_alive()


def devices(cluster: StandInApiServer) -> list[Body]:
    return [device for one in cluster.of(SLICES) for device in one["spec"]["devices"]]


def label(cluster: StandInApiServer, name: str = "gpushare.io/mode") -> str | None:
    found: dict[str, str] = cluster.objects[NODE]["metadata"].get("labels") or {}
    return found.get(name)


def test_gpushareds_client_is_a_source(tmp_path: Path) -> None:
    source: NodeSource = Client(tmp_path / "control.sock")
    with pytest.raises(DaemonUnreachable):
        list(source.history(after=3))


def test_slices_come_after_the_registration_and_labels_at_once(
    made: NodeReporter, cluster: StandInApiServer
) -> None:
    made.start()
    wait_until(lambda: label(cluster) == "dra")
    assert not cluster.of(SLICES)
    made.register()
    made.register()
    wait_until(lambda: len(devices(cluster)) == 2)


def test_a_card_that_is_cordoned_gets_a_taint_and_loses_it(
    made: NodeReporter, cluster: StandInApiServer, daemon: Daemon
) -> None:
    made.register()
    made.start()
    wait_until(lambda: len(devices(cluster)) == 2)
    daemon.rows = [card(0, is_schedulable=False, schedulable_reason="cordoned: ECC"), card(1)]
    wait_until(lambda: "taints" in devices(cluster)[0])
    assert devices(cluster)[0]["taints"][0]["key"] == "gpu.gpushare.io/cordoned"
    daemon.rows = [card(0), card(1)]
    wait_until(lambda: "taints" not in devices(cluster)[0])


def test_slices_that_something_deletes_come_back(
    made: NodeReporter, cluster: StandInApiServer
) -> None:
    made.register()
    made.start()
    wait_until(lambda: len(devices(cluster)) == 2 and cluster.watchers == 2)
    cluster.remove(f"{SLICES}/n-gpu.gpushare.io-0")
    wait_until(lambda: len(devices(cluster)) == 2)


def test_a_quiet_node_asks_the_api_server_nothing(
    made: NodeReporter, cluster: StandInApiServer
) -> None:
    made.step()
    asked = len(cluster.requests)
    for _ in range(5):
        made.step()
    assert len(cluster.requests) == asked


def test_a_restart_of_gpushared_is_not_seen_and_an_outage_is(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made._registered = True
    made.step()
    daemon.is_away = True
    made.step()
    assert "taints" not in devices(cluster)[0]
    monkeypatch.setattr(reporter, "OUTAGE_SECONDS", 0.0)
    made.step()
    assert {device["taints"][0]["key"] for device in devices(cluster)} == {"gpu.gpushare.io/daemon"}
    assert label(cluster) == "dra"
    daemon.is_away = False
    made.step()
    assert "taints" not in devices(cluster)[0]


def test_another_mode_has_no_slices(
    made: NodeReporter, cluster: StandInApiServer, daemon: Daemon
) -> None:
    made._registered = True
    made.step()
    assert devices(cluster)
    daemon.mode = "plugin"
    made.step()
    assert not cluster.of(SLICES)
    assert label(cluster) == "plugin"
    asked = len(cluster.requests)
    made.step()
    assert len(cluster.requests) == asked
    daemon.mode = "dra"
    made.step()
    assert devices(cluster)


def test_a_server_that_refuses_one_thing_gets_the_others_and_that_later(
    made: NodeReporter, cluster: StandInApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made._registered = True
    cluster.fault = lambda method, _path: 403 if method == "PATCH" else None
    made.step()
    made.step()
    assert devices(cluster)
    assert label(cluster) is None
    assert capsys.readouterr().err.count("labels: PATCH /api/v1/nodes/n: 403") == 1
    cluster.fault = lambda *_: None
    made.step()
    assert label(cluster) == "dra"


def test_labels_and_slices_stay_at_the_end_and_go_on_request(
    made: NodeReporter, cluster: StandInApiServer, daemon: Daemon, tmp_path: Path, api: ApiServer
) -> None:
    daemon.rows = [card(0, schedulable_bytes=GIB)]
    made._registered = True
    made.step()
    made.close()
    assert devices(cluster)
    with contextlib.closing(ApiServer(api.credentials)) as again:
        NodeReporter(again, daemon, "n", StatusLog(), tmp_path).remove()
    assert not cluster.of(SLICES)
    assert label(cluster) is None
    assert label(cluster, "cuda-major-version") is None


def test_a_row_that_is_malformed_does_not_end_the_reporter(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.rows = [{"uuid": "GPU-1"}]
    made.start()
    wait_until(lambda: "internal error" in capsys.readouterr().err)
    daemon.rows = [card(0)]
    wait_until(lambda: label(cluster) == "dra")


def test_the_pcie_roots_are_read_when_the_cards_change(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Path] = []

    def roots(root: Path) -> dict[str, str]:
        reads.append(root)
        return {card(0)["uuid"]: "pci0000:5b"}

    monkeypatch.setattr(reporter, "pcie_roots", roots)
    made._registered = True
    made.step()
    made.step()
    assert len(reads) == 1
    root = devices(cluster)[0]["attributes"]["resource.kubernetes.io/pcieRoot"]
    assert root == {"string": "pci0000:5b"}
    daemon.rows = [card(0)]
    made.step()
    assert len(reads) == 2


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


@pytest.mark.parametrize("is_away", [False, True])
def test_a_node_that_leaves_the_cluster_is_configured_by_its_file_alone(
    api: ApiServer, cluster: StandInApiServer, daemon: Daemon, is_away: bool
) -> None:
    cluster.put(NODE, {})
    NodeLabels(api, "n").write(node())
    daemon.settings["defaults.policy"] = {"value": "burst-share", "source": "node label x"}
    daemon.is_away = is_away
    NodeReporter(api, daemon, "n", StatusLog()).remove()
    assert label(cluster) is None
    assert bool(daemon.settings) is is_away


def test_labels_of_the_node_configure_gpushared_and_those_of_another_node_do_not(
    made: NodeReporter, cluster: StandInApiServer, daemon: Daemon
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


def test_a_node_that_is_deleted_keeps_its_settings(
    made: NodeReporter, cluster: StandInApiServer, daemon: Daemon
) -> None:
    """Its labels are not known then."""
    cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/wanted-mode": "shared"}}})
    made.start()
    wait_until(lambda: bool(daemon.settings))
    cluster.remove(NODE)
    wait_until(lambda: not made._nodes.objects())
    made.step()
    assert daemon.settings
