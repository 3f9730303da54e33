# SPDX-License-Identifier: Apache-2.0
"""Starts that wait for room, beside evicted containers: the order, what is reserved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import QueueLimits
from gpushare.daemon.core.users import HostUsers
from gpushare.daemon.eviction.checkpoint_client import CheckpointError
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.lifecycle.queue import Applicant, QueueFull, TicketNotFound
from gpushare.daemon.placement.model import NO_LINKS, AllocationUse, CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest
from gpushare.daemon.placement.waiting import (
    WaitingRequest,
    can_ever_fit,
    find_next,
    usable_cards,
)
from gpushare.daemon.store.record import FreezeRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.metrics import daemon_metrics
from gpushare.daemon.views.queue import queue_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.quota.errors import QuotaError

from . import evictable, fakes
from .bundles import BundleToCreate
from .evictable import EvictableNode, EvictableTenant
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import ME, opened


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
    **quota: str,
) -> tuple[TicketRecord, str]:
    applicant = Applicant(f"job-{memory}", uid, pid or os.getpid(), uid != 0)
    asked = {
        key.strip("_").replace("_", "-"): text for key, text in {"memory": memory, **quota}.items()
    }
    return node.tickets.take(applicant, TicketSource(asked, {}, {}))


def now(node: FakeDaemon, ticket: TicketRecord) -> TicketRecord:
    return node.ledger.tickets[ticket.id]


def available(node: FakeDaemon) -> int:
    return node.accounts.capacities()[0].available_bytes


def fill(node: FakeDaemon) -> str:
    """Take all of the card but for 4 GiB; return the tenant's key."""
    left = available(node) - 4 * GIB
    return opened(node, memory=f"{left >> 20}MiB")["key"]


def end(node: FakeDaemon, key: str) -> None:
    release.release_tenant(key, node, "it has ended")
    node.decide.run(lambda: None)  # the look that this asked for


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
        "wait in the queue (gpushare run --wait)"
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


def test_the_uids_of_one_user_share_its_limits(one: FakeDaemon, tmp_path: Path) -> None:
    """Also two that no account and no range has."""
    (tmp_path / "passwd").write_text("ann:x:1000:1000::/:\nbob:x:1001:1001::/:\n")
    (tmp_path / "subuid").write_text("ann:100000:65536\n")
    one.node.users = HostUsers(tmp_path, lambda *_: frozenset(), lambda job: job())
    fill(one)
    for number in range(one.node.config.queue.max_tickets_per_user):
        take(one, "8GiB", uid=100_000 + number)
    with pytest.raises(QueueFull, match="user ann has 8 tickets"):
        take(one, "8GiB", uid=1000)
    take(one, "8GiB", uid=1001)
    for number in range(8):
        take(one, "8GiB", uid=9_000_000 + number)
    with pytest.raises(QueueFull, match="user strangers has 8 tickets"):
        take(one, "8GiB", uid=9_100_000)


def test_users_leave_places_in_the_queue_for_root(one: FakeDaemon) -> None:
    fill(one)
    for number in range(56):
        take(one, "8GiB", uid=1000 + number)
    with pytest.raises(QueueFull, match="the queue is full"):
        take(one, "8GiB", uid=2000)
    for _ in range(8):
        take(one, "8GiB")
    with pytest.raises(QueueFull, match="the queue is full"):
        take(one, "8GiB")


