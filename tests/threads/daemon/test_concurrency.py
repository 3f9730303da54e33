# SPDX-License-Identifier: Apache-2.0
"""What one thread of the daemon does while another is at work or hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.lifecycle import scheduled
from gpushare.daemon.lifecycle.release import release_tenant
from gpushare.daemon.limits import BurstUpdater
from gpushare.daemon.observe.non_tenant import NonTenantUse
from tests.unit.daemon.fakes import GIB, FakeDaemon
from tests.unit.daemon.operations import opened
from tests.unit.daemon.test_burst import bursting, limit
from tests.unit.daemon.test_claims import CLAIM, POD, a_node, container, device, prepare
from tests.unit.daemon.test_freezer import KEY, FakeCgroup, group, held
from tests.unit.daemon.test_sampler import CARD

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


def test_burst_limits_are_updated_after_each_sample_and_never_concurrently(
    node: FakeDaemon,
) -> None:
    first, tenant = opened(node, memory="100GiB", devices="0"), bursting(node)
    node.decide.finish(5)  # what is submitted now waits
    release_tenant(first["key"], node, "it has ended")
    lending = BurstUpdater(node)
    for _ in range(3):
        lending.again()
    assert node.decide._jobs.qsize() == 1
    job = node.decide._jobs.get()
    assert job is not None
    job()
    assert limit(node, tenant) == 140
    lending.again()
    assert node.decide._jobs.qsize() == 1


def test_a_pod_that_joins_while_its_container_is_created_is_waited_for(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        prepare(node, device(20))

        def join() -> None:
            time.sleep(0.2)
            node.decide.run(lambda: scheduled.set_pods(CLAIM, (POD, "ffff"), node.ledger))

        joining = threading.Thread(target=join)
        joining.start()
        assert container(node, tmp_path, pod="ffff").create(node)["mode"] == "shared"
        joining.join()


def test_a_probe_may_be_excluded_while_non_tenants_are_counted() -> None:
    """It is, on the calibration thread, again and again."""
    non_tenants = NonTenantUse(60)
    for pid in (1, 2):
        non_tenants.excuse(pid, 5.0)
    late = threading.Thread(target=lambda: non_tenants.excuse(3, 5.0))

    class Now(float):
        """The moment of a look in the middle of which one more is excused."""

        def __sub__(self, other: float) -> float:
            if late.ident is None:
                late.start()
                late.join(0.2)  # it may have to wait for the look
            return float(self) - other

    probe = (ProcessUse(3, GIB),)
    non_tenants.observe(Now(5.0), CARD, probe, first=False)
    late.join()
    assert non_tenants.observe(6.0, CARD, probe, first=True).non_tenants == ()
