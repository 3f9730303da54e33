# SPDX-License-Identifier: Apache-2.0
"""The measurements that start tenants: bundles under runc, the launcher in front of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import simulator
from tests.gpu import built, containers
from tests.gpu.driver import find


def test_two_bundles_share_a_card_under_runc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = simulator.create(tmp_path, "t4")
    monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(created.device))
    driver = find(built.libraries() / "simulator", created.cdi)
    rows = [*containers.runc(driver)]
    assert [f"{row.name}: {row.shown} {row.note}" for row in rows if not row.held] == []
    assert len(rows) > 10
