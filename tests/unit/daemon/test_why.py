# SPDX-License-Identifier: Apache-2.0
"""`explain_memory`: every byte has a kind, the kinds add up, and the advice fits."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.views import why
from gpushare.protocol.rows import Why, WhyProcess

from . import operations, registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, card
from .operations import entry_of

CONTEXT = 500 * MIB


class BoundTenant:
    """A tenant of 4 GiB whose one process is `program`; its page is the test's to write."""

    def __init__(self, node: FakeDaemon, program: FakeProcess) -> None:
        self.node, self.program = node, program
        self.opened = operations.bound(node, program, memory="4GiB")
        self.pages = node.tenants.pages[self.opened["key"]]
        self.fd = self.pages.status.fd
        self.pages.grant.set_context(0, CONTEXT)
        self.refuse(0, times=0)

    def refuse(self, size: int, times: int = 1) -> None:
        process = self.program.pid, self.program.starttime
        registered.register(self.fd, 0, *process, denied=times, denied_bytes=size)

    def report(self) -> tuple[Why, list[WhyProcess]]:
        return why.explain_memory(entry_of(self.node, self.opened), self.node)


@pytest.fixture
def bound(node: FakeDaemon, program: FakeProcess) -> BoundTenant:
    return BoundTenant(node, program)


def test_unaccounted_memory_is_a_kind_of_its_own(bound: BoundTenant) -> None:
    kinds = {abi.KIND_CONTEXT: CONTEXT, abi.KIND_POOL: GIB}
    registered.hold(bound.fd, 0, 2 * GIB, kinds=kinds, contexts=1, pool_kept_bytes=768 * MIB)
    use = ProcessUse(bound.program.pid, 2 * GIB + 40 * MIB)
    bound.node.driver.uses = {card(0).uuid: (use,)}
    with registered.life(bound.fd, 0):
        for _ in range(4):
            bound.node.sampler.look()
    report, (holder,) = bound.report()
    (row,) = report["cards"]
    assert {part: size for part, size in row["kinds"].items() if size} == {
        "buffers": GIB - CONTEXT,
        "pools": GIB,
        "contexts": CONTEXT,
        "unaccounted": 40 * MIB,
    }
    assert row["used_bytes"] == 2 * GIB + 40 * MIB
    assert (row["expected_bytes"], row["driver_bytes"]) == (2 * GIB, 2 * GIB + 40 * MIB)
    assert row["drift_bytes"] == 40 * MIB
    assert row["drift_text"].startswith("the driver reports 40 MiB more than the account")
    assert (holder["pid"], holder["accounted"]) == (bound.program.pid, True)
    part = holder["cards"][0]
    assert (part["bytes"], part["driver_bytes"]) == (2 * GIB, 2 * GIB + 40 * MIB)
    assert any("memory pools keep 768 MiB" in sentence for sentence in report["advice"])


def test_the_last_refusal_outlives_its_process(bound: BoundTenant) -> None:
    bound.report()
    bound.refuse(3 * GIB)
    registered.hold(bound.fd, 0, 2 * GIB)
    report, _ = bound.report()
    assert report["denied_allocations"] == 1
    last = report["last_denied_allocation"]
    assert last is not None
    assert (last["bytes"], last["container_pid"]) == (3 * GIB, bound.program.pid)
    assert last["seen"] is not None
    assert "run gpushare set train --memory 5GiB" in "".join(report["advice"])
    bound.program.kill()
    bound.program.wait()
    assert bound.pages.reap(lambda _pid, _starttime: False) == 1
    after, holders = bound.report()
    assert (after["denied_allocations"], after["last_denied_allocation"], holders) == (1, last, [])


def test_the_advice_is_never_more_than_the_card(bound: BoundTenant) -> None:
    memory = card(0).memory_bytes
    registered.hold(bound.fd, 0, 3 * GIB)
    bound.refuse(memory - 3 * GIB)
    [sentence] = [one for one in bound.report()[0]["advice"] if "denied" in one]
    assert f"--memory {memory // GIB}GiB" in sentence
    bound.refuse(memory - 3 * GIB + 1, times=2)
    [sentence] = [one for one in bound.report()[0]["advice"] if "denied" in one]
    assert "--memory" not in sentence
    assert "does not fit the card" in sentence


def advised(bound: BoundTenant, of_card: dict[str, Any], *holders: Any, **of_report: Any) -> str:
    """Return the advice for the tenant's report with some figures changed."""
    report, _ = bound.report()
    [card] = report["cards"]
    changed: Any = {**report, "cards": [{**card, **of_card}], **of_report}
    return " | ".join(why.advice_for(changed, holders))


def test_advice_is_of_memory_on_a_card_that_has_an_account(bound: BoundTenant) -> None:
    above = {"used_bytes": 6 * GIB, "limit_bytes": 4 * GIB}
    assert advised(bound, above, isolation="exclusive") == ""
    assert advised(bound, above, eviction={"state": "evicted"}) == ""
    assert advised(bound, above) == (
        "the container is 2 GiB over quota: allocations fail until usage fits the quota. Free "
        "memory, or run gpushare set train --memory 6GiB"
    )
    stray = {"pid": 7, "accounted": False, "cards": [{"driver_bytes": GIB}]}
    assert advised(bound, {}, stray, {"accounted": True}).startswith(
        "1 GiB is used without an account, by process 7: it bypasses the interposer library"
    )
    assert why.accounting_drift(None, 0, 0).startswith("the driver does not report the memory")


def test_a_process_that_has_mapped_another_driver_is_known_by_it(tmp_path: Path) -> None:
    other, ours = tmp_path / "libcuda.so.560.35", tmp_path / "ours/libcuda.so.1"
    ours.parent.mkdir()
    for path in (other, ours):
        path.write_bytes(bytes(4096))
    inode = ours.stat().st_ino
    assert processes.mapped_driver(os.getpid(), {inode}) == ""
    with other.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert processes.mapped_driver(os.getpid(), {inode}) == str(other)
        other.unlink()
        assert processes.mapped_driver(os.getpid(), {inode}) == str(other)
        with ours.open("rb") as own, mmap.mmap(own.fileno(), 0, access=mmap.ACCESS_READ):
            assert processes.mapped_driver(os.getpid(), {inode}) == ""
    assert processes.mapped_driver(0, {inode}) == ""
