# SPDX-License-Identifier: Apache-2.0
"""The host's driver: what is found of it, and the CDI spec that says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.host import driver
from gpushare.host.driver import DriverMissing
from gpushare.oci import cdi as oci_cdi
from gpushare.oci.driver import from_cdi

from .machine import UUIDS, VERSION, make, write

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "/usr/lib/x86_64-linux-gnu"


def test_the_driver_is_what_has_its_version(tmp_path: Path) -> None:
    found = driver.find(make(tmp_path))
    assert found.version == VERSION
    assert [path.name for path in found.libraries] == [
        f"libcuda.so.{VERSION}",
        f"libnvidia-ml.so.{VERSION}",
        f"libnvidia-ptxjitcompiler.so.{VERSION}",
    ]
    assert [path.name for path in found.programs] == ["nvidia-smi"]
    assert [(card.index, card.uuid, card.minor) for card in found.cards] == [
        (0, UUIDS[0], 1),
        (1, UUIDS[1], 0),
    ]


def test_the_daemon_reads_the_spec(tmp_path: Path) -> None:
    spec = oci_cdi.from_document(driver.find(make(tmp_path)).cdi())
    assert set(spec.devices) == {"0", "1", *UUIDS, "all"}
    assert [node.path for node in spec.devices[UUIDS[0]].nodes] == ["/dev/nvidia1"]
    control = {(node.path, node.major, node.minor) for node in spec.edits.nodes}
    assert control == {
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/nvidia-uvm-tools", 511, 1),
    }
    # Of the machine, not of the folder that it is set up in.
    assert from_cdi(spec).cuda.host_path == f"{FOLDER}/libcuda.so.{VERSION}"


def test_only_cards_with_a_node_are_this_container_s(tmp_path: Path) -> None:
    write(make(tmp_path) / "dev/nvidia0", "")
    assert [card.uuid for card in driver.find(tmp_path).cards] == [UUIDS[1]]


def test_no_driver_says_how_to_try_without(tmp_path: Path) -> None:
    with pytest.raises(DriverMissing, match="--simulate"):
        driver.find(tmp_path)


def test_a_placeholder_is_no_driver(tmp_path: Path) -> None:
    write(tmp_path / "usr/lib64/libcuda.so.1", "")
    with pytest.raises(DriverMissing, match=r"libcuda\.so\.1 is empty"):
        driver.find(tmp_path)


def test_a_driver_without_nvml_is_half_of_one(tmp_path: Path) -> None:
    found = driver.find(make(tmp_path))
    assert found.library(driver.CUDA).name == f"libcuda.so.{VERSION}"
    with pytest.raises(DriverMissing, match=r"no libother\.so\.1"):
        found.library("libother.so.1")


def test_a_spec_of_an_earlier_driver_is_stale(tmp_path: Path) -> None:
    spec = driver.find(make(tmp_path)).cdi()
    # Nothing of the folder's machine is on this one.
    assert f"{FOLDER}/libcuda.so.{VERSION}" in driver.stale(spec)
    spec["containerEdits"]["mounts"] = [{"hostPath": "/etc/passwd"}]
    assert driver.stale(spec) == []
