# SPDX-License-Identifier: Apache-2.0
"""From a tenant's quota to its limits at the MPS server, and what of it holds.

| policy on the card | compute |
|---|---|
| fixed-share | its cores: a percentage, or a static partition on a card with `mps_partitions` |
| every other | all multiprocessors, which the hardware divides |

A partition has never less than the cores: as many chunks as they need. The memory limit of the
server is for each process, and only a second line: the interposer library counts all processes of
the container together, and to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.daemon.cards.mps_state import MpsGrant, MpsShare
from gpushare.daemon.mps.model import ClientRoute, TenantLimits
from gpushare.daemon.mps.partitions import PARTITION_ENV
from gpushare.daemon.mps.process import CardFolders
from gpushare.daemon.mps.program import ControlProgram
from gpushare.daemon.policy.compute import FIXED
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.effective_request import DEFAULT_PRIORITY


@dataclass(frozen=True)
class MpsSettings:
    """What a tenant's limits are made from. `cores` is 0 without a ceiling; `uid` is the host's."""

    key: str
    uid: int
    memory_bytes: int
    cores: int
    priority: int


def settings_of(record: TenantRecord, uid: int, card_policy: str) -> MpsSettings:
    """Return the settings of a tenant with a share of one card, whose policy the operator set."""
    [allocation] = record.allocations
    is_capped = record.policy_on(allocation, card_policy) == FIXED
    return MpsSettings(
        record.key,
        uid,
        allocation.burst_limit_bytes,
        allocation.cores if is_capped else 0,
        priority=int(record.class_ != "online" and record.priority > DEFAULT_PRIORITY),
    )


def limits_of(settings: MpsSettings, chunks: int | None = None) -> TenantLimits:
    """Return the limits for the control daemon, with a static partition of so many chunks."""
    return TenantLimits(
        settings.memory_bytes, settings.cores or 100, priority=settings.priority, chunks=chunks
    )


def grant_of(
    program: ControlProgram, limits: TenantLimits, settings: MpsSettings, route: ClientRoute
) -> MpsGrant:
    """Return what a tenant has, for its container and for clients of gpushared."""
    has_namespaces = program.protocol == 3
    share: MpsShare = "percentage" if limits.cores_percent < 100 else ""
    if PARTITION_ENV in route.env:
        share = "space"
    folders = CardFolders(program.pipe_folder.parent)
    return MpsGrant(
        settings.key,
        settings.uid,
        str(route.pipe_folder),
        "" if has_namespaces else str(folders.shared_memory),
        tuple(name for name in route.hidden if (route.pipe_folder / name).exists()),
        share=share,
        percentage=limits.cores_percent,
        chunks=limits.chunks or 0,
        memory_limit="namespace" if has_namespaces else "server",
        variables=dict(route.env),
    )
