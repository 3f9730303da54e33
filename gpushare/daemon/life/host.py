# SPDX-License-Identifier: Apache-2.0
"""The open operation: a share for a process of the host, `gpushare run`.

It gets the same reservation, pages and ledger row as a container. Root may; another user too, for
processes of its own, and then its pages are its alone: it is `advice`, for nothing but the user's
own good will keeps the filter in front of the driver.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare import abi
from gpushare.daemon.identity.names import NAME
from gpushare.daemon.life.near import BIND
from gpushare.daemon.life.reserve import Applicant, reserve
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.oci import container
from gpushare.oci.driver import CUDA, NVML
from gpushare.oci.edits import Mount
from gpushare.protocol import MountRow, Opened
from gpushare.quota import QuotaError, give, read_quota

_NOT_BOUND = "--numa bind was not taken: it is for containers; put numactl(8) before the command"
FILTER_DIR = Path("/opt/gpushare/lib")


@dataclass(frozen=True)
class Command:
    """Who asks for a command of its own to run; `uid` is the asking process's."""

    name: str
    uid: int
    rootless: bool


def open_tenant(command: Command, asked: Mapping[str, str], node: Node) -> Opened:
    """Reserve `asked` (canonical key to text); QuotaError and reserve()'s errors."""
    driver = node.loaded()
    terms = node.config.users if command.rootless else node.config.terms
    quota = read_quota({}, {}, options=asked, defaults=terms.defaults)
    given = give(quota)
    if quota.numa == BIND and quota.asked["numa"].source.kind == "option":
        given = replace(given, notes=(*given.notes, _NOT_BOUND))
    if given.kind == "none":
        raise QuotaError("run", None, "asks for no GPU", "add --memory 4GiB")
    if given.kind == "whole" and command.rootless:
        # Nobody could hold others off the card for it, and everybody would be refused it.
        raise QuotaError("run", None, "whole cards are for root", "use sudo, or add --memory 4GiB")
    terms.ceilings.refuse_above(quota, given)
    key = secrets.token_hex(8)
    identity = f"host-{key[:8]}"
    name = command.name if NAME.fullmatch(command.name) else identity
    own = command.uid if command.rootless else None
    applicant = Applicant(
        key=key,
        identity=identity,
        name=_free_name(name, key, node),
        engine="host",
        uid=command.uid,
        owner=own or 0,
        status_owner=own,
        isolation="advice" if command.rootless else "interposer",
        terms=terms,
    )
    entry = reserve(applicant, quota, given, node)
    return Opened(
        key=key,
        id=identity,
        directory=str(node.mounts.path(key)) if entry.shared else "",
        mounts=_mounts(entry, node),
        env={**driver.env, **_cards(entry)},
        isolation=entry.isolation,
    )


def _cards(entry: Entry) -> dict[str, str]:
    """Return what makes the command number its own cards from 0, as a container does.

    All the host's device nodes are there; the filter refuses the others, and most programs try
    card 0 and no other.
    """
    return {"CUDA_VISIBLE_DEVICES": ",".join(holding.uuid for holding in entry.holdings)}


def _free_name(name: str, key: str, node: Node) -> str:
    """Return `name`, with a part of the key where another tenant goes by it."""
    taken = {entry.name for entry in node.ledger.entries.values() if entry.state != "none"}
    return f"{name}-{key[:4]}" if name in taken else name


def _mounts(entry: Entry, node: Node) -> list[MountRow]:
    if not entry.shared:
        return []
    rows = [_row(mount) for mount in container.driver_mounts(node.loaded().files)]
    rows += [
        MountRow(
            source=str(node.libraries / name), destination=str(FILTER_DIR / name), read_only=True
        )
        for name in (CUDA, NVML)
    ]
    rows += [_row(mount) for mount in container.tenant_mounts(str(node.mounts.path(entry.key)))]
    assert rows[-1]["destination"] == f"{abi.TENANT_DIR}/{abi.STATUS_NAME}"
    return rows


def _row(mount: Mount) -> MountRow:
    return MountRow(source=mount.source, destination=mount.destination, read_only=mount.read_only)