def test_two_uids_of_a_user_have_together_what_one_may(one: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("ann:100000:65536\n")
    one.node.users = HostUsers(tmp_path, lambda *_: frozenset(), lambda job: job())
    third = {"memory": f"{available(one) // 3 >> 20}MiB"}
    open_tenant(HostCommand("first", 100_000, rootless=True), third, one, one.room)
    with pytest.raises(NoRoom, match="user ann"):
        open_tenant(HostCommand("second", 100_001, rootless=True), third, one, one.room)
    open_tenant(HostCommand("another", 1001, rootless=True), third, one, one.room)


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


def test_a_start_gets_no_more_than_was_granted(one: FakeDaemon) -> None:
    ticket, _ = take(one, "2GiB")
    with pytest.raises(NoRoom, match=f"ticket {ticket.id} was granted less than the start"):
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


CARDS = tuple(fakes.card(index) for index in range(2))


SIZE_BYTES = CARDS[0].memory_bytes


def request(parts: int, count: int = 1) -> PlacementRequest:
    return PlacementRequest(memory_bytes=SIZE_BYTES * parts // 8, count=count)


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


@pytest.fixture
def made(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvictableNode]:
    with evictable.running(node, monkeypatch) as found:
        found.tenant(gib=130, devices="1")
        yield found


def take_ticket(made: EvictableNode, memory: str, **quota: str) -> TicketRecord:
    node = made.node
    ticket, _ = node.decide.run(lambda: take(node, memory, uid=0, pid=0, **quota))
    made.settle()
    return ticket


def look(made: EvictableNode) -> None:
    """Look as once a second."""
    made.node.tickets.look_soon()
    made.node.evictions.changed()
    made.settle()


def waits(made: EvictableNode, tenant: EvictableTenant) -> None:
    """Have a program of an evicted container use CUDA."""
    made.node.evictions.want(tenant.key)
    made.settle()


def blocked(made: EvictableNode) -> tuple[EvictableTenant, str]:
    """A container of 100 GiB that waits for its restore, and the key of one that has its room."""
    tenant = made.tenant(gib=100)
    made.node.evictions.evict(tenant.key)
    other = opened(made.node, memory="100GiB", devices="0")["key"]
    waits(made, tenant)
    assert tenant.record.is_off_card
    return tenant, other


def test_a_container_that_becomes_idle_makes_room_for_a_ticket_that_waits(
    made: EvictableNode,
) -> None:
    notebook = made.tenant(gib=100)
    ticket = take_ticket(made, "100GiB")
    look(made)
    assert not now(made.node, ticket).is_granted
    made.idle(notebook)
    look(made)
    assert now(made.node, ticket).is_granted
    assert notebook.eviction is not None
    assert (notebook.eviction.cause, notebook.eviction.reason) == ("idle", "job-100GiB had no room")


def test_the_class_of_a_ticket_decides_who_is_evicted_for_it(made: EvictableNode) -> None:
    made.configure(offline=True)
    batch = made.tenant(gib=100)
    offline = take_ticket(made, "100GiB")
    assert (now(made.node, offline).is_granted, batch.record.is_off_card) == (False, False)
    online = take_ticket(made, "100GiB", **{"class": "online"})
    assert (now(made.node, online).is_granted, batch.record.is_off_card) == (True, True)
    assert [one.ticket for one in made.node.queue.waiting if not one.container] == [offline.id]


def test_an_eviction_that_fails_is_not_tried_at_each_look(made: EvictableNode) -> None:
    notebook = made.tenant(gib=100)
    made.idle(notebook)
    refused = CheckpointError("checkpoint: CUDA_ERROR_NOT_SUPPORTED", 801)
    made.node.checkpoints.faults["checkpoint", notebook.pids[0]] = refused
    ticket = take_ticket(made, "100GiB")
    calls = len(made.node.checkpoints.calls)
    look(made)
    assert (now(made.node, ticket).is_granted, len(made.node.checkpoints.calls)) == (False, calls)
    opened(made.node, memory="100GiB", priority="0")  # a start that does not wait tries it again
    assert notebook.record.is_off_card


def test_what_is_evicted_for_a_start_is_not_granted_to_a_ticket(made: EvictableNode) -> None:
    made.configure(offline=True)
    batch = made.tenant(gib=100)
    ticket = take_ticket(made, "100GiB")
    made.node.checkpoints.during = lambda *_: made.node.decide.run(made.node.tickets.look)
    online = opened(made.node, memory="100GiB", class_="online")
    assert made.node.ledger.entries[online["key"]].allocations[0].quota_bytes == 100 * GIB
    assert batch.record.is_off_card
    assert not now(made.node, ticket).is_granted


def test_no_start_overtakes_a_restore_that_waits(made: EvictableNode) -> None:
    tenant, other = blocked(made)
    assert not take_ticket(made, "2GiB", devices="0").is_granted
    with pytest.raises(
        NoRoom, match="card 0 is withheld for an evicted container, which is before"
    ):
        opened(made.node, memory="1GiB", devices="0")
    end(made.node, other)
    assert not tenant.record.is_off_card
    opened(made.node, memory="1GiB", devices="0")


def test_a_restore_keeps_its_room_until_it_has_it(made: EvictableNode) -> None:
    tenant, other = blocked(made)
    listeners = made.node.ledger.changed.listeners
    listeners.remove(made.node.evictions.changed)  # the evict thread is busy
    end(made.node, other)
    with pytest.raises(NoRoom, match="withheld for an evicted container"):
        opened(made.node, memory="100GiB", devices="0")
    listeners.append(made.node.evictions.changed)
    made.node.evictions.changed()
    made.settle()
    assert not tenant.record.is_off_card


def test_a_restore_that_waits_is_in_the_queue_and_says_what_it_waits_for(
    made: EvictableNode,
) -> None:
    tenant, _ = blocked(made)
    ticket = take_ticket(made, "120GiB")
    first, second = queue_rows(made.node)
    assert (first["kind"], first["ticket"], first["position"]) == ("restore", "", 1)
    assert (first["name"], first["requests"]) == (tenant.record.title, "100 GiB")
    assert "card 0 has 40 of 140 GiB available" in first["reason"]
    assert (second["ticket"], second["position"]) == (ticket.id, 2)
    assert daemon_metrics(made.node)["queue_waiting"] == 1
    (warning,) = tenant_status(tenant.record, made.node)["warnings"]
    assert "it waits until a card has room (gpushare queue): no card has room" in warning


def test_a_paused_container_withholds_nothing_and_is_restored_once_it_goes_on(
    made: EvictableNode,
) -> None:
    tenant = made.tenant(gib=100, devices="0")
    made.node.evictions.evict(tenant.key)
    freezes = made.node.ledger.freezes
    freezes.put(FreezeRecord(tenant.key, "operator", "", 0.0))
    waits(made, tenant)
    assert tenant.record.is_off_card
    assert not made.node.queue.waiting
    for _ in range(2):
        opened(made.node, memory="1GiB", devices="0")
        made.settle()
    warnings = " ".join(tenant_status(tenant.record, made.node)["warnings"])
    assert f"waits until gpushare resume {tenant.record.title}" in warnings
    freezes.forget(tenant.key)
    look(made)
    assert not tenant.record.is_off_card
