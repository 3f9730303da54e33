# SPDX-License-Identifier: Apache-2.0
"""Starts that wait for room: the order of grants, and what a grant reserves."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.config import QueueLimits
from gpushare.daemon.lifecycle import create, release
from gpushare.daemon.lifecycle.create import CreateAbandoned
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.lifecycle.queue import Applicant, Queue, QueueFull, TicketNotFound
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import NO_LINKS, AllocationUse, CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest
from gpushare.daemon.placement.waiting import (
    WaitingRequest,
    can_ever_fit,
    find_next,
    in_order,
    usable_cards,
    with_withheld,
)
from gpushare.daemon.store.ledger import Record
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.queue import queue_rows
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import FakeDaemon, FakeDriver
from .operations import ME, opened

GIB = 1 << 30


@pytest.fixture
def one(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0))) as made:
        yield made


def take(
    node: FakeDaemon,
    memory: str,
    *,
    uid: int = 0,
    pid: int = 0,
    wait: float | None = None,
    **quota: str,
) -> tuple[TicketRecord, str]:
    applicant = Applicant(f"job-{memory}", uid, pid or os.getpid(), uid != 0, wait_seconds=wait)
    asked = {
        key.strip("_").replace("_", "-"): text for key, text in {"memory": memory, **quota}.items()
    }
    return node.tickets.take(applicant, TicketSource(asked, {}, {}))


def now(node: FakeDaemon, ticket: TicketRecord) -> TicketRecord:
    return node.ledger.tickets[ticket.id]


def available(node: FakeDaemon) -> int:
    return node.accounts.capacities()[0].available_bytes


def settle(node: FakeDaemon) -> None:
    """Wait for what follows the answer to a start."""
    node.decide.run(lambda: None)


def fill(node: FakeDaemon) -> str:
    """Take all of the card but for 4 GiB; return the tenant's key."""
    left = available(node) - 4 * GIB
    return opened(node, memory=f"{left >> 20}MiB")["key"]


def end(node: FakeDaemon, key: str) -> None:
    release.release_tenant(key, node, "it has ended")
    settle(node)  # the look that this asked for


def test_a_start_that_fits_is_granted_at_once_and_its_room_is_nobody_else_s(
    one: FakeDaemon,
) -> None:
    fill(one)
    ticket, _ = take(one, "3GiB")
    assert ticket.is_granted
    assert (
        one.accounts.capacities()[0].schedulable_bytes == GIB
    )  # nor of the scheduler of Kubernetes
    with pytest.raises(NoRoom, match=rf"ticket {ticket.id} 3"):
        opened(one, memory="3GiB")
    opened(one, memory="1GiB")


def test_a_start_that_waits_is_overtaken_by_nothing_that_comes_after_it(one: FakeDaemon) -> None:
    first = fill(one)
    large, _ = take(one, "8GiB")
    small, _ = take(one, "1GiB")
    assert not small.is_granted
    with pytest.raises(NoRoom) as error:
        opened(one, memory="1GiB")
    assert (
        f"card 0 is withheld for ticket {large.id}, which is before it in the queue; "
        "wait in the queue (gpushare run --wait, GPUSHARE_WAIT=30s)"
    ) in str(error.value)
    end(one, first)
    assert now(one, large).is_granted
    assert now(one, small).is_granted
    opened(one, memory="1GiB")


def test_class_and_priority_come_before_arrival(one: FakeDaemon) -> None:
    fill(one)
    take(one, "8GiB")
    urgent, _ = take(one, "1GiB", priority="0")
    online, _ = take(one, "1GiB", class_="online", priority="9")
    assert (urgent.is_granted, online.is_granted) == (True, True)
    opened(one, memory="512MiB", priority="4")  # nor does a start that does not wait come last
    opened(one, memory="512MiB", class_="online")
    with pytest.raises(NoRoom, match="which is before it in the queue"):
        opened(one, memory="512MiB")


