# SPDX-License-Identifier: Apache-2.0
"""What the driver says, put beside what tenants say: never a false refusal, never a frame-up."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.audit.foreign import ForeignUse
from gpushare.daemon.audit.overhead import Overhead
from gpushare.daemon.audit.truth import Truth
from gpushare.daemon.cards.card import Use
from gpushare.daemon.identity import processes
from gpushare.daemon.node import Node
from gpushare.daemon.pages.account import Account
from gpushare.daemon.pages.grant import Granted
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Pages
from gpushare.daemon.views.rows import card_row, tenant_row

from . import fakes, registered
from .fakes import GIB, MIB, FakeDriver

CARD = fakes.card().uuid


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[Node]:
    with fakes.node(tmp_path, driver) as made:
        yield made


@pytest.fixture
def truth(node: Node) -> Truth:
    return node.loaded().truth


@pytest.fixture
def child() -> Iterator[int]:
    """The process of a tenant: a descendant of ours, which is the bound one."""
    program = subprocess.Popen(["sleep", "1000"])
    yield program.pid
    program.kill()
    program.wait()


@pytest.fixture
def tenant(node: Node, child: int, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """A bound tenant without a cgroup of its own, that uses 1 GiB in one context."""
    monkeypatch.setattr(processes, "may_map", lambda pid, _inode: pid == child)
    process = processes.look(child)
    assert process is not None
    entry: Entry = fakes.entry()
    node.ledger.add(entry)
    node.ledger.bind(entry.key, pid=child, starttime=process.starttime, cgroup="")
    directory = node.mounts.make(entry.key, size_bytes=1 << 20)
    pages = Pages.make(directory, entry.key, [Granted(CARD, 4 * GIB, 0, 0)])
    node.tenants.add(entry.key, pages)
    claim(pages, child, process.starttime, GIB)
    return pages


def claim(pages: Pages, pid: int, starttime: int, used: int, denied: int = 0) -> None:
    fd = pages.status.fd
    registered.register(fd, 0, pid, starttime, denied=denied)
    registered.hold(fd, 0, used, contexts=1)


def test_overhead_is_what_the_driver_has_above_the_account(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    driver.uses = {CARD: (Use(child, GIB + 500 * MIB, 40),)}
    for _ in range(4):
        truth.look()
    assert tenant.grant.overhead_bytes(0) == 500 * MIB
    assert truth.view.utilisation == {("0" * 16, CARD): 40}


@pytest.mark.usefixtures("tenant")
def test_what_each_process_has_of_each_card_is_shown(
    driver: FakeDriver, node: Node, truth: Truth, child: int
) -> None:
    driver.uses = {CARD: (Use(child, GIB, 40),)}
    driver.busy = {CARD: 45}
    truth.look()
    process = tenant_row(node.ledger.entries["0" * 16], node)["processes"][0]
    assert process["pid"] == child
    assert process["cards"] == [{"index": 0, "bytes": GIB, "utilisation": 40}]
    assert card_row(node.rooms()[0])["utilisation"] == 45


@pytest.mark.usefixtures("tenant")
def test_a_card_that_is_lost_is_not_as_busy_as_it_was(
    driver: FakeDriver, node: Node, truth: Truth
) -> None:
    driver.busy = {CARD: 45}
    truth.look()
    driver.lost = frozenset({CARD})
    truth.look()
    assert card_row(node.rooms()[0])["utilisation"] is None


def test_one_look_that_raced_an_allocation_refuses_nobody(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    """The driver has 2 GiB more than either account: allocated and freed between the reads."""
    driver.uses = {CARD: (Use(child, GIB + 500 * MIB),)}
    for _ in range(4):
        truth.look()
    driver.uses = {CARD: (Use(child, 3 * GIB + 500 * MIB),)}
    truth.look()
    assert tenant.grant.overhead_bytes(0) == 500 * MIB


def test_what_is_allocated_during_the_look_is_not_overhead(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    process = processes.look(child)
    assert process is not None
    sizes = iter(range(2, 100))

    def grow() -> None:
        used = next(sizes) * GIB
        driver.uses = {CARD: (Use(child, used + 500 * MIB),)}
        claim(tenant, child, process.starttime, used)

    driver.during = grow
    for _ in range(8):
        truth.look()
        assert tenant.grant.overhead_bytes(0) <= 500 * MIB


def test_before_there_are_enough_looks_nothing_is_said() -> None:
    overhead = Overhead()
    account = Account()
    assert [overhead.observe(GIB, account, account) for _ in range(4)] == [0, 0, 0, GIB]


def test_what_an_earlier_daemon_published_stands_until_there_are_enough_looks(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    tenant.grant.set_measured(0, 500 * MIB, 0)
    driver.uses = {CARD: (Use(child, GIB + 600 * MIB),)}
    told = []
    for _ in range(4):
        truth.look()
        told.append(tenant.grant.overhead_bytes(0) // MIB)
    assert told == [500, 500, 500, 600]


def test_a_card_that_does_not_answer_lends_nobodys_contexts(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    """What cannot be asked is as it was: overhead, foreign use, and who is where."""
    driver.uses = {CARD: (Use(child, GIB + 500 * MIB), Use(os.getpid(), GIB))}
    for _ in range(4):
        truth.look()
    driver.lost = frozenset({CARD})
    truth.look()
    assert tenant.grant.overhead_bytes(0) == 500 * MIB
    assert truth.view.cards[CARD].foreign_bytes == GIB
    assert truth.view.cards[CARD].health == "GPU is lost"
    driver.lost = frozenset()
    truth.look()
    assert truth.view.cards[CARD].health == "ok"


def test_a_process_of_which_the_driver_says_no_figure_changes_none(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    driver.uses = {CARD: (Use(child, GIB + 500 * MIB),)}
    for _ in range(4):
        truth.look()
    driver.uses = {CARD: (Use(child, None),)}
    truth.look()
    assert tenant.grant.overhead_bytes(0) == 500 * MIB


@given(
    true_bytes=st.integers(0, GIB),
    looks=st.lists(st.tuples(*[st.integers(0, 4 * GIB)] * 3), min_size=4, max_size=12),
)
def test_nobody_is_refused_for_a_look_that_raced(
    true_bytes: int, looks: list[tuple[int, int, int]]
) -> None:
    """Of four looks one in which the tenant did not both take and give back is enough."""
    overhead = Overhead()
    for number, (before, at, after) in enumerate(looks):
        told = overhead.observe(
            at + true_bytes, Account(held_bytes=before), Account(held_bytes=after)
        )
        last = looks[max(0, number - 3) : number + 1]
        if any(one_way(look) for look in last):
            assert told <= true_bytes
        if number >= 3 and all(before == at == after for before, at, after in last):
            assert told == true_bytes


def one_way(look: tuple[int, int, int]) -> bool:
    return list(look) in (sorted(look), sorted(look, reverse=True))


@given(managed=st.integers(0, 4 * GIB), rest=st.integers(0, 4 * GIB), beside=st.integers(0, GIB))
def test_memory_that_the_driver_does_not_count_is_not_made_up_for(
    managed: int, rest: int, beside: int
) -> None:
    kinds = tuple(managed if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    account = Account(held_bytes=managed + rest, kinds=kinds)
    overhead = Overhead()
    told = [overhead.observe(rest + beside, account, account) for _ in range(4)][-1]
    assert account.used_bytes(told) == managed + rest + beside


def test_overhead_falls_at_once() -> None:
    overhead = Overhead()
    for _ in range(4):
        overhead.observe(GIB, Account(), Account())
    assert overhead.observe(0, Account(), Account()) == 0


def test_memory_that_the_driver_does_not_see_is_no_negative_overhead(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    driver.uses = {CARD: (Use(child, 100 * MIB),)}
    for _ in range(4):
        truth.look()
    assert tenant.grant.overhead_bytes(0) == 0


def test_every_look_is_a_heartbeat(truth: Truth, tenant: Pages, tmp_path: Path) -> None:
    grant = next(tmp_path.glob("run/tenants/*/pages/grant"))

    def heartbeat() -> int:
        at = abi.GRANT_HEADER_HEARTBEAT_NS
        return int.from_bytes(grant.read_bytes()[at : at + 8], "little")

    before = heartbeat()
    truth.look()
    assert before < heartbeat() <= time.monotonic_ns()
    assert tenant.grant.generation == 1


def test_a_silent_driver_leaves_what_was_known_and_says_so(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    driver.uses = {CARD: (Use(child, GIB + 500 * MIB),)}
    for _ in range(4):
        truth.look()
    driver.fault = "it hangs"
    truth.look()
    assert truth.view.stale == "it hangs"
    assert tenant.grant.overhead_bytes(0) == 500 * MIB
    assert "0" * 16 in truth.view.processes
    driver.fault = ""
    truth.look()
    assert not truth.view.stale


def test_a_process_that_ended_without_a_word_is_reaped(truth: Truth, tenant: Pages) -> None:
    claim(tenant, 1, 1, GIB)  # pid 1 with another start time: no process of the tenant
    truth.look()
    assert tenant.accounts()[0].held_bytes == 0


def test_a_living_process_is_not_reaped(truth: Truth, tenant: Pages) -> None:
    truth.look()
    assert tenant.accounts()[0].held_bytes == GIB


def test_what_a_process_was_refused_is_counted_after_its_end(
    node: Node, truth: Truth, tenant: Pages, child: int
) -> None:
    def denied() -> int:
        [card] = tenant_row(node.ledger.entries["0" * 16], node)["cards"]
        return card["denied"]

    process = processes.look(child)
    assert process is not None
    claim(tenant, 1, 1, GIB, denied=3)  # dead, and the first look reaps it
    truth.look()
    assert (tenant.claims(), denied()) == ((), 3)
    claim(tenant, child, process.starttime, GIB, denied=2)
    assert denied() == 5
    claim(tenant, child, process.starttime, GIB)  # another program in the same process: from 0
    assert denied() == 5
    claim(tenant, child, process.starttime, GIB, denied=1)
    assert denied() == 6


def test_a_closed_tenant_is_left_alone(node: Node, truth: Truth, tenant: Pages) -> None:
    node.tenants.remove("0" * 16)
    truth.look()
    assert tenant.claims() == ()


def test_a_process_of_nobody_is_foreign(driver: FakeDriver, truth: Truth) -> None:
    me = os.getpid()
    driver.uses = {CARD: (Use(me, GIB),)}
    truth.look()
    found = truth.view.cards[CARD]
    assert (found.foreign[0].pid, found.foreign[0].bytes, found.foreign_bytes) == (me, GIB, GIB)
    assert found.foreign[0].name == Path("/proc/self/comm").read_text().strip()


def test_a_tenants_process_is_not_foreign(
    driver: FakeDriver, truth: Truth, tenant: Pages, child: int
) -> None:
    del tenant
    driver.uses = {CARD: (Use(child, GIB),)}
    truth.look()
    assert truth.view.cards[CARD].foreign == ()


def test_a_stranger_must_be_seen_twice() -> None:
    foreign = ForeignUse(60)
    foreign.observe(0, CARD, (), first=True)
    stranger = (Use(os.getpid(), GIB),)
    assert foreign.observe(1, CARD, stranger, first=False).foreign_bytes == 0
    assert foreign.observe(2, CARD, stranger, first=False).foreign_bytes == GIB


def test_a_process_that_was_a_tenants_takes_its_time_to_leave() -> None:
    """Released, and still in the driver's list: no room may be lost over it."""
    foreign = ForeignUse(60)
    leaving = (Use(99999, 4 * GIB),)
    foreign.excuse(99999, 0)
    for look in range(1, 30):
        assert foreign.observe(look / 4, CARD, leaving, first=False).foreign_bytes == 0
    foreign.observe(11, CARD, leaving, first=False)
    assert foreign.observe(12, CARD, leaving, first=False).foreign_bytes == 4 * GIB


