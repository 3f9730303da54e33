# SPDX-License-Identifier: Apache-2.0
"""Starts that wait for room: the order of grants, and what a grant reserves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import QueueLimits
from gpushare.daemon.lifecycle import create, release
from gpushare.daemon.lifecycle.create import CreateAbandoned
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.lifecycle.queue import Applicant, Queue, QueueFull, TicketNotFound
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.queue_rows import queue_rows
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
    asked = {key.replace("_", "-"): text for key, text in {"memory": memory, **quota}.items()}
    return node.tickets.take(applicant, TicketSource(asked, {}, {}))


def now(node: DaemonState, ticket: TicketRecord) -> TicketRecord:
    return node.ledger.tickets[ticket.id]


def available(node: DaemonState) -> int:
    return node.capacities()[0].available_bytes


def settle(node: DaemonState) -> None:
    """Wait for what follows the answer to a start."""
    node.decide.run(lambda: None)


def fill(node: DaemonState) -> str:
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
    assert one.capacities()[0].schedulable_bytes == GIB  # nor of the scheduler of Kubernetes
    with pytest.raises(NoRoom, match=rf"ticket {ticket.id} 3"):
        opened(one, memory="3GiB")
    opened(one, memory="1GiB")


def test_a_later_start_overtakes_only_so_often(one: FakeDaemon) -> None:
    one.config = replace(one.config, queue=QueueLimits(max_overtakes=2))
    first = fill(one)
    large, _ = take(one, "8GiB")
    small, _ = take(one, "1GiB")
    assert small.is_granted
    open_tenant(ME, {"memory": "1GiB"}, one, small)
    assert now(one, large).overtaken == 1
    opened(one, memory="1GiB")  # a start that does not wait overtakes too
    settle(one)
    assert now(one, large).overtaken == 2
    refused, _ = take(one, "1GiB")
    assert not refused.is_granted
    with pytest.raises(NoRoom) as error:
        opened(one, memory="1GiB")
    assert (
        f"card 0 is withheld for ticket {large.id}, which was overtaken 2 times, first 0 min ago; "
        "wait in the queue (gpushare run --wait, GPUSHARE_WAIT=30s)"
    ) in str(error.value)
    end(one, first)
    assert now(one, large).is_granted
    assert now(one, refused).is_granted
    opened(one, memory="1GiB")


def test_it_withholds_no_card_while_its_own_user_has_too_much(one: FakeDaemon) -> None:
    one.config = replace(one.config, queue=QueueLimits(max_overtakes=1))
    user = HostCommand("mine", 1000, rootless=True)
    half = available(one) // 2 >> 20
    open_tenant(user, {"memory": f"{half - 1024}MiB"}, one)
    ticket, _ = take(one, "2GiB", uid=1000)
    assert not ticket.is_granted
    opened(one, memory="1GiB")
    settle(one)
    assert now(one, ticket).overtaken == 0
    opened(one, memory="1GiB")


def test_a_user_has_so_many_tickets_and_cancels_only_its_own(one: FakeDaemon) -> None:
    one.config = replace(one.config, queue=QueueLimits(max_tickets_per_user=2, max_tickets=4))
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
    overtaken = now(one, waiting[0]).overtaken
    rows = [row["ticket"] for row in queue_rows(one)]
    one.ledger.close()
    one.ledger = Ledger(one.config.run_dir / "ledger", "boot", one.integrity)
    one.tickets = Queue(one)
    one.tickets.adopt()
    assert [row["ticket"] for row in queue_rows(one)] == rows
    assert rows == [granted.id, waiting[1].id, waiting[0].id]
    assert now(one, granted).is_granted
    assert now(one, waiting[0]).overtaken == overtaken
    with pytest.raises(NoRoom):
        opened(one, memory="4GiB")


def test_a_start_gets_no_more_than_was_granted(one: FakeDaemon) -> None:
    ticket, _ = take(one, "2GiB")
    with pytest.raises(NoRoom, match=f"ticket {ticket.id} was granted 2 GiB, and the start"):
        open_tenant(ME, {"memory": "3GiB"}, one, now(one, ticket))
    assert now(one, ticket).is_granted
    open_tenant(ME, {"memory": "1GiB"}, one, now(one, ticket))


def test_a_user_s_grants_count_for_its_maximum(one: FakeDaemon) -> None:
    half = available(one) // 2 >> 20
    first, _ = take(one, f"{half - 1024}MiB", uid=1000)
    second, _ = take(one, "2GiB", uid=1000)
    assert (now(one, first).is_granted, now(one, second).is_granted) == (True, False)
    user = HostCommand("mine", 1000, rootless=True)
    open_tenant(user, {"memory": f"{half - 1024}MiB"}, one, now(one, first))


def test_a_create_waits_for_room_and_is_refused_without(one: FakeDaemon, tmp_path: Path) -> None:
    first = fill(one)
    bundle = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=8GiB", "GPUSHARE_WAIT=30s")
    asked: list[float] = []

    def waits(seconds: float) -> None:
        asked.append(seconds)
        if seconds:
            release.release_tenant(first, one, "it has ended")

    with bundle.bundle() as made:
        created = create.create(replace(made, waits=waits), one)
    assert created["mode"] == "shared"
    assert asked == [30, 0]
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
        create.create(replace(made, is_abandoned=lambda: bool(one.ledger.tickets)), one)
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


def test_without_overtaking_the_order_is_strict(one: FakeDaemon) -> None:
    one.config = replace(one.config, queue=QueueLimits(max_overtakes=0))
    fill(one)
    large, _ = take(one, "8GiB")
    small, _ = take(one, "1GiB")
    assert not now(one, small).is_granted
    with pytest.raises(NoRoom, match=f"ticket {large.id}, which is before it in the queue"):
        opened(one, memory="1GiB")
    urgent, _ = take(one, "1GiB", priority="0")
    assert urgent.is_granted  # it is before them


def test_a_full_disk_neither_undoes_a_start_nor_stops_the_queue(
    one: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fill(one)
    waiting, _ = take(one, "8GiB")

    def full(_ticket: TicketRecord) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(one.ledger, "put_ticket", full)
        opened(one, memory="1GiB")  # it overtakes, which cannot be counted
        settle(one)
        end(one, first)
        assert not now(one, waiting).is_granted
        assert "No space left on device" in one.queue.reasons[waiting.id]
    one.tickets.look()
    assert now(one, waiting).is_granted


def test_a_start_with_a_ticket_takes_no_card_that_is_withheld_for_another(
    node: FakeDaemon,
) -> None:
    node.config = replace(node.config, queue=QueueLimits(max_overtakes=1))
    left = available(node) >> 20
    opened(node, memory=f"{left - 10240}MiB", devices="0")
    opened(node, memory=f"{left - 4096}MiB", devices="1")
    granted, _ = take(node, "3GiB", devices="0")  # of 10 GiB; card 1 is the fuller one
    late, _ = take(node, "8GiB", devices="1")
    opened(node, memory="1GiB", devices="1")
    settle(node)
    assert {one.ticket for one in node.queue.withheld.values()} == {late.id}
    assert set(node.queue.withheld) == {node.capacities()[1].card.uuid}
    ticket = replace(now(node, granted), kind="container")
    grant = open_tenant(ME, {"memory": "3GiB"}, node, ticket)
    (allocation,) = node.ledger.entries[grant["key"]].allocations
    assert allocation.uuid == node.capacities()[0].card.uuid