def test_it_withholds_no_card_while_its_own_user_has_too_much(one: FakeDaemon) -> None:
    user = HostCommand("mine", 1000, rootless=True)
    half = available(one) // 2 >> 20
    open_tenant(user, {"memory": f"{half - 1024}MiB"}, one, one.room)
    ticket, _ = take(one, "2GiB", uid=1000)
    assert not ticket.is_granted
    opened(one, memory="1GiB")


def test_a_user_has_so_many_tickets_and_cancels_only_its_own(one: FakeDaemon) -> None:
    one.node.config = replace(
        one.node.config, queue=QueueLimits(max_tickets_per_user=2, max_tickets=4)
    )
    fill(one)
    mine = [take(one, "8GiB", uid=1000)[0] for _ in range(2)]
    with pytest.raises(QueueFull, match="user 1000 has 2 tickets"):
        take(one, "8GiB", uid=1000)
    take(one, "8GiB", uid=1001)
    take(one, "8GiB")
    with pytest.raises(QueueFull, match="the queue is full: 4 tickets"):
        take(one, "8GiB")
    with pytest.raises(TicketNotFound):
        one.tickets.cancel(mine[0].id, 1001)
    one.tickets.cancel(mine[0].id, 1000)
    one.tickets.cancel(mine[1].id, 0)
    assert one.queue.ended[mine[0].id] == "cancelled"


def test_a_ticket_ends_with_its_client_and_its_grant_with_it(
    one: FakeDaemon, program: FakeProcess
) -> None:
    first = fill(one)
    ticket, _ = take(one, "8GiB", pid=program.pid)
    end(one, first)
    assert now(one, ticket).is_granted
    before = available(one)
    program.kill()
    program.wait()
    one.tickets.look()
    assert ticket.id not in one.ledger.tickets
    assert available(one) == before + 8 * GIB


def test_a_restart_changes_no_order_and_loses_no_grant(one: FakeDaemon) -> None:
    fill(one)
    granted, _ = take(one, "1GiB")
    waiting = [take(one, "8GiB")[0], take(one, "8GiB", priority="2")[0]]
    rows = [row["ticket"] for row in queue_rows(one)]
    one.reopen_ledger()
    one.tickets = Queue(one)
    one.tickets.adopt()
    assert [row["ticket"] for row in queue_rows(one)] == rows
    assert rows == [granted.id, waiting[1].id, waiting[0].id]
    assert now(one, granted).is_granted
    with pytest.raises(NoRoom):
        opened(one, memory="4GiB")


def test_a_start_gets_no_more_than_was_granted(one: FakeDaemon) -> None:
    ticket, _ = take(one, "2GiB")
    with pytest.raises(NoRoom, match=f"ticket {ticket.id} was granted 2 GiB, and the start"):
        open_tenant(ME, {"memory": "3GiB"}, one, one.room, now(one, ticket))
    assert now(one, ticket).is_granted
    open_tenant(ME, {"memory": "1GiB"}, one, one.room, now(one, ticket))


def test_a_user_s_grants_count_for_its_maximum(one: FakeDaemon) -> None:
    half = available(one) // 2 >> 20
    first, _ = take(one, f"{half - 1024}MiB", uid=1000)
    second, _ = take(one, "2GiB", uid=1000)
    assert (now(one, first).is_granted, now(one, second).is_granted) == (True, False)
    user = HostCommand("mine", 1000, rootless=True)
    open_tenant(user, {"memory": f"{half - 1024}MiB"}, one, one.room, now(one, first))


def test_a_create_waits_for_room_and_is_refused_without(one: FakeDaemon, tmp_path: Path) -> None:
    first = fill(one)
    bundle = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=8GiB", "GPUSHARE_WAIT=30s")
    asked: list[float] = []

    def waits(seconds: float) -> None:
        asked.append(seconds)
        if one.ledger.tickets:
            release.release_tenant(first, one, "it has ended")

    with bundle.bundle() as made:
        created = create.create(replace(made, waits=waits), one, one.room)
    assert created["mode"] == "shared"
    assert asked[-2:] == [30, 0]
    assert not one.ledger.tickets
    short = BundleToCreate(
        tmp_path / "c", "GPUSHARE_MEMORY=135GiB", "GPUSHARE_WAIT=1s", identity="5a4d"
    )
    with pytest.raises(NoRoom):
        short.create(one)
    assert not one.ledger.tickets


