# SPDX-License-Identifier: Apache-2.0
"""The configuration, read again while tenants run: all of what changed holds from now on, or none.

What was promised stays promised: ceilings, defaults and the most tenants of a card are for those
who ask from now on. Folders, libraries and the driver are what a daemon is made of; for those it
takes another one, and a restart disturbs no tenant. Threads read `node.config`, which is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from gpushare import config as configuration
from gpushare.config import Config, Timing
from gpushare.daemon import startup
from gpushare.daemon.log import log
from gpushare.daemon.memory.lend import lend
from gpushare.daemon.node import Node
from gpushare.errors import UserError

#: The keys of the file that each field of Config is, "" where its own parts have names.
LIVE: Final = {
    "read_group": "read_group",
    "reserve_bytes": "reserve",
    "max_shares": "max_shares",
    "cards": "cards",
    "users": "users",
    "namespaces": "namespaces",
    "allow_uninterposed": "allow_uninterposed",
    "unknown": "audit.unknown",
    "docker_sockets": "engines.docker.sockets",
}
RESTART: Final = {
    "run_dir": "run_dir",
    "state_dir": "state_dir",
    "libraries": "libraries",
    "cdi": "driver.cdi",
    "mount_namespace": "mount_namespace",
    "history_days": "history.days",
    "history_bytes": "history.most",
}
LIVE_TERMS: Final = {
    "defaults": "defaults",
    "ceilings": "ceilings",
    "together": "together",
    "total": "total",
    "trust": "trust",
    "dialects": "dialects",
    "over": "audit.over",
    "compute": "audit.compute",
    "compat": "compat",
}
LIVE_TIMING: Final = frozenset({"bind", "sample", "reconcile"})
RESTART_TIMING: Final = frozenset({"foreign_half_life", "driver"})


class NotReloaded(UserError):
    """What the file says now cannot hold; what was read before does."""


def reload(node: Node) -> list[str]:
    """Read the file again and return the keys that changed; the decide thread.

    NotReloaded, with the reason, which `status` and doctor tell until it is put right.
    """
    try:
        new = configuration.load(node.config.file)
        gid = startup.read_gid(new)
        changed = sorted(_changed(node.config, new))
        _refuse_restart(changed)
    except UserError as error:
        node.config_fault = f"gpushare.yaml was not taken over, what was read before holds: {error}"
        log("config-bad", "error", error=str(error))
        raise NotReloaded(node.config_fault) from error
    regroups = new.read_group != node.config.read_group
    node.config, node.config_fault = new, ""
    log("config-read", changed=changed)
    if regroups:
        node.regroup(gid)
    if "reserve" in changed and node.driver is not None:
        lend(node)
    node.audit.hurry.set()  # it may be to look more often
    return changed


def reload_quietly(node: Node) -> None:
    """As `reload`, for who does not wait for the outcome (SIGHUP): it is in the log."""
    try:
        reload(node)
    except NotReloaded:
        return


def _refuse_restart(changed: list[str]) -> None:
    restart = {*RESTART.values(), *(f"timing.{name}" for name in RESTART_TIMING)}
    found = [key for key in changed if key in restart]
    if found:
        others = [key for key in changed if key not in found]
        beside = f"; nothing was taken over, {', '.join(others)} neither" if others else ""
        raise UserError(
            f"{', '.join(found)} takes a restart{beside}: systemctl restart gpushared "
            "(tenants go on)"
        )


def _changed(old: Config, new: Config) -> Iterator[str]:
    """Yield the keys of the file that say something else now."""
    for field, key in {**LIVE, **RESTART}.items():
        if getattr(old, field) != getattr(new, field):
            yield key
    for field, key in LIVE_TERMS.items():
        if getattr(old.terms, field) != getattr(new.terms, field):
            yield key
    for part in fields(Timing):
        if getattr(old.timing, part.name) != getattr(new.timing, part.name):
            yield f"timing.{part.name}"
