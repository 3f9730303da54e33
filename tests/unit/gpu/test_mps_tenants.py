# SPDX-License-Identifier: Apache-2.0
"""The part of `./dev gpu` about MPS with limits for each container, on the simulated driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import simulator
from tools.gpu import mps, mps_tenants
from tools.gpu.driver import DriverPaths, find
from tools.gpu.report import ReportRow


@pytest.fixture
def new_driver(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverPaths:
    """A driver that has protocol 3."""
    made = simulator.create(tmp_path / "new", driver_version="615.71.09", cuda_version="13.4")
    monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(made.device))
    return find(libraries)


def test_what_is_assumed_of_both_protocols_is_measured(new_driver: DriverPaths) -> None:
    rows = {row.name: row for row in mps_tenants.rows(new_driver)}
    assert [row for row in rows.values() if row.held is False or row.missing] == []
    for protocol in (2, 3):
        start = f"protocol {protocol}: "
        assert rows[f"{start}container one: multiprocessors"].value == 66
        assert rows[f"{start}container other: multiprocessors"].value == 32
        assert rows[f"{start}the memory limit is"].value == "of each process"
        note = rows[f"{start}one wrong entry in its environment: free"].note
        assert note == "it has no limit"
        assert rows[f"{start}chunks of the card"].value == 16
        assert rows[f"{start}multiprocessors of 8 chunks"].value == 64
    row = rows["protocol 2: root sets 100 % through the container's folder"]
    assert row.value == "100.0"
    assert rows["protocol 2: a partition beside a client"].value == "created"
    assert rows["protocol 2: a fault: a client of another partition"].value == "CUDA_SUCCESS"
    assert rows["protocol 3: a partition beside a client"].value == "refused"
    assert rows["protocol 3: change while it has a client"].value == "refused"
    row = rows["protocol 3: another user sets 100 % through the container's folder"]
    assert "Insufficient privileges" in str(row.value)
    row = rows["protocol 3: root sets 100 % through the container's folder"]
    assert ",100.00," in row.detail[0]
    found = rows["protocol 3: a client without a partition beside one"].value
    assert "INVALID_RESOURCE_CONFIGURATION" in str(found)


def test_what_the_driver_lacks_is_said(driver: DriverPaths) -> None:
    missing = {row.name: row.missing for row in mps_tenants.rows(driver) if row.missing}
    assert missing == {
        "static partitions": "CUDA 13.0 has none",
        "protocol 3": "driver 580.65.06 has protocol 2",
    }


def test_without_the_program_it_says_so(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "PROGRAM", "no-such-program")
    missing = "no-such-program is not on this machine"
    assert list(mps_tenants.rows(driver)) == [ReportRow("MPS", missing=missing)]
