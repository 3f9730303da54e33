# SPDX-License-Identifier: Apache-2.0
"""What asks for evictions: requests without room, tenants' messages, and changes of the ledger."""

from __future__ import annotations

from collections.abc import Callable

from gpushare.daemon.eviction.before_kill import BeforeKill
from gpushare.daemon.eviction.checkpoint_client import CheckpointClient
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.freezer.freezer import Freezer
from gpushare.daemon.limits.burst import handle_shortfall
from gpushare.daemon.state import DaemonState


def start_evictions(
    state: DaemonState,
    freezer: Freezer,
    excuse: Callable[[int], None],
    changed: Callable[[], None],
) -> Evictions:
    """Return what evicts tenants, after everything that asks for it was told.

    `excuse` is called with the pid of a program of the daemon's own, `changed` after what tenants
    are to get may have changed.
    """
    evictions = Evictions(state, CheckpointClient(state.loaded, excuse))
    state.evict_for, state.watch.restore = evictions.evict_for, evictions.want
    state.queue.serve = evictions.changed
    enforce = freezer.enforce
    freezer.postpones_kill = BeforeKill(
        state, evictions, lambda: state.freezing.submit(enforce)
    ).postpones

    def handle(key: str, card: int, size_bytes: int) -> None:
        if handle_shortfall(key, card, size_bytes, state) and state.config.evict.offline:
            evictions.relieve(key, state.ledger.entries[key].allocations[card].uuid)

    state.watch.shortfall = lambda key, card, size: state.decide.submit(
        lambda: handle(key, card, size)
    )

    def shares_changed() -> None:
        changed()
        evictions.changed()  # most nodes have none that waits

    state.shares_changed = shares_changed
    evictions.settle()
    return evictions
