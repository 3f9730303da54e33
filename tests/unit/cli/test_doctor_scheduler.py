# SPDX-License-Identifier: Apache-2.0
"""What `gpushare doctor` says of the scheduler while gpushared is down."""

from __future__ import annotations

from pathlib import Path

from gpushare import checks

LISTENERS = Path("/proc/net/unix")


def test_without_a_scheduler_nothing_is_reported(tmp_path: Path) -> None:
    assert list(checks.check_orphaned_scheduler(tmp_path, LISTENERS)) == []
    assert list(checks.check_orphaned_scheduler(tmp_path, tmp_path / "missing")) == []
