# SPDX-License-Identifier: Apache-2.0
"""The open operation: a share for a process of the host, `gpushare run`.

It gets the same reservation, pages and ledger row as a container. Root may; another user too, for
processes of its own, and then its pages are its alone: it is `advice`, for nothing but the user's
own good will keeps the filter in front of the driver.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle.queue import RoomForStarts, resolve_source
from gpushare.daemon.lifecycle.reserve import TenantIdentity, follow_reservation, reserve
from gpushare.daemon.lifecycle.tenant_names import NAME, find_conflict
from gpushare.daemon.node import Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.host.mounts import FILTERS
from gpushare.oci import container
from gpushare.oci.container import ON_HOST
from gpushare.oci.driver_files import CUDA, NVML
from gpushare.oci.edits import Mount
from gpushare.protocol import HostProcessGrant, MountRow
from gpushare.quota.errors import QuotaError


@dataclass(frozen=True)
class HostCommand:
    """A command that `gpushare run` starts."""

    name: str
    uid: int  # the caller's
    rootless: bool
    # Has the client wait for so many seconds more, and with 0 as long as for any answer.
    waits: Callable[[float], None] = lambda _: None
    maker: int = 0  # the caller's process, which is to bind it


def open_tenant(
    command: HostCommand,
    requested: Mapping[str, str],
    state: DaemonState,
    room: RoomForStarts,
    ticket: TicketRecord | None = None,
) -> HostProcessGrant:
    """Reserve `requested` (canonical key to text); QuotaError and reserve()'s errors.

    With a granted `ticket`, what is reserved for it is taken over. Otherwise others may be evicted
    first.
    """
    source = TicketSource(options=requested, variables={}, annotations={})
    request = resolve_source(source, state.node.config, is_rootless=command.rootless)
    driver = state.node.loaded()
    key = secrets.token_hex(8)
    identity = f"host-{key[:8]}"
    name = command.name if NAME.fullmatch(command.name) else identity

    def reserve_now() -> TenantRecord:
        def decide() -> TenantRecord:
            applicant = _applicant(command, (key, identity, name), state.ledger)
            record = reserve(applicant, request, state, ticket)
            if ticket is not None:
                room.queue.note_start(ticket)
            return record

        return state.in_start(decide)

    try:
        record = reserve_now()
    except NoRoom as error:
        about = name, request.effective.class_ == "online"
        record = room.reserve(error, about, reserve_now, command.waits)
    follow_reservation(record, state)
    cards = [allocation.uuid for allocation in record.allocations]
    return HostProcessGrant(
        key=key,
        id=identity,
        directory=str(state.mounts.path(key)) if record.shared else "",
        mounts=_mounts(record, state.node, state.mounts),
        closed=_closed(record, state.node),
        # The command numbers its own cards from 0, as a container does: the filter refuses the
        # host's others, and most programs try card 0 and no other.
        env={**driver.env, "CUDA_VISIBLE_DEVICES": ",".join(cards)},
        isolation=record.isolation,
    )


def _applicant(command: HostCommand, named: tuple[str, str, str], ledger: Ledger) -> TenantIdentity:
    """Return who requests, by key, identity and name; QuotaError for another's name."""
    key, identity, name = named
    other = find_conflict(name, key, ledger.entries)
    if other is not None:
        rule = f"is the ID of {other.title}, or its beginning"
        raise QuotaError("--name", name, rule, "use another name")
    own = command.uid if command.rootless else None
    taken = {record.name for record in ledger.entries.values() if record.state != "none"}
    record = TenantRecord(
        key,
        "reserved",
        identity,
        f"{name}-{key[:4]}" if name in taken else name,
        engine="host",
        uid=command.uid,
        isolation="advisory" if command.rootless else "",
        maker=command.maker,
        maker_starttime=(command.maker and processes.start_time(command.maker)) or 0,
    )
    # A caller that reaches the socket may read all of it.
    return TenantIdentity(record, owner=own or 0, status_owner=own, shows_holders=True)


def _closed(record: TenantRecord, node: Node) -> list[str]:
    """Return the device nodes that the command may not open: of other cards, unless it may move."""
    if node.config.evict.moves and record.shared:
        return []
    own = {allocation.uuid for allocation in record.allocations}
    cards = node.loaded().cards
    minors = {card.minor for card in cards} - {card.minor for card in cards if card.uuid in own}
    return [f"/dev/nvidia{minor}" for minor in sorted(minors)]


def _mounts(record: TenantRecord, node: Node, mounts: TenantMounts) -> list[MountRow]:
    if not record.shared:
        return []
    libraries = (
        Mount(str(node.host_libraries / name), str(FILTERS / name), ("ro",))
        for name in (CUDA, NVML)
    )
    wanted = (
        *container.driver_mounts(node.loaded().files, ON_HOST),
        *libraries,
        *container.tenant_mounts(str(mounts.path(record.key)), ON_HOST),
    )
    return [
        MountRow(source=mount.source, destination=mount.destination, read_only=mount.read_only)
        for mount in wanted
    ]