def test_a_create_waits_no_longer_than_its_client(one: FakeDaemon, tmp_path: Path) -> None:
    fill(one)
    bundle = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=8GiB", "GPUSHARE_WAIT=30s")
    with bundle.bundle() as made, pytest.raises(CreateAbandoned):
        create.create(replace(made, is_abandoned=lambda: bool(one.ledger.tickets)), one, one.room)
    assert not one.ledger.tickets


def test_a_pod_does_not_wait_and_no_create_longer_than_30_s(
    one: FakeDaemon, tmp_path: Path
) -> None:
    pods = ContainerdBundles(tmp_path, {"gpushare.io/memory": "1GiB"})
    with pytest.raises(QuotaError, match="not for pods: the kubelet creates a container again"):
        pods.container("main", wait="10s").create(one)
    long = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=1GiB", "GPUSHARE_WAIT=31s")
    with pytest.raises(QuotaError, match="Write 1s to 30s; gpushare run --wait waits longer"):
        long.create(one)


def test_a_container_shows_its_ticket_and_one_that_has_ended_is_no_ticket(
    one: FakeDaemon, tmp_path: Path
) -> None:
    left = available(one)
    applicant = Applicant("train", 0, os.getpid(), False, "container")
    variables = {"GPUSHARE_MEMORY": "8GiB"}
    ticket, secret = one.tickets.take(applicant, TicketSource({}, variables, {}))
    asked = ("GPUSHARE_MEMORY=8GiB", f"GPUSHARE_TICKET={secret}")
    BundleToCreate(tmp_path / "a", *asked).create(one)
    assert available(one) == left - 8 * GIB
    assert one.queue.ended[ticket.id] == "started"
    BundleToCreate(tmp_path / "b", *asked, identity="5a4d").create(one)
    assert available(one) == left - 16 * GIB


def test_cards_of_an_engine_are_read(node: FakeDaemon) -> None:
    applicant = Applicant("train", 0, os.getpid(), False, "container")
    for text, count in (("all", 2), ("1", 1), ("device=1", 1)):
        ticket, _ = node.tickets.take(applicant, TicketSource({}, {}, {}, text))
        assert [one.whole for one in ticket.allocations] == [True] * count
        node.tickets.cancel(ticket.id, 0)
    with pytest.raises(QuotaError, match="Use all, a number, or device=0,1"):
        node.tickets.take(applicant, TicketSource({}, {}, {}, "some"))


