# SPDX-License-Identifier: Apache-2.0
"""The devices of a node, and what a scheduler makes of them: never more than a card has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubernetes.api.slices import (
    BadQuantity,
    devices_of,
    format_quantity,
    parse_quantity,
    same_devices,
)
from gpushare.kubernetes.cards import pcie_roots

from .made import GIB, card, node
from .scheduler import DoesNotFit, ModelScheduler, amounts, check_device

MIB = 1 << 20


def one(**changed: Any) -> dict[str, Any]:
    (device,) = devices_of(node(card(**changed)))
    return device


def test_a_card_is_a_device_with_capacity_to_consume() -> None:
    device = one()
    assert device["name"] == "card-5f3c0000-0000-0000-0000-000000000000"
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"]["value"] == "139Gi"
    assert device["capacity"]["cores"] == {
        "value": "100",
        "requestPolicy": {
            "default": "0",
            "validRange": {"min": "0", "step": "1", "max": "100"},
        },
    }
    assert "taints" not in device


def test_the_attributes_are_what_selectors_ask_for() -> None:
    assert one()["attributes"] == {
        "uuid": {"string": "GPU-5F3C0000-0000-0000-0000-000000000000"},
        "index": {"int": 0},
        "model": {"string": "NVIDIA H200"},
        "mig": {"bool": False},
        "isolation": {"string": "interposer"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "numaNode": {"int": 1},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }


@given(
    rows=st.lists(
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
        ),
        max_size=8,
    )
)
def test_any_card_becomes_a_device_that_the_server_accepts(rows: list[dict[str, Any]]) -> None:
    for device in devices_of(node(*rows)):
        check_device(device)


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


def test_memory_of_others_is_not_offered_and_a_full_card_is_left_out() -> None:
    assert one(schedulable_bytes=100 * GIB)["capacity"]["memory"]["value"] == "100Gi"
    assert not devices_of(node(card(schedulable_bytes=MIB)))


def test_a_card_of_which_only_all_may_be_taken() -> None:
    device = one(allowed_mode="exclusive")
    half = {"memory": "10Gi", "cores": "50"}
    assert amounts(device, half) == amounts(device, {}), "a part is raised to all of it"


def test_a_mig_instance_is_named_as_one() -> None:
    device = one(uuid="MIG-11111111-2222-3333-4444-555555555555")
    assert device["name"] == "card-mig-11111111-2222-3333-4444-555555555555"
    assert device["attributes"]["mig"] == {"bool": True}


def test_the_same_devices_in_the_words_of_the_server() -> None:
    mine = devices_of(node(card(0, schedulable_bytes=2048 * MIB)))
    theirs = devices_of(node(card(0, schedulable_bytes=2048 * MIB)))
    theirs[0]["capacity"]["memory"]["value"] = "2048Mi"
    assert same_devices(mine, theirs)
    theirs[0]["capacity"]["memory"]["value"] = "2049Mi"
    assert not same_devices(mine, theirs)


def test_the_time_of_a_taint_makes_no_difference() -> None:
    mine = devices_of(node(card(is_schedulable=False)))
    theirs = devices_of(node(card(is_schedulable=False)))
    theirs[0]["taints"][0]["timeAdded"] = "2026-11-23T15:00:00Z"
    assert same_devices(mine, theirs)
    theirs[0].pop("taints")
    assert not same_devices(mine, theirs)


REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.integers(0, 150 * GIB).map(format_quantity),
        "cores": st.integers(0, 120).map(str),
    },
)


@given(
    memory=st.lists(st.integers(2 * MIB, 140 * GIB), min_size=1, max_size=3),
    cores=st.integers(0, 100),
    steps=st.lists(st.tuples(REQUEST, st.booleans()), max_size=40),
)
def test_what_a_scheduler_allocates_always_fits_the_card(
    memory: list[int], cores: int, steps: list[tuple[dict[str, str], bool]]
) -> None:
    rows = [
        card(index, schedulable_bytes=amount, schedulable_cores=cores, max_tenants=4)
        for index, amount in enumerate(memory)
    ]
    scheduler = ModelScheduler(devices_of(node(*rows)))
    by_name = {device["name"]: row for device, row in zip(scheduler.devices, rows, strict=True)}
    held: list[dict[str, Any]] = []
    for request, leaves in steps:
        if leaves and held:
            scheduler.release(held.pop(0))
            continue
        try:
            held.append(scheduler.allocate(request))
        except DoesNotFit:
            continue
        consumed = held[-1]["consumedCapacity"]
        for name, asked in request.items():
            assert int(consumed[name]) >= parse_quantity(asked), "never less than requested"
        assert int(consumed["memory"]) % MIB == 0
    for name, row in by_name.items():
        of_card = [one["consumedCapacity"] for one in held if one["device"] == name]
        assert sum(int(one["memory"]) for one in of_card) <= row["schedulable_bytes"]
        assert sum(int(one["cores"]) for one in of_card) <= row["schedulable_cores"]
        assert len(of_card) <= row["max_tenants"]


def test_a_request_without_amounts_takes_a_card_that_nobody_shares() -> None:
    scheduler = ModelScheduler(devices_of(node()))
    whole = scheduler.allocate({})
    assert whole["consumedCapacity"] == {"memory": str(139 * GIB), "cores": "0", "tenants": "1"}
    with pytest.raises(DoesNotFit):
        scheduler.allocate({"memory": "1Mi", "cores": "0"})
    scheduler.release(whole)
    scheduler.allocate({"memory": "1Mi", "cores": "0"})
    with pytest.raises(DoesNotFit):
        scheduler.allocate({})


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
        ("20Gi", 20 << 30),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("1e3", 1000),
        ("1E", 10**18),
        ("500m", 1),
        ("1500m", 2),
        ("-1500m", -2),
        (".5Ki", 512),
        ("5.", 5),
        ("12e-1", 2),
    ],
)
def test_a_quantity_is_read(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "4 Gi", "4GiB", "1e", "0x10", "٣", "1..2", "--1", "4K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 1 << 62))
def test_an_amount_is_written_exactly(amount: int) -> None:
    assert parse_quantity(format_quantity(amount)) == amount
