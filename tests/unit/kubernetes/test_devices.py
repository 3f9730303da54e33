# SPDX-License-Identifier: Apache-2.0
"""Devices of ResourceSlices, ids of memory of the device plugin, and the cards both are made of.

node.json has the devices and the labels of a node as the API server gets them.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.labels import label_value, labels_of
from gpushare.kubernetes.api.slices import (
    BadQuantity,
    devices_of,
    parse_quantity,
    same_devices,
)
from gpushare.kubernetes.cards import (
    OUTAGE,
    OUTAGE_SECONDS,
    POLL_SECONDS,
    CardFollower,
    SchedulableCard,
    node_cards,
    pcie_roots,
)
from gpushare.kubernetes.kubelet import memory_units
from gpushare.kubernetes.kubelet.grpc_service import ListAndWatchResponse
from gpushare.kubernetes.kubelet.memory_units import (
    MemoryResource,
    NoDevices,
    Refusals,
    memory_resource,
)

from .api_rules import check_device
from .gpushared import Clock, FakeGpushared
from .made import GIB, STATUS, card, node

MIB = 1 << 20


def one(**changed: Any) -> dict[str, Any]:
    (device,) = devices_of(node(card(**changed)))
    return device


def test_a_node_has_the_recorded_devices_and_labels() -> None:
    rows = [card(), card(1, schedulable_bytes=100 * GIB), card(2, schedulable_bytes=MIB)]
    found = node_cards(rows, STATUS, {rows[0]["uuid"]: "pci0000:5b"})
    made = {"devices": devices_of(found), "labels": labels_of(found)}
    assert made == json.loads(Path(__file__).with_name("node.json").read_text())


@given(
    st.builds(
        card,
        index=st.integers(0, 15),
        model=st.text(max_size=100),
        compute_capability=st.sampled_from(["", "9.0", "12.1"]),
        schedulable_bytes=st.integers(0, 300 * GIB),
        schedulable_cores=st.integers(0, 100),
        max_tenants=st.integers(1, 64),
        allowed_mode=st.sampled_from(["any", "shared", "exclusive"]),
        numa_node=st.none() | st.integers(0, 7),
        is_schedulable=st.booleans(),
        schedulable_reason=st.text(max_size=80),
    )
)
def test_any_card_becomes_a_device_that_the_server_accepts(row: dict[str, Any]) -> None:
    for device in devices_of(node(row)):
        check_device(device)
        for name, most in (("memory", "schedulable_bytes"), ("cores", "schedulable_cores")):
            assert parse_quantity(device["capacity"][name]["value"]) <= row[most]


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        ("cordoned: ECC errors", "gpu.gpushare.io/cordoned"),
        ("unhealthy: XID 79", "gpu.gpushare.io/unhealthy"),
        ("", "gpu.gpushare.io/unschedulable"),
    ],
)
def test_a_card_that_gets_nothing_new_has_a_taint(reason: str, key: str) -> None:
    device = one(is_schedulable=False, schedulable_reason=reason)
    assert device["taints"] == [{"key": key, "effect": "NoSchedule"}]


def test_a_card_of_which_only_all_may_be_taken() -> None:
    for name in ("memory", "cores"):
        capacity = one(allowed_mode="exclusive")["capacity"][name]
        whole = capacity["value"]
        assert capacity["requestPolicy"] == {"default": whole, "validValues": [whole]}


def test_the_same_devices_in_the_words_of_the_server() -> None:
    mine = devices_of(node(card(0, schedulable_bytes=2048 * MIB)))
    theirs = devices_of(node(card(0, schedulable_bytes=2048 * MIB)))
    theirs[0]["capacity"]["memory"]["value"] = "2048Mi"
    assert same_devices(mine, theirs)
    theirs[0]["capacity"]["memory"]["value"] = "2049Mi"
    assert not same_devices(mine, theirs)


def test_the_pcie_root_of_a_card_is_found_by_its_address(tmp_path: Path) -> None:
    information = tmp_path / "proc/driver/nvidia/gpus/0000:5D:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text(
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-5f3c\nBus Type: \t PCIe\n"
        "Bus Location: \t 0000:5d:00.0\n"
    )
    hidden = tmp_path / "proc/driver/nvidia/gpus/0000:7D:00.0/information"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("GPU UUID: \t GPU-????????\nBus Location: \t 0000:7d:00.0\n")
    place = tmp_path / "sys/devices/pci0000:5b/0000:5b:01.0/0000:5d:00.0"
    place.mkdir(parents=True)
    link = tmp_path / "sys/bus/pci/devices/0000:5d:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to(place)
    assert pcie_roots(tmp_path) == {"GPU-5f3c": "pci0000:5b"}
    assert pcie_roots(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1.5Gi", 3 << 29),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1500m", 2),
        (".5Ki", 512),
        ("12e-1", 2),
    ],
)
def test_a_quantity_is_read(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "4 Gi", "4GiB", "1e", "0x10", "٣", "1..2", "--1", "4K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse_quantity(text)


A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"


C = "GPU-cccccccc-0000-0000-0000-000000000000"


GIBS = MemoryResource("gpushare.io/memory-gib", GIB)


def memory_card(
    uuid: str, memory: int, schedulable: int | None = None, **left: Any
) -> SchedulableCard:
    usable = memory if schedulable is None else schedulable
    return SchedulableCard(uuid, memory, usable, "", None, **left)


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
    cards = [memory_card(A, 4 * GIB, 2 * GIB + 1), memory_card(B, GIB, 0)]
    found = memory_units.devices(cards, GIBS, memory_units.healthy_units(cards, GIBS))
    assert [(device["ID"], device["health"]) for device in found] == [
        (f"{A}.0", "Healthy"),
        (f"{A}.1", "Healthy"),
        (f"{A}.2", "Unhealthy"),
        (f"{A}.3", "Unhealthy"),
        (f"{B}.0", "Unhealthy"),
    ]
    assert found[0]["topology"] is None


@pytest.mark.parametrize(
    ("changed", "numbers"),
    [
        ({}, {0, 1, 3}),  # the one in use, and as many more as may be allocated
        ({"cores_left": 0}, {3}),
        ({"tenants": 2, "max_tenants": 2}, {3}),
        ({"schedulable_bytes": 0, "reason": "cordoned: ECC errors"}, {3}),
        ({"schedulable_bytes": 0, "reason": "unhealthy: XID 79"}, set()),
    ],
)
def test_units_in_use_are_healthy_while_the_card_works(
    changed: dict[str, Any], numbers: set[int]
) -> None:
    card = replace(memory_card(A, 4 * GIB, 3 * GIB), **changed)
    assert memory_units.healthy_units([card], GIBS, ids(A, 3)) == {A: numbers}


def test_after_a_refusal_only_the_largest_free_part_is_healthy() -> None:
    cards = [memory_card(A, 4 * GIB), memory_card(B, 4 * GIB), memory_card(C, 4 * GIB, tenants=64)]
    used = [*ids(A, 0, 1), *ids(B, 0)]
    found = memory_units.healthy_units(cards, GIBS, used, only_largest=True)
    assert found == {A: {0, 1}, B: {0, 1, 2, 3}, C: set()}


def test_each_further_refusal_doubles_the_time_up_to_ten_minutes() -> None:
    refusals = Refusals().with_another(100.0)
    assert refusals.until == 160.0
    refusals = refusals.with_another(114.0)  # it was on its way
    assert refusals.until == 174.0
    spans = []
    for _ in range(5):
        refusals = refusals.with_another(refusals.until)
        spans.append(refusals.seconds)
    assert spans == [120.0, 240.0, 480.0, 600.0, 600.0]
    assert refusals.with_another(refusals.until + 600.0).seconds == 60.0


def test_a_list_that_a_kubelet_would_refuse_names_the_unit_that_fits() -> None:
    cards = [
        memory_card(f"GPU-{number:08}-0000-0000-0000-000000000000", 141 * GIB)
        for number in range(8)
    ]

    def listed_in(name: str, unit: int) -> list[dict[str, Any]]:
        resource = MemoryResource(name, unit)
        return memory_units.devices(cards, resource, memory_units.healthy_units(cards, resource))

    with pytest.raises(UserError, match=r"Use --unit (\d+)MiB or larger") as refused:
        listed_in("example.com/mib", MIB)
    fits = int(str(refused.value).rpartition("--unit ")[2].partition("MiB")[0])
    listed = listed_in("example.com/fits", fits * MIB)
    assert ListAndWatchResponse(devices=listed).ByteSize() <= 3 * MIB
    with pytest.raises(UserError, match=f"--unit {fits}MiB"):
        listed_in("example.com/half", fits * MIB // 2)


CARDS = [memory_card(A, 4 * GIB), memory_card(B, 4 * GIB), memory_card(C, 8 * GIB)]


@pytest.mark.parametrize(
    ("available", "required", "size", "chosen"),
    [
        # The fullest memory_card that has room.
        (ids(A, 2, 3) + ids(B, 0, 1, 2), [], 2, ids(A, 2, 3)),
        (ids(A, 3) + ids(B, 3, 1, 2), [], 2, ids(B, 1, 2)),
        # The first ids, and none of the other cards.
        (ids(A, 0, 1, 2, 3), [], 1, ids(A, 0)),
        # What the pod's init container has stays, and the rest is of the same memory_card.
        (ids(A, 0, 1, 3) + ids(B, 0, 1), ids(A, 3), 2, ids(A, 3, 0)),
        # More than one memory_card has: the same of each.
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
            memory_units.preferred(available, required, size, CARDS, GIBS)
    else:
        assert memory_units.preferred(available, required, size, CARDS, GIBS) == chosen


@pytest.mark.parametrize(
    ("placement", "first", "second", "chosen"),
    [
        ("", {}, {}, A),  # 2 of 3 GiB left
        ("spread", {}, {}, B),
        ("binpack", {"tenants": 64}, {}, B),
        ("binpack", {"cores_left": 0}, {}, B),
        ("spread", {}, {"cores_left": 0}, A),
    ],
)
def test_the_placement_ranks_the_cards_that_take_another_container(
    placement: str, first: dict[str, Any], second: dict[str, Any], chosen: str
) -> None:
    cards = [memory_card(A, 4 * GIB, **first), memory_card(B, 4 * GIB, **second)]
    available = ids(A, 2, 3) + ids(B, 1, 2, 3)
    [given] = memory_units.preferred(available, [], 1, cards, GIBS, placement)
    assert given.partition(".")[0] == chosen


@pytest.mark.parametrize(("placement", "chosen"), [("binpack", A), ("spread", B)])
def test_with_the_same_memory_left_compute_decides_and_then_tenants(
    placement: str, chosen: str
) -> None:
    available = ids(A, 0) + ids(B, 0)
    for first, second in (
        ({"cores_left": 20}, {"cores_left": 60}),
        ({"tenants": 2}, {"tenants": 1}),
    ):
        cards = [memory_card(A, GIB, **first), memory_card(B, GIB, **second)]
        [given] = memory_units.preferred(available, [], 1, cards, GIBS, placement)
        assert given.partition(".")[0] == chosen


def test_a_request_that_only_full_cards_have_memory_for_is_refused_with_what_they_lack() -> None:
    cards = [memory_card(A, 4 * GIB, tenants=64), memory_card(B, 4 * GIB, cores_left=0)]
    with pytest.raises(NoDevices, match=f"{A} has no tenant left, card {B} has no compute left"):
        memory_units.preferred(ids(A, 0) + ids(B, 0), [], 1, cards, GIBS)


def test_a_request_above_the_largest_card_is_divided_evenly() -> None:
    cards = [memory_card(A, 139 * GIB), memory_card(B, 139 * GIB)]
    available = ids(A, *range(139)) + ids(B, *range(139))
    found = memory_units.preferred(available, [], 270, cards, GIBS)
    assert memory_units.parts(found, GIBS) == [(A, 135 * GIB), (B, 135 * GIB)]
    with pytest.raises(NoDevices, match="cannot be divided evenly over 2 cards of 139"):
        memory_units.preferred(available, [], 271, cards, GIBS)


def test_ids_that_the_kubelet_chose_itself_are_one_part_or_refused() -> None:
    assert memory_units.parts(ids(A, 3, 1), GIBS) == [(A, 2 * GIB)]
    with pytest.raises(NoDevices, match=f"no card of this node has 3 GiB left.*2 GiB of {A}"):
        memory_units.parts(ids(A, 3, 1) + ids(B, 0), GIBS)
    with pytest.raises(NoDevices, match="GPU-x::1 is not a device"):
        memory_units.parts(["GPU-x::1"], GIBS)


@pytest.fixture
def follower(daemon: FakeGpushared, clock: Clock) -> CardFollower:
    daemon.rows = [card(memory_bytes=100, system_reserved_bytes=10, schedulable_bytes=70)]
    return CardFollower(daemon, StatusLog(), clock)


def test_nothing_is_known_before_the_first_answer(
    follower: CardFollower, daemon: FakeGpushared, clock: Clock
) -> None:
    daemon.is_away = True
    assert follower.poll() is None
    daemon.is_away = False
    assert follower.poll() is None  # it is asked every few seconds
    clock.now += POLL_SECONDS
    assert follower.poll() is not None


def test_a_restart_changes_nothing_and_an_outage_ends_scheduling(
    follower: CardFollower,
    daemon: FakeGpushared,
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = follower.poll()
    daemon.is_away = True
    clock.now += POLL_SECONDS
    assert follower.poll() == before
    clock.now += OUTAGE_SECONDS
    [found] = follower.poll() or ()
    assert (found.memory_bytes, found.schedulable_bytes, found.reason) == (90, 0, OUTAGE)
    daemon.is_away = False
    clock.now += POLL_SECONDS
    assert follower.poll() == before
    assert capsys.readouterr().err.splitlines() == [
        "gpushare-node: gpushared reports 1 cards",
        "gpushare-node: gpushared is not running: start it",
        "gpushare-node: gpushared reports 1 cards",
    ]


VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=200))
def test_any_text_becomes_a_valid_value(text: str) -> None:
    assert VALID.fullmatch(label_value(text))