def test_a_full_disk_neither_undoes_a_start_nor_stops_the_queue(
    one: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fill(one)
    waiting, _ = take(one, "8GiB")

    put = one.ledger.put

    def full(record: Record) -> None:
        if isinstance(record, TicketRecord):
            raise OSError(28, "No space left on device")
        put(record)

    with monkeypatch.context() as patched:
        patched.setattr(one.ledger, "put", full)
        opened(one, memory="1GiB", priority="0")
        end(one, first)
        assert not now(one, waiting).is_granted
        assert "No space left on device" in one.queue.reasons[waiting.id]
    one.tickets.look()
    assert now(one, waiting).is_granted


CARDS = tuple(fakes.card(index) for index in range(2))
SIZE_BYTES = CARDS[0].memory_bytes


@dataclass
class TwoCards:
    """Two cards and a queue, in which each start runs until the test ends it."""

    waiting: list[WaitingRequest] = field(default_factory=list)
    running: dict[int, list[AllocationUse]] = field(default_factory=dict)
    number: int = 0

    def capacities(self) -> Sequence[CardCapacity]:
        used = [use for uses in self.running.values() for use in uses]
        return [
            CardCapacity(card, tuple(use for use in used if use.key == card.uuid)) for card in CARDS
        ]

    def arrive(self, request: PlacementRequest, priority: int) -> None:
        self.number += 1
        ranked = replace(request, rank=(True, priority, self.number))
        self.waiting.append(WaitingRequest(f"{self.number:08x}", ranked))

    def start(self, request: PlacementRequest) -> None:
        """Start what does not wait, if it is not refused."""
        found = find_next(in_order(self.waiting), self.capacities(), NO_LINKS)
        left = with_withheld(self.capacities(), found.withheld, request.rank)
        try:
            placed = place_request(request, left)
        except NoRoom:
            return
        self.number += 1
        self._run(self.number, [(one.card.uuid, one.memory_bytes) for one in placed])

    def look(self) -> None:
        while True:
            found = find_next(in_order(self.waiting), self.capacities(), NO_LINKS)
            if found.granted is None:
                return
            earlier = {uuid for uuid, one in found.withheld.items() if one is not found.granted}
            assert earlier.isdisjoint(one.card.uuid for one in found.placed)
            self.waiting.remove(found.granted)
            parts = [(one.card.uuid, one.memory_bytes) for one in found.placed]
            self._run(int(found.granted.ticket, 16), parts)

    def _run(self, number: int, parts: list[tuple[str, int]]) -> None:
        self.running[number] = [AllocationUse(f"{number}", size, key=uuid) for uuid, size in parts]

    def end(self, choose: random.Random) -> None:
        if self.running:
            del self.running[choose.choice(sorted(self.running))]


def request(parts: int, count: int = 1) -> PlacementRequest:
    return PlacementRequest(memory_bytes=SIZE_BYTES * parts // 8, count=count)


@given(st.randoms(use_true_random=False), st.integers(1, 2), st.integers(5, 8))
def test_each_request_is_granted_while_others_keep_coming(
    choose: random.Random, count: int, parts: int
) -> None:
    node = TwoCards()
    for _ in range(choose.randrange(1, 4)):
        node.start(request(choose.randrange(1, 9)))
    node.arrive(request(parts, count), priority=0)
    node.look()
    rounds = 0
    while any(one.request.rank[1] == 0 for one in node.waiting):
        rounds += 1
        assert rounds < 200, "a request waits although every start before it has ended"
        node.arrive(request(choose.randrange(1, 5)), priority=choose.randrange(1, 9))
        node.start(request(choose.randrange(1, 5)))
        if choose.random() < 0.7:
            node.end(choose)
        node.look()


def test_a_card_that_a_request_may_not_use_is_not_withheld_for_it() -> None:
    capacities = [
        CardCapacity(CARDS[0], cordoned="ECC errors"),
        CardCapacity(CARDS[1], allocations=(AllocationUse("train", SIZE_BYTES - GIB),)),
    ]
    assert usable_cards(request(1), capacities) == {CARDS[1].uuid}
    assert usable_cards(replace(request(1), devices=("0",)), capacities) == frozenset()
    late = WaitingRequest("00000001", request(2, count=2))
    found = find_next([late], capacities, NO_LINKS)
    assert found.withheld == {}  # it waits for the cordoned card: the other is not kept idle
    one = WaitingRequest("00000002", request(2))
    assert find_next([one], capacities, NO_LINKS).withheld == {CARDS[1].uuid: one}
    both = [replace(capacities[0], cordoned=None), capacities[1]]
    both[0] = replace(both[0], allocations=(AllocationUse("large", SIZE_BYTES),))
    nearest = find_next([one], both, NO_LINKS).withheld
    assert nearest == {CARDS[1].uuid: one}  # where less has to end; the other card is not kept idle
    can_ever_fit(request(2, count=2), capacities)
    with pytest.raises(NoRoom):
        can_ever_fit(request(9), capacities)