def test_the_cgroup_says_whose_a_process_is(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, node: Node, truth: Truth
) -> None:
    fakes.all_are_there(monkeypatch)
    paths = {7: {"": "/x/a/nested"}, 8: {"": "/x/ab"}, 9: {"devices": "/x/a"}}
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: paths.get(pid, {}))
    monkeypatch.setattr(processes, "look", lambda pid: None)  # noqa: ARG005
    entry = replace(fakes.entry(), state="bound", pid=4, cgroup=":/x/a")
    node.ledger.add(entry)
    driver.uses = {CARD: tuple(Use(pid, GIB) for pid in paths)}
    truth.look()
    owned = [use.pid for _, use in truth.view.processes[entry.key]]
    assert owned == [7]
    assert {one.pid for one in truth.view.cards[CARD].foreign} == {8, 9}


def test_a_look_that_fails_is_not_the_last(
    driver: FakeDriver,
    truth: Truth,
    tenant: Pages,
    child: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise RuntimeError("what nobody thought of")

    driver.uses = {CARD: (Use(child, 2 * GIB),)}
    driver.during = fail
    truth.look()
    truth.look()
    assert "RuntimeError" in truth.view.stale
    assert capfd.readouterr().err.count("look-failed") == 1
    driver.during = lambda: None
    for _ in range(4):
        truth.look()
    assert not truth.view.stale
    assert tenant.grant.overhead_bytes(0) == GIB


def test_a_tenant_that_cannot_be_reaped_is_not_in_the_way(
    truth: Truth, tenant: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    del tenant

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(processes, "members", broken)
    truth.look()
    assert not truth.view.stale


def test_a_probe_may_be_excused_while_foreign_processes_are_looked_for() -> None:
    """It is, on the calibration thread, again and again."""
    foreign = ForeignUse(60)
    for pid in (1, 2):
        foreign.excuse(pid, 5.0)
    late = threading.Thread(target=lambda: foreign.excuse(3, 5.0))

    class Now(float):
        """The moment of a look in the middle of which one more is excused."""

        def __sub__(self, other: float) -> float:
            if late.ident is None:
                late.start()
                late.join(0.2)  # it may have to wait for the look
            return float(self) - other

    probe = (Use(3, GIB),)
    foreign.observe(Now(5.0), CARD, probe, first=False)
    late.join()
    assert foreign.observe(6.0, CARD, probe, first=True).foreign == ()


def test_what_contexts_take_is_no_more_than_what_they_are_charged_and_the_driver_has_beside(
    node: Node, driver: FakeDriver, tenant: Pages, child: int
) -> None:
    """One that notes its buffers as contexts would make everybody's dear."""
    learned: list[int] = []
    truth = Truth(
        driver,
        node.ledger,
        node.tenants,
        foreign_half_life=60,
        learned=lambda _card, _key, size: learned.append(size),
    )
    driver.uses = {CARD: (Use(child, 3 * GIB + 100 * MIB),)}
    kinds = {abi.KIND_CONTEXT: 3 * GIB}
    registered.hold(tenant.status.fd, 0, 3 * GIB, contexts=1, kinds=kinds)
    for price, told in ((0, 100 * MIB), (500 * MIB, 600 * MIB)):
        tenant.grant.set_context(0, price)
        for _ in range(4):
            truth.look()
        assert learned[-1] == told
