# SPDX-License-Identifier: Apache-2.0
"""What one thread of the daemon does while another is at work or hangs."""

from __future__ import annotations

import threading

from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.test_freezer import KEY, FakeCgroup, group, held

__all__ = ["group", "held"]


def test_a_deciding_thread_that_is_busy_delays_no_freeze_and_no_kill(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    store = held.ledger.store_freezes
    held.ledger.freezes.store = lambda key: held.decide.submit(lambda: store(key))
    release = threading.Event()
    held.decide.submit(release.wait)
    try:
        held.freezing.run(lambda: held.freezer.freeze(KEY, "audit", "over"))
        assert group.frozen
        held.freezing.run(lambda: held.freezer.kill(KEY, "over for 2 s"))
        assert group.killed
    finally:
        release.set()
    held.decide.run(lambda: None)
    assert [freeze.by for freeze in held.ledger.freezes.of(KEY)] == ["audit", "stop"]
