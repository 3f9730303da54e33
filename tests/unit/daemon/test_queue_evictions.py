# SPDX-License-Identifier: Apache-2.0
"""Starts with a ticket and evicted containers that wait for the same room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushare.daemon.cards.driver_client import DriverSample
from gpushare.daemon.eviction.checkpoint_client import CheckpointError
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.queue import Applicant
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import FreezeRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.metrics import daemon_metrics
from gpushare.daemon.views.queue import queue_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.quota.request_policy import IdlePolicy

from . import evictable
from .evictable import EvictableNode, EvictableTenant
from .fakes import GIB, FakeDaemon
from .operations import opened


@pytest.fixture
def made(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvictableNode]:
    found = evictable.make(node, monkeypatch)
    with found.lives:
        found.tenant(gib=130, devices="1")
        yield found
    for tenant in found.tenants:
        found.end(tenant)


def take(made: EvictableNode, memory: str, **quota: str) -> TicketRecord:
    node = made.node
    applicant = Applicant(f"job-{memory}", 0, os.getpid(), is_rootless=False)
    source = TicketSource({"memory": memory, **quota}, {}, {})
    ticket, _ = node.decide.run(lambda: node.tickets.take(applicant, source))
    made.settle()
    return ticket


def look(made: EvictableNode) -> None:
    """Look as once a second."""
    made.node.tickets.tick()
    made.node.evictions.changed()
    made.settle()


def is_granted(made: EvictableNode, ticket: TicketRecord) -> bool:
    return made.node.ledger.tickets[ticket.id].is_granted


def idle(made: EvictableNode, *tenants: EvictableTenant) -> None:
    terms = replace(made.node.node.config.terms, idle=IdlePolicy(60, "evict"))
    made.node.node.config = replace(made.node.node.config, terms=terms)
    made.node.observed.idle = {one.key: float(number) for number, one in enumerate(tenants)}


def waits(made: EvictableNode, tenant: EvictableTenant) -> None:
    """Have a program of an evicted container use CUDA."""
    made.node.evictions.want(tenant.key)
    made.settle()


def blocked(made: EvictableNode, *, class_: str = "offline") -> tuple[EvictableTenant, str]:
    """A container of 100 GiB that waits for its restore, and the key of one that has its room."""
    tenant = made.tenant(gib=100, class_=class_)
    made.node.evictions.evict(tenant.key)
    other = opened(made.node, memory="100GiB", devices="0")["key"]
    waits(made, tenant)
    assert tenant.record.is_off_card
    return tenant, other


def end(made: EvictableNode, key: str) -> None:
    made.node.decide.run(lambda: release.release_tenant(key, made.node, "it has ended"))
    made.settle()


def test_a_container_that_becomes_idle_makes_room_for_a_ticket_that_waits(
    made: EvictableNode,
) -> None:
    notebook = made.tenant(gib=100)
    ticket = take(made, "100GiB")
    look(made)
    assert not is_granted(made, ticket)
    idle(made, notebook)
    look(made)
    assert is_granted(made, ticket)
    assert notebook.eviction is not None
    assert (notebook.eviction.cause, notebook.eviction.reason) == ("idle", "job-100GiB had no room")


def test_the_class_of_a_ticket_decides_who_is_evicted_for_it(made: EvictableNode) -> None:
    made.configure(offline=True)
    batch = made.tenant(gib=100)
    offline = take(made, "100GiB")
    assert (is_granted(made, offline), batch.record.is_off_card) == (False, False)
    online = take(made, "100GiB", **{"class": "online"})
    assert (is_granted(made, online), batch.record.is_off_card) == (True, True)
    assert [one.ticket for one in made.node.queue.waiting if not one.container] == [offline.id]


def test_an_eviction_that_fails_is_not_tried_at_each_look(made: EvictableNode) -> None:
    notebook = made.tenant(gib=100)
    idle(made, notebook)
    refused = CheckpointError("checkpoint: CUDA_ERROR_NOT_SUPPORTED", 801)
    made.node.checkpoints.faults["checkpoint", notebook.pids[0]] = refused
    ticket = take(made, "100GiB")
    calls = len(made.node.checkpoints.calls)
    look(made)
    assert (is_granted(made, ticket), len(made.node.checkpoints.calls)) == (False, calls)
    opened(made.node, memory="100GiB", priority="0")  # a start that does not wait tries it again
    assert notebook.record.is_off_card


def test_what_is_evicted_for_a_start_is_not_granted_to_a_ticket(made: EvictableNode) -> None:
    made.configure(offline=True)
    batch = made.tenant(gib=100)
    ticket = take(made, "100GiB")
    made.node.checkpoints.during = lambda *_: made.node.decide.run(made.node.tickets.look)
    online = opened(made.node, memory="100GiB", class_="online")
    assert made.node.ledger.entries[online["key"]].allocations[0].quota_bytes == 100 * GIB
    assert batch.record.is_off_card
    assert not is_granted(made, ticket)


def test_no_start_overtakes_a_restore_that_waits(made: EvictableNode) -> None:
    tenant, other = blocked(made)
    assert not is_granted(made, take(made, "2GiB", devices="0"))
    with pytest.raises(
        NoRoom, match="card 0 is withheld for an evicted container, which is before"
    ):
        opened(made.node, memory="1GiB", devices="0")
    end(made, other)
    assert not tenant.record.is_off_card
    opened(made.node, memory="1GiB", devices="0")


def test_a_restore_keeps_its_room_until_it_has_it(made: EvictableNode) -> None:
    tenant, other = blocked(made)
    listeners = made.node.ledger.changed.listeners
    listeners.remove(made.node.evictions.changed)  # the evict thread is busy
    end(made, other)
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
    ticket = take(made, "120GiB")
    first, second = queue_rows(made.node)
    assert (first["kind"], first["ticket"], first["position"]) == ("restore", "", 1)
    assert (first["name"], first["requests"]) == (tenant.record.title, "100 GiB")
    assert "card 0 has 40 of 140 GiB available" in first["reason"]
    assert (second["ticket"], second["position"]) == (ticket.id, 2)
    assert daemon_metrics(made.node)["queue_waiting"] == 1
    (warning,) = tenant_status(tenant.record, made.node)["warnings"]
    assert "it waits until a card has room (gpushare queue): no card has room" in warning


def test_one_that_lacks_something_else_withholds_nothing_and_is_not_tried_without_end(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = made.tenant(gib=40, devices="0")
    made.node.evictions.evict(tenant.key)
    listed, uuid = made.driver.sample, tenant.card

    def sample(*, brief: bool = False) -> DriverSample:
        return replace(listed(brief=brief), used={uuid: 139 * GIB})  # by no process

    with monkeypatch.context() as patched:
        patched.setattr(made.driver, "sample", sample)
        waits(made, tenant)
        assert tenant.record.is_off_card
        assert "of card 0 free" in made.node.observed.restore_faults[tenant.key]
        assert not made.node.queue.waiting
        for _ in range(2):
            opened(made.node, memory="1GiB", devices="0")
            made.settle()
        (warning,) = tenant_status(tenant.record, made.node)["warnings"]
        assert "gpushared tries again" in warning
    made.look()
    made.node.evictions.look()
    made.settle()
    assert not tenant.record.is_off_card


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
    (warning,) = [
        text for text in tenant_status(tenant.record, made.node)["warnings"] if "CUDA" in text
    ]
    assert f"waits until gpushare resume {tenant.record.title}" in warning
    freezes.forget(tenant.key)
    look(made)
    assert not tenant.record.is_off_card
