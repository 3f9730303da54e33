# SPDX-License-Identifier: Apache-2.0
"""The MPS part of `./dev gpu`, on the simulated driver and without a control daemon's program."""

from __future__ import annotations

import pytest

from tools.gpu import mps
from tools.gpu.driver import DriverPaths
from tools.gpu.report import ReportRow

GIB = 1 << 30


def test_what_is_assumed_of_mps_is_measured(driver: DriverPaths) -> None:
    rows = {row.name: row for row in mps.rows(driver)}
    assert [row.name for row in rows.values() if row.held is False or row.missing] == []
    assert rows["multiprocessors at 100 %"].value == 132
    assert rows["multiprocessors at 25 %"].value == 32
    assert rows["set_active_thread_percentage SERVER 50 prints"].value == "50.0"
    free = rows["a second one with a limit of 2 GiB: free"].value
    assert isinstance(free, int)
    assert GIB < free < 2 * GIB
    assert rows["limit 2 GiB, 0=1G,7=1G in the environment: free"].note == "it has no limit"
    assert rows["limit 2 GiB, UUID=1G in the environment: free"].note == ""
    for kind, listed in (("compute", True), ("mps", False)):
        server = rows[f"NVML's list of {kind} processes: the server"]
        assert (server.value != "not listed") is listed
        client = rows[f"NVML's list of {kind} processes: a client with 128 MiB"]
        assert isinstance(client.value, int)
    for who in ("the client that caused it", "another client"):
        assert rows[f"a fault: {who}"].value == "CUDA_ERROR_LAUNCH_FAILED"
    assert rows["a fault: the server's state"].value == "FAULT"
    assert "CUDA_ERROR_MPS_SERVER_NOT_READY" in str(rows["a fault: a new client"].value)
    assert rows["a fault: lines of the server's log"].note == "names the client that caused it"
    assert rows["terminate_client: the client"].value == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert rows["the server is killed: a client"].value == "CUDA_ERROR_MPS_RPC_FAILURE"


def test_without_the_program_it_says_so(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "PROGRAM", "no-such-program")
    missing = "no-such-program is not on this machine"
    assert list(mps.rows(driver)) == [ReportRow("MPS", missing=missing)]
