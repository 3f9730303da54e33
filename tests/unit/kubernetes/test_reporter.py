# SPDX-License-Identifier: Apache-2.0
"""Slices, labels and events: what the node reports, once, and nothing about others' pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import DaemonUnreachable
from gpushare.events import KEPT
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api import reporter, slices
from gpushare.kubernetes.api.events import (
    BURST,
    COUNT_SECONDS,
    EVENTS,
    PERIOD_SECONDS,
    TEXTS,
    EventRecorder,
    EventReporter,
    KubernetesEvent,
    PodContainer,
    message_of,
)
from gpushare.kubernetes.api.labels import (
    CHANGED,
    IGNORED,
    IN_USE,
    OPERATOR_LABEL,
    NodeSettings,
)
from gpushare.kubernetes.api.reporter import NodeReporter
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.slices import SLICES, NoSharedDevices, SlicePublisher
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.node_settings import ALLOWED_MODE, NODE_MODE, POLICY, RELEASED, NodeSetting
from gpushare.quota.request import QuotaRequest
from tests.stack.api_server import Body, StandInApiServer
from tests.unit.kubernetes.gpushared import NOW, Clock, FakeGpushared
from tests.unit.kubernetes.made import GIB, card, node
from tests.unit.kubernetes.test_node_settings import WANTED_POLICY
from tests.unit.rows import tenant_card, tenant_row

NODE = "/api/v1/nodes/n"


@pytest.fixture
def made(
    api: ApiServer, cluster: StandInApiServer, daemon: FakeGpushared, tmp_path: Path
) -> NodeReporter:
    cluster.put(NODE, {})
    reporter = NodeReporter(api, daemon, "n", StatusLog(), "", tmp_path)
    reporter._registered = True
    return reporter


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
    cluster.fault = lambda method, _path: 403 if method == "PATCH" else None
    made.step()
    made.step()
    assert devices(cluster)
    assert label(cluster) is None
    assert capsys.readouterr().err.count("labels: PATCH /api/v1/nodes/n: 403") == 1
    cluster.fault = lambda *_: None
    made.step()
    assert label(cluster) == "dra"


class Labelled:
    """A node, gpushared, and what keeps the one as the other says."""

    def __init__(self, api: ApiServer, cluster: StandInApiServer) -> None:
        self.api, self.cluster, self.daemon = api, cluster, FakeGpushared()
        self.chart_mode = "dra"
        self.restart()

    def restart(self) -> None:
        """Have a new gpushare-node follow."""
        recorder = EventRecorder(self.api, "n")
        clock = 1_780_000_000.0
        self.following = NodeSettings(self.daemon, recorder, self.chart_mode, lambda: clock)

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
                "tenants": len(self.daemon.containers),
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


def test_a_label_that_means_mps_says_what_selects_it(labelled: Labelled) -> None:
    label = {"ack.node.gpu.schedule": "mps"}
    assert labelled.apply(label)[ALLOWED_MODE]["value"] == "shared"
    [event] = labelled.events(IGNORED)
    assert event["message"].startswith(
        "node label ack.node.gpu.schedule=mps: the cards are shared, and not through MPS: "
    )
    assert "Set backend: mps for the cards in gpushare.yaml" in event["message"]
    labelled.cluster.objects.clear()
    labelled.restart()
    labelled.daemon.rows = [card(0, mode="mps"), card(1, mode="mps")]
    labelled.apply(label)
    assert labelled.events(IGNORED) == []


def test_a_setting_that_gpushared_refuses_is_an_event_and_tried_again(labelled: Labelled) -> None:
    labelled.daemon.refuses = True
    assert labelled.step(wanted_policy="burst-share") == {}
    [event] = labelled.events(IGNORED)
    assert "not allowed on this node" in event["message"]
    labelled.daemon.refuses = False
    assert labelled.step(wanted_policy="burst-share").keys() == {POLICY}


def test_a_mode_that_the_pod_of_gpushare_node_does_not_have_is_refused_and_taken_back(
    labelled: Labelled,
) -> None:
    assert labelled.step(wanted_mode="dra")[NODE_MODE]["value"] == "dra"
    labelled.chart_mode = "annotations"
    labelled.restart()
    assert labelled.step(wanted_mode="dra", wanted_policy="burst-share").keys() == {POLICY}
    [event] = labelled.events(IGNORED)
    assert event["message"] == (
        "node label gpushare.io/wanted-mode=dra: gpushare-node has the folders and permissions of "
        "the chart's mode, annotations. Set the mode of the chart, or remove the label. "
        "Nothing was changed."
    )
    assert labelled.step(wanted_mode="plugin") == {}
    assert labelled.step(wanted_mode="annotations")[NODE_MODE]["value"] == "annotations"


@pytest.mark.parametrize("why", ["paused-for-driver-upgrade", "paused-for-mig-change"])
def test_the_gpu_operators_label_makes_gpushared_let_go_of_the_driver(
    labelled: Labelled, why: str
) -> None:
    assert labelled.apply({OPERATOR_LABEL: "true"}) == {}
    source = f"node label {OPERATOR_LABEL}={why}"
    expected = {RELEASED: {"value": "yes", "source": source}}
    assert labelled.apply({OPERATOR_LABEL: why}) == expected
    assert not labelled.events(IN_USE)
    labelled.daemon.containers = [{}, {}]
    labelled.apply({OPERATOR_LABEL: why})
    [event] = labelled.events(IN_USE)
    assert event["type"] == "Warning"
    assert event["message"].startswith("2 containers of gpushare use the driver, which cannot be")
    assert labelled.apply({OPERATOR_LABEL: "true"}) == {}
    messages = [one["message"] for one in labelled.events(CHANGED)]
    assert messages == [
        f"gpushared does not hold the driver any more: {source}",
        f"gpushared may use the driver again: {OPERATOR_LABEL}",
    ]


def test_a_pod_that_ends_for_a_driver_upgrade_first_releases_the_driver_and_its_cards(
    made: NodeReporter,
    cluster: StandInApiServer,
    daemon: FakeGpushared,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made.step()
    labels = {OPERATOR_LABEL: "paused-for-driver-upgrade"}
    cluster.put(NODE, {"metadata": {"labels": labels}})
    monkeypatch.setattr(made._nodes, "objects", lambda: [cluster.objects[NODE]])
    set_node_setting = daemon.set_node_setting

    def release(key: str, setting: NodeSetting | None) -> None:
        set_node_setting(key, setting)
        reason = "driver: the driver cannot be used"
        daemon.rows = [card(0, is_schedulable=False, schedulable_reason=reason)]

    monkeypatch.setattr(daemon, "set_node_setting", release)
    made.close()
    assert daemon.settings.keys() == {RELEASED}
    assert [device["taints"][0]["key"] for device in devices(cluster)] == ["gpu.gpushare.io/driver"]


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


ABOUT = PodContainer("team-a", "train-0", "uid-1", "train")


def tenant(key: str, namespace: str, pod: str, uid: str, container: str) -> dict[str, Any]:
    about = {"namespace": namespace, "name": pod, "uid": uid, "container": container}
    part = tenant_card(uuid="GPU-1", throttled={"60s": 0.0})
    name = f"{namespace}/{pod}/{container}"
    return dict(tenant_row(name, key=key, pod=about, denied_allocations=0, cards=[part]))


@pytest.fixture
def observed(daemon: FakeGpushared) -> FakeGpushared:
    daemon.containers.append(tenant("k1", "team-a", "train-0", "uid-1", "train"))
    return daemon


@pytest.fixture
def recorder(api: ApiServer, clock: Clock) -> EventRecorder:
    return EventRecorder(api, "n", clock)


@pytest.fixture
def teller(observed: FakeGpushared, recorder: EventRecorder) -> EventReporter:
    return EventReporter(observed, recorder, lambda: NOW)


def events(cluster: StandInApiServer, namespace: str = "team-a") -> list[Body]:
    return cluster.of(path_of(EVENTS, namespace=namespace))


def said(cluster: StandInApiServer) -> list[str]:
    return [one["message"] for one in events(cluster)]


def test_an_event_names_pod_and_container(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    observed.happens("over-quota-frozen", used_bytes=6 * GIB, limit_bytes=4 * GIB)
    teller.step()
    (made,) = events(cluster)
    assert made["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "train-0",
        "uid": "uid-1",
    }
    assert (made["reason"], made["type"], made["count"]) == ("GpuOverQuota", "Warning", 1)
    assert made["message"] == (
        "container train: used 6 GiB of GPU memory, over its limit of 4 GiB, and was frozen"
    )
    assert made["source"] == {"component": "gpushare", "host": "n"}
    assert made["firstTimestamp"] == "2026-05-28T20:26:41Z"


def test_a_restart_reports_nothing_twice(
    observed: FakeGpushared, recorder: EventRecorder, cluster: StandInApiServer, api: ApiServer
) -> None:
    observed.happens("tenant-killed", reason="far over its quota")
    EventReporter(observed, recorder, lambda: NOW + 3600).step()
    assert not events(cluster), "it is long past"
    EventReporter(observed, recorder, lambda: NOW).step()
    EventReporter(observed, EventRecorder(api, "n"), lambda: NOW).step()
    assert len(events(cluster)) == 1


def test_a_lost_card_is_told_to_every_pod_on_it(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    observed.containers.append(tenant("k2", "team-b", "serve-0", "uid-2", "serve"))
    observed.containers.append(tenant("k3", "team-b", "idle-0", "uid-3", "idle"))
    observed.containers[2]["cards"][0]["uuid"] = "GPU-2"
    observed.happens("card-unhealthy", key="", card="GPU-1", reason="XID 79")
    teller.step()
    assert said(cluster) == ["container train: a card of this container is unhealthy: XID 79"]
    assert [one["involvedObject"]["name"] for one in events(cluster, "team-b")] == ["serve-0"]


def test_pods_of_other_namespaces_are_never_named(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    observed.containers.append(tenant("k2", "payroll", "salary-0", "uid-2", "secret"))
    observed.containers.append(tenant("k3", "team-a", "serve-0", "uid-3", "serve"))
    reason = "payroll/salary-0/secret and payroll/salary-0 lack memory; team-a/serve-0 does not"
    observed.happens("tenant-killed", reason=reason)
    teller.step()
    (message,) = said(cluster)
    assert message == (
        "container train: all processes were killed: another container and another container "
        "lack memory; team-a/serve-0 does not"
    )


def test_a_refused_allocation_is_reported_when_it_happens(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    observed.containers[0]["denied_allocations"] = 7  # before the first look
    teller.step()
    assert not events(cluster)
    observed.containers[0]["denied_allocations"] = 8
    teller.step()
    teller.step()
    (message,) = said(cluster)
    assert message == (
        "container train: an allocation of GPU memory was refused: "
        "it would exceed the quota of 4 GiB"
    )
    observed.containers[0]["denied_allocations"] = 0  # gpushared counts anew
    teller.step()
    assert len(events(cluster)) == 1


def test_a_container_that_requests_no_gpu_is_reported_only_where_its_image_wants_one(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    for visible in (None, "all"):
        reason = resolve_request(QuotaRequest(), visible=visible).why
        observed.happens("tenant-not-allocated", reason=reason, notes=())
    teller.step()
    (message,) = said(cluster)
    assert message.startswith(
        'container train: NVIDIA_VISIBLE_DEVICES="all" alone requests no GPU; to get one, add'
    )


def test_a_container_that_waits_for_long_is_reported_once_each_time(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    compute = observed.containers[0]["cards"][0]["compute"]
    for ratio in (0.7, 0.7, 0.1, None, 0.9):
        compute["throttled"]["60s"] = ratio
        teller.step()
    assert said(cluster) == [
        f"container train: waited for the card for {percent} % of the last minute: its compute "
        "share is 30 %"
        for percent in (70, 90)
    ]


def test_the_same_event_again_raises_a_count_that_is_written_now_and_then(
    recorder: EventRecorder, cluster: StandInApiServer, clock: Clock
) -> None:
    for number in range(50):
        recorder.record(event(at=NOW + number, number=str(number)))
        recorder.flush()
    (made,) = events(cluster)
    assert made["count"] == 1
    assert len(cluster.requests) == 1
    clock.now += COUNT_SECONDS
    recorder.flush()
    recorder.flush()
    (made,) = events(cluster)
    assert (made["count"], made["lastTimestamp"]) == (50, "2026-05-28T20:27:29Z")
    assert len(cluster.requests) == 2


def event(
    message: str = "m", about: PodContainer = ABOUT, at: float = NOW, number: str = "1"
) -> KubernetesEvent:
    return KubernetesEvent(about, "GpuFrozen", "Warning", message, at, number)


def test_a_pod_that_causes_many_events_is_bounded_and_others_are_not(
    recorder: EventRecorder, cluster: StandInApiServer, clock: Clock
) -> None:
    for number in range(100):
        recorder.record(event(f"message {number}"))
    assert len(events(cluster)) == BURST
    assert recorder.suppressed == 100 - BURST
    recorder.record(event(about=PodContainer("team-b", "serve", "uid-2", "c")))
    assert len(events(cluster, "team-b")) == 1
    clock.now += PERIOD_SECONDS
    recorder.record(event("later"))
    recorder.record(event("too much again"))
    assert len(events(cluster)) == BURST + 1


def test_what_could_not_be_reported_is_reported_later(
    teller: EventReporter, observed: FakeGpushared, cluster: StandInApiServer
) -> None:
    observed.happens("tenant-frozen", reason="a")
    observed.happens("tenant-thawed", by="operator")
    answers: list[int | None] = [None, 403]
    cluster.fault = lambda *_: answers.pop(0) if answers else None
    with pytest.raises(Exception, match="403"):
        teller.step()
    observed.is_away = True
    with pytest.raises(DaemonUnreachable):
        teller.step()
    observed.is_away = False
    teller.step()
    assert [one["reason"] for one in events(cluster)] == ["GpuFrozen", "GpuResumed"]
    assert [one["count"] for one in events(cluster)] == [1, 1]


@pytest.mark.parametrize("name", TEXTS)
def test_an_event_of_another_version_of_gpushared_still_has_a_message(name: str) -> None:
    message = message_of(TEXTS[name], {}, "c")
    assert message.startswith("container c:")
    assert "{" not in message
    assert name in KEPT
