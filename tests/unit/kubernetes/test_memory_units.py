# SPDX-License-Identifier: Apache-2.0
"""Memory as countable devices: names and units, which ids are healthy, which a container gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import UserError
from gpushare.kubernetes.cards import SchedulableCard
from gpushare.kubernetes.kubelet import memory_units
from gpushare.kubernetes.kubelet.grpc_service import ListAndWatchResponse
from gpushare.kubernetes.kubelet.memory_units import MemoryResource, NoDevices, memory_resource

GIB = 1 << 30
MIB = 1 << 20
A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
C = "GPU-cccccccc-0000-0000-0000-000000000000"
GIBS = MemoryResource("gpushare.io/memory-gib", GIB)


def card(uuid: str, memory: int, schedulable: int | None = None) -> SchedulableCard:
    usable = memory if schedulable is None else schedulable
    return SchedulableCard(uuid, memory, usable, "", None)


def ids(uuid: str, *numbers: int) -> list[str]:
    return [f"{uuid}.{number}" for number in numbers]


@pytest.mark.parametrize(
    ("name", "unit", "resource"),
    [
        ("", "", ("gpushare.io/memory-gib", GIB)),
        ("", "256MiB", ("gpushare.io/memory-256mib", 256 * MIB)),
        ("aliyun.com/gpu-mem", "", ("aliyun.com/gpu-mem", GIB)),
        ("tencent.com/vcuda-memory", "", ("tencent.com/vcuda-memory", 256 * MIB)),
        ("example.com/vram", "512MiB", ("example.com/vram", 512 * MIB)),
    ],
)
def test_a_resource_has_a_name_and_a_unit(name: str, unit: str, resource: tuple[str, int]) -> None:
    assert memory_resource(name, unit) == MemoryResource(*resource)


@pytest.mark.parametrize(
    ("name", "unit", "reason"),
    [
        ("", "1G", "ambiguous"),
        ("", "1500KiB", "not a number of MiB"),
        ("nvidia.com/gpumem", "", "its unit is not known. Add, for example, --unit 1GiB"),
        ("aliyun.com/gpu-mem", "256MiB", "the unit of aliyun.com/gpu-mem is 1GiB"),
        ("memory", "1GiB", "not the name of an extended resource"),
        ("node.kubernetes.io/memory", "1GiB", "not the name of an extended resource"),
        ("requests.example.com/memory", "1GiB", "not the name of an extended resource"),
        ("Example.com/memory", "1GiB", "not the name of an extended resource"),
    ],
)
def test_names_and_units_that_a_kubelet_or_a_manifest_would_misread(
    name: str, unit: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        memory_resource(name, unit)


def test_memory_that_may_not_be_scheduled_is_unhealthy_from_the_last_id_on() -> None:
    found = memory_units.devices([card(A, 4 * GIB, 2 * GIB + 1), card(B, GIB, 0)], GIBS)
    assert [(device["ID"], device["health"]) for device in found] == [
        (f"{A}.0", "Healthy"),
        (f"{A}.1", "Healthy"),
        (f"{A}.2", "Unhealthy"),
        (f"{A}.3", "Unhealthy"),
        (f"{B}.0", "Unhealthy"),
    ]
    assert found[0]["topology"] is None


def test_a_device_is_on_the_numa_node_of_its_card() -> None:
    [device] = memory_units.devices([SchedulableCard(A, GIB, GIB, "", 1)], GIBS)
    assert device["topology"] == {"nodes": [{"ID": 1}]}


def test_a_list_that_a_kubelet_would_refuse_names_the_unit_that_fits() -> None:
    cards = [card(f"GPU-{number:08}-0000-0000-0000-000000000000", 141 * GIB) for number in range(8)]
    with pytest.raises(UserError, match=r"Use --unit (\d+)MiB or larger") as refused:
        memory_units.devices(cards, MemoryResource("example.com/mib", MIB))
    fits = int(str(refused.value).rpartition("--unit ")[2].partition("MiB")[0])
    listed = memory_units.devices(cards, MemoryResource("example.com/fits", fits * MIB))
    assert ListAndWatchResponse(devices=listed).ByteSize() <= 3 * MIB
    with pytest.raises(UserError, match=f"--unit {fits}MiB"):
        memory_units.devices(cards, MemoryResource("example.com/half", fits * MIB // 2))


@given(st.integers(1, 5000), st.integers(0, 7))
def test_a_list_is_never_longer_than_was_foreseen(count: int, node: int) -> None:
    many = SchedulableCard(A, count * MIB, count * MIB // 2, "", node)
    listed = memory_units.devices([many], MemoryResource("example.com/mib", MIB))
    foreseen = memory_units._list_bytes([many], MIB)
    assert ListAndWatchResponse(devices=listed).ByteSize() <= foreseen


CAPACITY = {A: 4, B: 4, C: 8}


@pytest.mark.parametrize(
    ("available", "required", "size", "chosen"),
    [
        # The fullest card that has room.
        (ids(A, 2, 3) + ids(B, 0, 1, 2), [], 2, ids(A, 2, 3)),
        (ids(A, 3) + ids(B, 3, 1, 2), [], 2, ids(B, 1, 2)),
        # The first ids, and none of the other cards.
        (ids(A, 0, 1, 2, 3), [], 1, ids(A, 0)),
        # What the pod's init container has stays, and the rest is of the same card.
        (ids(A, 0, 1, 3) + ids(B, 0, 1), ids(A, 3), 2, ids(A, 3, 0)),
        # More than one card has: the same of each.
        (ids(A, 0, 1, 2, 3) + ids(C, *range(8)), [], 8, ids(C, *range(8))),
        (ids(A, *range(4)) + ids(B, *range(4)) + ids(C, *range(8)), [], 10, None),
        (ids(A, *range(4)) + ids(C, *range(6)), [], 6, ids(C, *range(6))),
    ],
)
def test_a_container_gets_ids_of_one_card(
    available: list[str], required: list[str], size: int, chosen: list[str] | None
) -> None:
    if chosen is None:
        with pytest.raises(NoDevices):
            memory_units.preferred(available, required, size, CAPACITY)
    else:
        assert memory_units.preferred(available, required, size, CAPACITY) == chosen


def test_a_request_above_the_largest_card_is_divided_evenly() -> None:
    capacity = {A: 139, B: 139}
    available = ids(A, *range(139)) + ids(B, *range(139))
    found = memory_units.preferred(available, [], 270, capacity)
    assert memory_units.parts(found, GIBS) == [(A, 135 * GIB), (B, 135 * GIB)]
    with pytest.raises(NoDevices, match="cannot be divided evenly over 2 cards of 139"):
        memory_units.preferred(available, [], 271, capacity)


def test_what_an_init_container_has_cannot_be_left() -> None:
    with pytest.raises(NoDevices):
        memory_units.preferred(ids(A, 0) + ids(B, 0, 1, 2), ids(A, 0), 2, CAPACITY)


def test_ids_that_the_kubelet_chose_itself_are_one_part_or_refused() -> None:
    assert memory_units.parts(ids(A, 3, 1), GIBS) == [(A, 2 * GIB)]
    with pytest.raises(NoDevices, match=f"no card of this node has 3 GiB left.*2 GiB of {A}"):
        memory_units.parts(ids(A, 3, 1) + ids(B, 0), GIBS)
    with pytest.raises(NoDevices, match="GPU-x::1 is not a device"):
        memory_units.parts(["GPU-x::1"], GIBS)
