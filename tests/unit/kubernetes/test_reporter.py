# SPDX-License-Identifier: Apache-2.0
"""Labels, slices and settings stay current while gpushared and the API server come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import pytest

from gpushare.client import DaemonUnreachable
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api import reporter, slices
from gpushare.kubernetes.api.events import EVENTS, EventRecorder
from gpushare.kubernetes.api.labels import CHANGED, IGNORED, NodeLabels, NodeSettings, labels_of
from gpushare.kubernetes.api.reporter import NodeReporter
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.slices import SLICES, NoSharedDevices, SlicePublisher
from gpushare.quota.node_settings import ALLOWED_MODE, POLICY, NodeSetting
from tests.stack.api_server import Body, StandInApiServer
from tests.unit.kubernetes.gpushared import FakeGpushared
from tests.unit.kubernetes.made import GIB, card, node
from tests.unit.kubernetes.test_node_settings import WANTED_POLICY

NODE = "/api/v1/nodes/n"


@pytest.fixture
def made(
    api: ApiServer, cluster: StandInApiServer, daemon: FakeGpushared, tmp_path: Path
) -> NodeReporter:
    cluster.put(NODE, {})
    return NodeReporter(api, daemon, "n", StatusLog(), tmp_path)


def devices(cluster: StandInApiServer) -> list[Body]:
    return [device for one in cluster.of(SLICES) for device in one["spec"].get("devices") or []]


def label(cluster: StandInApiServer, name: str = "gpushare.io/mode") -> str | None:
    found: dict[str, str] = cluster.objects[NODE]["metadata"].get("labels") or {}
    return found.get(name)


def test_a_restart_of_gpushared_is_not_seen_and_an_outage_is(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: FakeGpushared,
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
    made: NodeReporter, cluster: StandInApiServer, daemon: FakeGpushared
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


def test_the_pcie_roots_are_read_when_the_cards_change(
    made: NodeReporter, cluster: StandInApiServer, daemon: FakeGpushared
) -> None:
    made._registered = True
    with mock.patch.object(reporter, "pcie_roots") as roots:
        roots.return_value = {card(0)["uuid"]: "pci0000:5b"}
        made.step()
        made.step()
        roots.assert_called_once()
        daemon.rows = [card(0)]
        made.step()
        assert roots.call_count == 2
    root = devices(cluster)[0]["attributes"]["resource.kubernetes.io/pcieRoot"]
    assert root == {"string": "pci0000:5b"}


@pytest.mark.parametrize("is_away", [False, True])
def test_a_node_that_leaves_the_cluster_is_configured_by_its_file_alone(
    api: ApiServer, cluster: StandInApiServer, daemon: FakeGpushared, is_away: bool
) -> None:
    cluster.put(NODE, {})
    NodeLabels(api, "n").write(node())
    daemon.settings["defaults.policy"] = {"value": "burst-share", "source": "node label x"}
    daemon.is_away = is_away
    NodeReporter(api, daemon, "n", StatusLog()).remove()
    assert label(cluster) is None
    assert bool(daemon.settings) is is_away


class Labelled:
    """A node, gpushared, and what keeps the one as the other says."""

    def __init__(self, api: ApiServer, cluster: StandInApiServer) -> None:
        self.api, self.cluster, self.daemon = api, cluster, FakeGpushared()
        self.restart()

    def restart(self) -> None:
        """Have a new gpushare-node follow."""
        recorder = EventRecorder(self.api, "n")
        self.following = NodeSettings(self.daemon, recorder, lambda: 1_780_000_000.0)

    def step(self, **labels: str) -> dict[str, NodeSetting]:
        """Label the node, apply the labels twice, and return the settings of gpushared."""
        names = {key.replace("_", "-"): value for key, value in labels.items()}
        return self.apply({f"gpushare.io/{name}": value for name, value in names.items()})

    def apply(self, labels: Mapping[str, str]) -> dict[str, NodeSetting]:
        node = self.cluster.put(NODE, {"metadata": {"labels": dict(labels)}})
        for _ in range(2):
            status = {
                "accepts_node_labels": self.daemon.accepts,
                "node_settings": {**self.daemon.settings},
            }
            self.following.apply(node, status)
        return self.daemon.settings

    def events(self, reason: str) -> list[Body]:
        return [one for one in self.cluster.of(EVENTS) if one["reason"] == reason]


@pytest.fixture
def labelled(api: ApiServer, cluster: StandInApiServer) -> Labelled:
    return Labelled(api, cluster)


def test_labels_are_applied_once_and_reported_on_the_node(labelled: Labelled) -> None:
    assert labelled.step(wanted_policy="burst-share") == {
        POLICY: {"value": "burst-share", "source": f"node label {WANTED_POLICY}"}
    }
    assert labelled.daemon.requests == 1
    [event] = labelled.events(CHANGED)
    assert event["type"] == "Normal"
    assert event["message"].startswith(
        f"defaults.policy is burst-share, by the node label {WANTED_POLICY}"
    )
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
        "uid": labelled.cluster.objects[NODE]["metadata"]["uid"],
    }


def test_without_the_label_gpushare_yaml_sets_it_again(labelled: Labelled) -> None:
    labelled.step(wanted_policy="burst-share", wanted_mode="shared")
    assert labelled.step(wanted_mode="shared").keys() == {ALLOWED_MODE}
    assert labelled.step() == {}
    assert len(labelled.events(CHANGED)) == 4


def test_a_wrong_label_is_one_event_and_no_change(labelled: Labelled) -> None:
    before = dict(labelled.step(wanted_policy="burst-share"))
    assert labelled.step(wanted_policy="burst") == before
    labelled.restart()
    assert labelled.step(wanted_policy="burst") == before
    [event] = labelled.events(IGNORED)
    assert event["type"] == "Warning"
    assert event["count"] == 1
    assert event["message"] == (
        "node label gpushare.io/wanted-policy=burst: not a valid value. Write fixed-share, "
        "burst-share, best-effort or native-burst-share. Nothing was changed."
    )
    assert labelled.step(wanted_policy="best-effort")[POLICY]["value"] == "best-effort"


def test_a_setting_that_gpushared_refuses_is_an_event_and_tried_again(labelled: Labelled) -> None:
    labelled.daemon.refuses = True
    assert labelled.step(wanted_policy="burst-share") == {}
    [event] = labelled.events(IGNORED)
    assert "not allowed on this node" in event["message"]
    labelled.daemon.refuses = False
    assert labelled.step(wanted_policy="burst-share").keys() == {POLICY}


def test_a_gpushared_that_is_away_is_asked_again_later(labelled: Labelled) -> None:
    labelled.daemon.is_away = True
    with pytest.raises(DaemonUnreachable):
        labelled.step(wanted_policy="burst-share")
    labelled.daemon.is_away = False
    assert labelled.step(wanted_policy="burst-share").keys() == {POLICY}
    assert not labelled.events(IGNORED)


def test_a_node_that_accepts_no_labels_is_left_alone(labelled: Labelled) -> None:
    labelled.daemon.accepts = False
    assert labelled.step(wanted_policy="burst", wanted_mode="shared") == {}
    assert not labelled.cluster.of(EVENTS)


@pytest.fixture
def publisher(api: ApiServer, cluster: StandInApiServer) -> SlicePublisher:
    cluster.put(NODE, {})
    return SlicePublisher(api, "n")


def pools(cluster: StandInApiServer) -> list[tuple[int, int]]:
    found = [one["spec"]["pool"] for one in cluster.of(SLICES)]
    return [(pool["generation"], pool["resourceSliceCount"]) for pool in found]


def test_a_slice_belongs_to_its_node(publisher: SlicePublisher, cluster: StandInApiServer) -> None:
    publisher.write(node(card(0), card(1, is_schedulable=False)))
    (made,) = cluster.of(SLICES)
    assert made["metadata"]["name"] == "n-gpu.gpushare.io-0"
    assert made["metadata"]["ownerReferences"][0]["uid"] == cluster.objects[NODE]["metadata"]["uid"]
    assert (made["spec"]["nodeName"], made["spec"]["pool"]["name"]) == ("n", "n")
    assert pools(cluster) == [(1, 1)]


def test_what_has_not_changed_is_not_written(
    publisher: SlicePublisher, cluster: StandInApiServer, api: ApiServer
) -> None:
    publisher.write(node())
    before, asked = cluster.version, len(cluster.requests)
    publisher.write(node())
    assert len(cluster.requests) == asked, "not even read"
    SlicePublisher(api, "n").write(node())
    assert cluster.version == before, "a restart changes nothing"


def test_a_large_node_has_several_slices_of_one_generation(
    publisher: SlicePublisher, cluster: StandInApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "DEVICES_MOST", 2)
    publisher.write(node(*(card(index) for index in range(5))))
    assert pools(cluster) == [(1, 3)] * 3
    publisher.write(node(*(card(index) for index in range(3))))
    assert pools(cluster) == [(2, 2)] * 2
    assert len(devices(cluster)) == 3
    publisher.write(node(*(card(index) for index in range(5))))
    assert pools(cluster) == [(3, 3)] * 3


def test_a_slice_of_an_earlier_version_is_replaced_and_others_stay(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    pool = {"name": "n", "generation": 7, "resourceSliceCount": 1}
    ours = {"driver": "gpu.gpushare.io", "nodeName": "n", "pool": pool, "devices": []}
    cluster.put(f"{SLICES}/old", {"spec": ours})
    cluster.put(f"{SLICES}/other-node", {"spec": {**ours, "nodeName": "m"}})
    cluster.put(f"{SLICES}/other-driver", {"spec": {**ours, "driver": "gpu.nvidia.com"}})
    publisher.write(node())
    assert {one["metadata"]["name"] for one in cluster.of(SLICES)} == {
        "other-node",
        "other-driver",
        "n-gpu.gpushare.io-0",
    }
    assert cluster.objects[f"{SLICES}/n-gpu.gpushare.io-0"]["spec"]["pool"]["generation"] == 8


def test_a_conflict_is_resolved_by_reading_again(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    path = f"{SLICES}/n-gpu.gpushare.io-0"
    times = [1, 2]

    def touch(method: str, _path: str) -> None:
        if method == "PUT" and times:
            times.pop()
            cluster.put(path, cluster.objects[path])

    cluster.fault = touch
    publisher.write(node(card(schedulable_bytes=GIB)))
    assert devices(cluster)[0]["capacity"]["memory"]["value"] == "1Gi"
    assert not times


def dropping(*fields: str) -> Callable[[Body], None]:
    """Return a server that does not know some fields of a device."""

    def drop(body: Body) -> None:
        for device in body.get("spec", {}).get("devices") or []:
            for name in fields:
                device.pop(name, None)

    return drop


def test_where_taints_are_dropped_the_card_is_left_out(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    cluster.drop_fields = dropping("taints")
    lost = card(1, is_schedulable=False, schedulable_reason="unhealthy")
    publisher.write(node(card(0), lost))
    assert [device["attributes"]["index"] for device in devices(cluster)] == [{"int": 0}]
    before = cluster.version
    publisher.write(node(card(0), lost))
    assert cluster.version == before
    publisher.write(node(card(0), card(1)))
    assert len(devices(cluster)) == 2


def test_where_cards_cannot_be_shared_nothing_is_offered_and_the_gate_is_named(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    cluster.drop_fields = dropping("allowMultipleAllocations")
    with pytest.raises(NoSharedDevices, match="Set the feature gate DRAConsumableCapacity"):
        publisher.write(node())
    assert not cluster.of(SLICES)
    before = cluster.version
    publisher.verify()
    with pytest.raises(NoSharedDevices):
        publisher.write(node())
    assert cluster.version == before, "it does not write and delete slices again and again"
    cluster.drop_fields = lambda _body: None
    publisher.retry()
    publisher.write(node())
    assert len(devices(cluster)) == 1


def test_a_cluster_without_this_api_is_named(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    cluster.fault = lambda _method, path: 404 if path == SLICES else None
    with pytest.raises(NoSharedDevices, match=r"Upgrade to Kubernetes 1\.34"):
        publisher.write(node())
    publisher.remove()


@pytest.mark.parametrize("length", [1, 63, 230, 253])
def test_a_slice_has_a_valid_name_for_any_node(api: ApiServer, length: int) -> None:
    name = SlicePublisher(api, "n" * length)._name(3)
    assert len(name) <= 253
    assert name.endswith("-gpu.gpushare.io-3")
    assert name != SlicePublisher(api, "n" * (length - 1) + "m")._name(3)


def test_labels_are_written_once_and_those_of_others_stay(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {"metadata": {"labels": {"zone": "a", "gpushare.io/gpu.count": "9"}}})
    labels = NodeLabels(api, "n")
    labels.write(node())
    labels.write(node())
    kept = cluster.objects[NODE]["metadata"]["labels"]
    assert kept == {"zone": "a", **labels_of(node())}
    assert len(cluster.requests) == 1


def test_a_label_that_is_no_longer_offered_is_removed(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {"metadata": {"labels": {"zone": "a"}}})
    labels = NodeLabels(api, "n")
    labels.write(node())
    labels.write(node(driver_version=""))
    assert "gpushare.io/cuda.driver-version.full" not in labels_on(cluster)
    labels.remove()
    assert labels_on(cluster) == {"zone": "a"}


def test_a_label_that_something_else_changed_is_written_again(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {})
    labels = NodeLabels(api, "n")
    labels.write(node())
    cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/mode": "other"}}})
    labels.write(node())
    assert labels_on(cluster)["gpushare.io/mode"] == "other", "not compared each time"
    labels.verify()
    labels.write(node())
    assert labels_on(cluster) == labels_of(node())


def labels_on(cluster: StandInApiServer) -> dict[str, str]:
    found: dict[str, str] = cluster.objects[NODE]["metadata"].get("labels") or {}
    return found
