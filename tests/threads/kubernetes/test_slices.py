# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices follow the cards, survive what others do to them, and cope with older servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpushare.kubernetes.api import slices
from gpushare.kubernetes.api.labels import NodeLabels, labels_of
from gpushare.kubernetes.api.server import ApiServer
from gpushare.kubernetes.api.slices import SLICES, NoSharedDevices, SlicePublisher
from tests.stack.api_server import Body, StandInApiServer
from tests.unit.kubernetes.made import GIB, card, node

NODE = "/api/v1/nodes/n"


@pytest.fixture
def publisher(api: ApiServer, cluster: StandInApiServer) -> SlicePublisher:
    cluster.put(NODE, {})
    return SlicePublisher(api, "n")


def devices(cluster: StandInApiServer) -> list[Body]:
    return [device for one in cluster.of(SLICES) for device in one["spec"].get("devices") or []]


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
