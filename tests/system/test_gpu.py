# SPDX-License-Identifier: Apache-2.0
"""The measurements that start tenants: bundles under runc, the launcher in front of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import simulator
from tools.gpu import built, containers, shares
from tools.gpu.driver import DriverPaths, find


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverPaths:
    created = simulator.create(tmp_path, "t4")
    monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(created.device))
    return find(built.libraries() / "simulator", created.cdi)


def test_two_bundles_share_a_card_under_runc(driver: DriverPaths) -> None:
    rows = [*containers.runc(driver)]
    assert [f"{row.name}: {row.shown} {row.note}" for row in rows if not row.held] == []
    assert len(rows) > 10


def test_shares_are_measured_native_beside_gated(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "SECONDS", 1.6)
    monkeypatch.setattr(shares, "SETTLED_NS", 300_000_000)
    monkeypatch.setattr(shares, "ALONE_SECONDS", 0.3)
    tenants = (shares.fixed(30, shares.LONG), shares.fixed(70, shares.LONG))
    with shares.Shares.on(driver) as measured:
        rows = {row.name: row for row in measured.compared("two", tenants)}
    native = rows["two: split"].note.removeprefix("native ").split("/")
    assert float(native[0]) == pytest.approx(float(native[1]), abs=6)
    error = rows["two: error over 1 s, mean"]
    assert isinstance(error.value, float)
    assert error.value < float(error.note.removeprefix("native ")) / 2
