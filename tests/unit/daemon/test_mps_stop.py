# SPDX-License-Identifier: Apache-2.0
"""A client of an MPS server is stopped: its server ends its work first, if it answers in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.operator import run_state

from .fakes import FakeDaemon
from .test_freezer import KEY, FakeCgroup, group, held

__all__ = ["group", "held"]


def stop(node: FakeDaemon, signal: str, seconds: int = 0) -> None:
    node.ask("stop", name=KEY, signal=signal, timeout=seconds)


def run_loop(node: FakeDaemon) -> None:
    """Have the loop do what is due, and what that has led to."""
    node.loop.settle()
    node.loop._run_due()
    node.freezing.run(lambda: None)


@pytest.fixture
def client(held: FakeDaemon) -> FakeDaemon:
    """A node whose one tenant is a client of an MPS server."""
    held.ledger.change(KEY, isolation=MPS)
    return held


def test_the_server_ends_its_work_before_it_is_killed(
    client: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def terminate(key: str, then: Callable[[], None]) -> None:
        assert key == KEY
        found.append(group.killed)
        then()

    monkeypatch.setattr(client.servers, "terminate", terminate)
    stop(client, "KILL")
    run_loop(client)
    assert (found, group.killed) == ([False], True)


def test_a_server_that_does_not_answer_delays_the_kill_by_some_seconds(
    client: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.servers, "terminate", lambda _key, _then: None)
    stop(client, "KILL")
    run_loop(client)
    (promised,) = client.ledger.freezes.of(KEY)
    assert (promised.by, group.killed) == ("stop", False)
    client.ledger.freezes.put(replace(promised, due=1.0))
    client.freezer.enforce()
    assert group.killed


def test_it_may_use_the_card_until_its_time_is_over(
    client: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "_send_signal", lambda *_: None)
    asked: list[str] = []
    monkeypatch.setattr(client.servers, "terminate", lambda key, _then: asked.append(key))
    stop(client, "TERM", 3600)
    run_loop(client)
    assert (asked, group.killed) == ([], False)
