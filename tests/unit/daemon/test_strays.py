# SPDX-License-Identifier: Apache-2.0
"""Memory on a card of which its container has no part: another's card, or its own while evicted.

On every card each process that the driver lists counts once, and its container may have nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.views.rows import card_rows
from gpushare.daemon.views.tenant_status import tenant_status

from . import evictable
from .busy_card import CONTEXT, Recorder
from .evictable import EvictableNode, EvictableTenant
from .fakes import GIB, FakeDaemon, card


@dataclass
class StrayNode:
    """Two cards, what the driver lists on them, and the audit of it."""

    made: EvictableNode
    audit: Audit
    recorder: Recorder
    now_ns: int = 0
    listed: dict[str, dict[int, int]] = field(default_factory=dict)  # bytes by card and PID

    def has(self, tenant: EvictableTenant, index: int, gib: int) -> None:
        """Have the tenant's first process hold so much of card `index`."""
        self.listed.setdefault(card(index).uuid, {})[tenant.pids[0]] = gib * GIB

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += 250 * 10**6
            self.made.driver.uses = {
                uuid: tuple(ProcessUse(pid, size) for pid, size in uses.items() if size)
                for uuid, uses in self.listed.items()
            }
            self.made.node.sampler.look()
            self.audit.look(self.now_ns)

    @property
    def actions(self) -> list[str]:
        return [action for action, _ in self.recorder.calls]


@pytest.fixture
def node(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[StrayNode]:
    for index in (0, 1):
        node.node.loaded().contexts.keep(card(index), CONTEXT)
    recorder = Recorder()
    monkeypatch.setattr(node.freezing, "submit", lambda job: job())
    with evictable.running(node, monkeypatch) as made:
        yield StrayNode(made, Audit(node, recorder), recorder)  # type: ignore[arg-type]


def on_another_card(node: StrayNode) -> EvictableTenant:
    tenant = node.made.tenant(gib=4, devices="0")
    node.has(tenant, 0, 4)
    return tenant


def on_its_own_while_evicted(node: StrayNode) -> EvictableTenant:
    """A process beside it has had the driver restore it."""
    return node.made.evicted(gib=4, devices="1")


@pytest.mark.parametrize("come", [on_another_card, on_its_own_while_evicted])
def test_it_counts_and_its_container_is_frozen(
    node: StrayNode, come: Callable[[StrayNode], EvictableTenant], capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = come(node)
    node.look(4)
    assert node.actions == []
    available = node.made.capacity(1).available_bytes
    node.has(tenant, 1, 3)
    node.look(2)
    assert node.made.capacity(1).available_bytes == available - 3 * GIB
    row = list(card_rows(node.made.node))[1]
    assert row["used_bytes"] == row["non_tenant_bytes"] == 3 * GIB
    assert [one["pid"] for one in row["non_tenant_processes"]] == [tenant.pids[0]]
    node.look(2)
    assert node.actions == ["hold"]
    [warning] = [
        text
        for text in tenant_status(tenant.record, node.made.node)["warnings"]
        if "bypasses" in text
    ]
    assert "uses 3 GiB of card 1, " in warning
    assert '"event":"over-quota-frozen"' in (said := capfd.readouterr().err)
    assert '"limit_bytes":0,' in said
    node.has(tenant, 1, 0)
    node.look(6)
    assert node.actions == ["hold", "release"]
    assert node.made.capacity(1).available_bytes > available - 3 * GIB


def test_a_context_that_nobody_charged_is_tolerated(node: StrayNode) -> None:
    tenant = on_another_card(node)
    node.listed[card(1).uuid] = {tenant.pids[0]: CONTEXT}
    node.look(40)
    assert node.actions == []


@pytest.mark.parametrize("seed", range(5))
def test_each_process_counts_once_on_every_card(node: StrayNode, seed: int) -> None:
    """As a tenant's or as a non-tenant, whatever is evicted, restored, moved and taken."""
    chance = random.Random(seed)
    tenants = [node.made.tenant(gib=8, devices=str(index)) for index in (0, 0, 1)]
    for _ in range(40):
        tenant = chance.choice(tenants)
        if chance.random() < 0.3 and tenant.eviction is None:
            node.made.node.evictions.evict(tenant.key)
            for uses in node.listed.values():
                uses.pop(tenant.pids[0], None)
        elif chance.random() < 0.3 and tenant.eviction is not None:
            node.made.node.evictions.restore(tenant.key)
        node.has(tenant, chance.choice((0, 1)), chance.choice((0, 2, 6)))
        node.look(2)
        for index, row in enumerate(card_rows(node.made.node)):
            listed = node.listed.get(card(index).uuid, {})
            assert row["used_bytes"] == sum(listed.values())
            strays = {
                one.pids[0]: size
                for one in tenants
                if (size := listed.get(one.pids[0], 0))
                and (one.eviction is not None or one.card != card(index).uuid)
            }
            counted = {one["pid"]: one["bytes"] for one in row["non_tenant_processes"]}
            assert counted == strays
