# SPDX-License-Identifier: Apache-2.0
"""Composition: makes the parts of gpushared, and tells each which others it calls.

What needs a process of its own, the scheduler, is made in `__main__`, which also starts everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gpushare.config import Config
from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.core.log import log, set_owner_lookup
from gpushare.daemon.core.loop import Loop, boot_id
from gpushare.daemon.engine_libraries import load_engines
from gpushare.daemon.eviction.checkpoint_client import CheckpointClient
from gpushare.daemon.eviction.evictions import BeforeKill, Evictions
from gpushare.daemon.freezer import Freezer
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.queue import LOOK_SECONDS, Queue
from gpushare.daemon.limits import CardAccounts, MemoryLimits
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.node import Node, Overrides
from gpushare.daemon.observed import Observations
from gpushare.daemon.operator.reload import node_settings
from gpushare.daemon.operator.run_state import RunControl
from gpushare.daemon.pages.driver_params import DriverParams
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import ProcessWatch
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.service.control_server import BoundOperation
from gpushare.daemon.service.operations import Operations
from gpushare.daemon.state import DaemonState, Threads
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.views.metrics import keep_last_figures
from gpushare.errors import UserError
from gpushare.oci import elf


class CannotStart(UserError):
    """The daemon cannot run with this configuration on this machine."""


def build_node(config: Config, platform: elf.Platform) -> Node:
    """Return the machine as operators set it up; its driver is not loaded yet."""
    labels = Overrides(config.state_dir, "node-labels.json")
    return Node(
        remote=load_engines(config, platform),
        config=config.labelled(node_settings(labels)),
        platform=platform,
        overrides=Overrides(config.state_dir),
        card_overrides=Overrides(config.state_dir, "cards.json"),
        labels=labels,
    )


def build_state(
    config: Config,
    loop: Loop,
    threads: Threads,
    mounts: TenantMounts,
) -> DaemonState:
    """Return the state; what an earlier daemon left is in the ledger, and not adopted yet."""
    try:
        machine = elf.this_platform()
    except ValueError as error:
        raise CannotStart(str(error)) from error
    folder, submit = config.run_dir / "ledger", threads.decide.submit
    ledger = Ledger(folder, boot_id(), submit=submit)
    set_owner_lookup(ledger.owner_of)
    if mounts.warning:
        log("mount-namespace-isolated", "warning", note=mounts.warning)
    node, observed, tenants = build_node(config, machine), Observations(), Tenants()
    accounts = CardAccounts(node, ledger, observed, tenants)
    return DaemonState(
        node=node,
        ledger=ledger,
        observed=observed,
        accounts=accounts,
        limits=MemoryLimits(accounts, threads.decide),
        mounts=mounts,
        params=DriverParams(config.run_dir / "driver-params"),
        tenants=tenants,
        loop=loop,
        watch=ProcessWatch(loop),
        **vars(threads),
    )


@dataclass(frozen=True)
class Parts:
    """The parts that act on a state, and the operations that clients may ask for."""

    freezer: Freezer
    audit: Audit
    evictions: Evictions
    queue: Queue
    control: RunControl
    servers: MpsSupervisor
    operations: Mapping[str, BoundOperation]  # of the control socket, by name

    def look_again(self, loop: Loop) -> None:
        """Have what waits looked at once a second, for what no change of the ledger tells."""
        loop.every(lambda: LOOK_SECONDS, self.queue.look_soon)
        loop.every(lambda: LOOK_SECONDS, self.evictions.changed)

    @property
    def followers(self) -> tuple[Callable[[], None], ...]:
        """The listeners of the ledger's changes, once an earlier daemon's records are adopted."""
        return self.evictions.changed, self.queue.look_soon


def compose(state: DaemonState, checkpoints: CheckpointClient) -> Parts:
    """Return the parts of a daemon; nothing is adopted or started yet."""
    queue = Queue(state)
    evictions = Evictions(state, checkpoints, state.evict, queue.look)
    before_kill = BeforeKill(state, evictions)
    frozen = partial(state.decide.submit, state.ledger.changed)
    freezer = Freezer(state.ledger, frozen, before_kill.postpones)
    audit, servers = Audit(state, freezer), MpsSupervisor(state)
    control = RunControl(state, freezer, audit, servers)
    state.node.mps.bypassed.listeners.append(audit.mps_bypassed)
    state.tenants.released.listeners.append(servers.release)
    state.watch.ended.listeners.append(
        lambda key: state.decide.submit(lambda: release.handle_process_end(key, state))
    )
    state.watch.restore.listeners.append(evictions.want)
    state.watch.shortfall.listeners.append(_shortfalls(state, evictions))
    state.tenants.releasing.listeners.append(lambda key: keep_last_figures(key, state))
    operations = Operations(state, control, evictions, queue, servers).bound()
    return Parts(freezer, audit, evictions, queue, control, servers, operations)


def _shortfalls(state: DaemonState, evictions: Evictions) -> Callable[[str, int, int], None]:
    """Return what is called with a tenant, the number of its card and the bytes it had not."""

    def handle(key: str, card: int, size_bytes: int) -> None:
        if state.limits.handle_shortfall(key, card, size_bytes) and state.node.config.evict.offline:
            evictions.relieve(key, state.ledger.entries[key].allocations[card].uuid)

    return lambda key, card, size: state.decide.submit(lambda: handle(key, card, size))
