# SPDX-License-Identifier: Apache-2.0
"""What was granted for a time ends with it, and is warned of before."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.observe import time_limits
from gpushare.daemon.observe.time_limits import TimeLimits, is_near
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.tenant_status import warnings_of

from .fakes import FakeDaemon
from .operations import opened


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        time_limits, "log", lambda event, _level="info", **about: found.append((event, about))
    )
    return found


class BootClock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = boottime()
        monkeypatch.setattr(time_limits, "boottime", lambda: self.now)


def running(node: FakeDaemon, **quota: str) -> TenantRecord:
    tenant = opened(node, memory="1GiB", **quota)
    return node.ledger.change(tenant["key"], state="bound", pid=1, starttime=1, cgroup="")


def test_it_is_warned_once_and_then_stopped(
    node: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[tuple[str, dict[str, Any]]],
) -> None:
    clock = BootClock(monkeypatch)
    stopped: list[tuple[str, str]] = []
    limits = TimeLimits(node, lambda record, why: stopped.append((record.name, why)))
    record = running(node, time_limit="8h")
    running(node)
    limits.look()
    assert logged == []
    clock.now += 8 * 3600 - 299
    for _ in range(2):
        limits.look()
    ((event, about),) = logged
    assert (event, about["limit_seconds"], about["left_seconds"]) == (
        "tenant-time-limit-near",
        28800,
        299,
    )
    assert next(warnings_of(record, [], [], node)).endswith(
        "its time limit is 8h; to extend it: gpushare set train --time-limit TIME"
    )
    assert stopped == []
    clock.now += 300
    limits.look()
    node.freezing.run(lambda: None)
    assert stopped == [("train", "its time limit of 8h is over")]


def test_a_short_limit_is_warned_of_in_its_last_tenth(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = BootClock(monkeypatch)
    record = running(node, time_limit="100s")
    clock.now += 89
    assert not is_near(record)
    clock.now += 2
    assert is_near(record)
