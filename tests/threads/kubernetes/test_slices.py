# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices follow the cards, survive what others do to them, and cope with older servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpushare.kubernetes.api import slices
from gpushare.kubernetes.api.server import ApiConflict, ApiServer
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


def test_a_change_raises_the_generation(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    publisher.write(node(card(schedulable_bytes=100 * GIB)))
    assert pools(cluster) == [(2, 1)]
    assert devices(cluster)[0]["capacity"]["memory"]["value"] == "100Gi"


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


def test_slices_that_the_kubelet_deleted_come_back(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    cluster.remove(f"{SLICES}/n-gpu.gpushare.io-0")
    publisher.verify()
    publisher.write(node())
    assert len(devices(cluster)) == 1


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


def test_a_conflict_that_never_ends_is_an_error(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    path = f"{SLICES}/n-gpu.gpushare.io-0"

    def touch(method: str, _path: str) -> None:
        if method == "PUT":
            cluster.put(path, cluster.objects[path])

    cluster.fault = touch
    with pytest.raises(ApiConflict):
        publisher.write(node(card(schedulable_bytes=GIB)))


def test_a_create_whose_answer_was_lost_makes_one_slice(
    publisher: SlicePublisher, cluster: StandInApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cluster.answer
    lost: list[str] = []

    def once(method: str, path: str, query: dict[str, str], body: Body | None) -> Body:
        found = answer(method, path, query, body)
        if method == "POST" and not lost:
            lost.append(path)
            raise ConnectionResetError
        return found

    monkeypatch.setattr(cluster, "answer", once)
    publisher.write(node())
    assert lost
    assert len(cluster.of(SLICES)) == 1
    assert pools(cluster) == [(1, 1)]


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


def test_a_field_that_the_server_drops_does_not_make_it_write_for_ever(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    def drop(body: Body) -> None:
        for device in body.get("spec", {}).get("devices") or []:
            device["attributes"].pop("resource.kubernetes.io/numaNode")

    cluster.drop_fields = drop
    publisher.write(node())
    before = cluster.version
    publisher.verify()
    publisher.write(node())
    assert cluster.version == before
    publisher.write(node(card(schedulable_bytes=GIB)))
    assert devices(cluster)[0]["capacity"]["memory"]["value"] == "1Gi"


def test_a_node_that_was_deleted_and_is_back_owns_the_new_slices(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    cluster.remove(NODE)
    cluster.remove(f"{SLICES}/n-gpu.gpushare.io-0")  # as the garbage collector does
    cluster.put(NODE, {})
    publisher.verify()
    publisher.write(node())
    (made,) = cluster.of(SLICES)
    assert made["metadata"]["ownerReferences"][0]["uid"] == cluster.objects[NODE]["metadata"]["uid"]


def test_a_cluster_without_this_api_is_named(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    cluster.fault = lambda _method, path: 404 if path == SLICES else None
    with pytest.raises(NoSharedDevices, match=r"Upgrade to Kubernetes 1\.34"):
        publisher.write(node())
    publisher.remove()


def test_all_slices_are_deleted_on_request(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    publisher.write(node())
    publisher.remove()
    assert not cluster.of(SLICES)
    publisher.write(node())
    assert len(devices(cluster)) == 1


def test_a_server_that_fails_meanwhile_is_caught_up_with(
    publisher: SlicePublisher, cluster: StandInApiServer
) -> None:
    failures: list[Any] = ["drop", 500, None, 503, "drop", None, 429]
    cluster.fault = lambda *_: failures.pop(0) if failures else None
    publisher.write(node())
    assert len(devices(cluster)) == 1


@pytest.mark.parametrize("length", [1, 63, 230, 253])
def test_a_slice_has_a_valid_name_for_any_node(api: ApiServer, length: int) -> None:
    name = SlicePublisher(api, "n" * length)._name(3)
    assert len(name) <= 253
    assert name.endswith("-gpu.gpushare.io-3")
    assert name != SlicePublisher(api, "n" * (length - 1) + "m")._name(3)
