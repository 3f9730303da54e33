# SPDX-License-Identifier: Apache-2.0
"""`./dev demo` fails when a claim of it does; that they hold is test_readme.py's."""

from __future__ import annotations

import shutil

import pytest

from gpushare.verify import Report
from gpushare.verify.memory import MemoryScenario
from tests.demo import Compute
from tests.stack import Stack


def test_its_claims_fail_where_nothing_enforces_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters replaced by the bare driver, and an audit that looks on.

    A scenario that still held would prove nothing.
    """
    # What is waited for in vain is not waited for long.
    monkeypatch.setattr("gpushare.verify.SETTLE_SECONDS", 1.0)
    with Stack() as stack:
        stack.configure(audit={"over_quota": "observe"})
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            bare = stack.installation.simulator / name
            shutil.copy(bare, stack.installation.libraries / "host" / name)
        stack.start_daemon()
        report = Report()
        assert not MemoryScenario(stack.host(), stack.cli, report).run()
        assert "train sees a card of 4 GiB" in [c.claim for c in report.checks if not c.passed]
        monkeypatch.setattr("tests.demo.TRIES", 1)
        about_compute = Report()
        assert not Compute(stack.host(), stack.cli, about_compute).run()
        assert not any(check.passed for check in about_compute.checks)
