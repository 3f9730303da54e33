# SPDX-License-Identifier: Apache-2.0
"""Which CDI spec a stack takes for the machine's own card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare.host import driver
from gpushare.host.driver.device_nodes import CardNodes, DeviceNode
from gpushare.host.driver.files import DriverFile
from gpushare.host.rooted_tree import RootedTree
from tests.stack import card
from tests.stack.program import Missing

NVIDIA = driver.InstalledDriver(
    root=Path("/"),
    tree=RootedTree(),
    version="580.159.04",
    files=(DriverFile("/usr/lib64/libcuda.so.580.159.04", "/usr/lib64/libcuda.so.1"),),
    cards=(
        CardNodes(
            0,
            "GPU-00000000-0000-0000-0000-000000000000",
            0,
            nodes=(DeviceNode("/dev/nvidia0", 195, 0),),
        ),
    ),
    control=(DeviceNode("/dev/nvidiactl", 195, 255),),
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose kernel has the driver, and no spec yet."""
    sign, spec = tmp_path / "nvidiactl", tmp_path / "nvidia.yaml"
    sign.touch()
    monkeypatch.setattr(card, "MODULE", (tmp_path / "version", sign))
    monkeypatch.setattr(card, "SPECS", (spec,))
    monkeypatch.setattr(driver, "find", lambda **_: NVIDIA)
    return spec


def test_without_a_kernel_module_there_is_none(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "MODULE", (module,))
    assert card.real_card() is None


def test_the_machines_own_spec_is_taken(module: Path) -> None:
    module.touch()
    assert card.real_card() == module


@pytest.mark.usefixtures("module")
def test_where_there_is_none_it_is_made_from_the_driver() -> None:
    spec = card.real_card()
    assert spec is not None
    made = json.loads(spec.read_text())
    assert made["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib64/libcuda.so.580.159.04"
    assert made["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia0"


@pytest.mark.usefixtures("module")
def test_half_a_driver_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(search: str) -> driver.InstalledDriver:
        raise driver.DriverMissing(f"the loader finds no libcuda.so.1 in {search}")

    monkeypatch.setattr(driver, "find", absent)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")
    with pytest.raises(Missing, match=r"finds no libcuda\.so\.1 in /usr/local/nvidia/lib64"):
        card.real_card()


@pytest.mark.usefixtures("module")
def test_a_driver_that_lists_no_card_is_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        driver, "find", lambda **_: driver.InstalledDriver(**{**vars(NVIDIA), "cards": ()})
    )
    with pytest.raises(Missing, match="lists no card"):
        card.real_card()
