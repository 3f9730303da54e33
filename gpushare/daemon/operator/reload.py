# SPDX-License-Identifier: Apache-2.0
"""Settings that change while tenants run: those of the file, of labels, and of cards.

All of what changed in the file holds from now on, or none. Allocations stay: ceilings, defaults and
the most tenants of a card are for requests from now on. Folders, libraries and the driver are what
a daemon is made of; for those it takes another one, and a restart disturbs no tenant. Threads read
`node.config`, which is replaced.
"""

from __future__ import annotations

import grp
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from gpushare import config as configuration
from gpushare.config import Config, Timing
from gpushare.daemon.core.log import log
from gpushare.daemon.engine_libraries import load_engines
from gpushare.daemon.limits import CardAccounts
from gpushare.daemon.node import CORDONED, Node, Overrides
from gpushare.daemon.placement.model import MOST_NAMED, Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.errors import UserError
from gpushare.host import init_system
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.node_settings import NODE_SETTINGS, POLICY, NodeSetting
from gpushare.quota.request_policy import RequestPolicy
from gpushare.settings import ConfigError

#: The keys of the file that fields of Config, and of its terms, are, where they have other names.
_KEYS: Final = {
    **{name: ".".join(map(str, path)) for name, (path, _) in configuration.FIELDS.items()},
    "over": "audit.over_quota",
    "compute": "audit.gate_bypass",
    "compat": "compatibility",
}
#: The keys that a daemon reads only when it starts.
RESTART: Final = frozenset(
    {"run_dir", "state_dir", "library_dir", "driver.cdi_spec", "runtime_mount_namespace"}
    | {"read_group", "kubernetes.cdi_dir", "history.retention_days", "history.max_size"}
    | {"metrics_history.retention_days", "metrics_history.max_size"}
    | {"timing.driver_timeout_seconds"}
)
#: Fields whose own parts have keys, or which are no keys of the file.
_PARTS: Final = frozenset({"terms", "timing", "node_settings", "file"})


class NotReloaded(UserError):
    """The file cannot take effect; the values that were read before remain."""


class InvalidFile(NotReloaded):
    """Because the file has an error."""


class NoSuchGroup(UserError):
    """`read_group` names a group that this machine does not have."""


def reload_config(state: DaemonState) -> list[str]:
    """Read the file again and return the keys that changed; the decide thread.

    NotReloaded, with the reason, which `status` and doctor show until it is corrected.
    """
    try:
        new = configuration.load(state.node.config.file).labelled(node_settings(state.node.labels))
        changed = sorted(_changed(state.node.config, new))
        _refuse_restart(changed)
        _refuse_switch(state.node, state.accounts, new)
    except UserError as error:
        state.node.config_fault = (
            f"gpushare.yaml was rejected, the previous configuration remains in effect: {error}"
        )
        log("config-rejected", "error", error=str(error))
        kind = InvalidFile if isinstance(error, ConfigError) else NotReloaded
        raise kind(state.node.config_fault) from error
    state.node.config, state.node.config_fault = new, ""
    state.node.remote = load_engines(new, state.node.platform)
    log("config-reloaded", changed=changed)
    if "system_reserved" in changed and state.node.driver is not None:
        state.limits.update()
    state.ledger.changed()
    state.observed.sample_now.set()  # it may be to look more often
    return changed


def read_gid(config: Config) -> int | None:
    """Return the group that may read, None for every user; NoSuchGroup."""
    if config.read_group is None:
        return None
    try:
        return grp.getgrnam(config.read_group).gr_gid
    except KeyError:
        raise NoSuchGroup(
            f"read_group: there is no group {config.read_group}; groupadd it"
        ) from None


def _refuse_restart(changed: list[str]) -> None:
    refused = [key for key in changed if key in RESTART]
    if refused:
        others = [key for key in changed if key not in refused]
        beside = f"; no change was applied, including {', '.join(others)}" if others else ""
        raise UserError(
            f"{', '.join(refused)} requires a restart{beside}: "
            f"{init_system.advice('systemctl restart gpushared')} (containers keep running)"
        )


def _refuse_switch(node: Node, accounts: CardAccounts, new: Config) -> None:
    """Refuse another backend for a card that containers use: they keep theirs until they end."""
    if node.driver is None:
        return
    for capacity in accounts.capacities():
        card, backend = capacity.card, node.backend_of(capacity.card, new)
        if backend != capacity.backend and capacity.holders:
            names = ", ".join(use.tenant for use in capacity.holders[:MOST_NAMED])
            where = node.rule_of(card, new).where.get("backend", "cards")
            raise UserError(
                f"{where}: card {card.index} cannot change from backend {capacity.backend} to "
                f"{backend} while containers use it ({names}); run gpushare card drain "
                f"{card.index}, then reload again"
            )


def _changed(old: Config, new: Config) -> Iterator[str]:
    """Yield the keys of the file that say something else now."""
    for before, now in ((old, new), (old.terms, new.terms)):
        for name in _different(before, now) - _PARTS:
            yield _KEYS.get(name, name)
    yield from (f"timing.{name}" for name in _different(old.timing, new.timing))


def _different(old: Config | RequestPolicy | Timing, new: object) -> set[str]:
    names = (part.name for part in fields(old) if part.compare)
    return {name for name in names if getattr(old, name) != getattr(new, name)}


# --- settings of this node that labels of its Node object set, as gpushare-node reports them ---
#
# They are kept across restarts of gpushared, also while gpushare-node is away, and take precedence
# over gpushare.yaml. As with `reload`, allocations stay: they are for requests from now on.


class LabelsNotAccepted(UserError):
    """The configuration of this node does not let labels set anything."""


def node_settings(store: Overrides) -> dict[str, NodeSetting]:
    """Return the settings in `store`, by key."""
    return {
        key: NodeSetting(value=value, source=source)
        for source, values in store.all().items()
        for key, value in values.items()
    }


def set_node_setting(key: str, value: str, source: str, node: Node, ledger: Ledger) -> None:
    """Set the node's setting `key` by `source`, a label, and by no other; the decide thread.

    QuotaError for a key or value that labels cannot set here, LabelsNotAccepted, OSError: nothing
    was changed.
    """
    _check(key, value, source, node)
    node.labels.set(source, {key: value})
    _forget_others(key, source, node)
    _apply(key, node, ledger)


def reset_node_setting(key: str, node: Node, ledger: Ledger) -> None:
    """Have gpushare.yaml set `key` again: no label of the node does; the decide thread. OSError."""
    _forget_others(key, "", node)
    _apply(key, node, ledger)


def _forget_others(key: str, source: str, node: Node) -> None:
    for other in node.labels.all():
        if other != source:
            node.labels.forget(other, key)


def _apply(key: str, node: Node, ledger: Ledger) -> None:
    before = node.config.node_settings.get(key)
    node.config = node.config.labelled(node_settings(node.labels))
    after = node.config.node_settings.get(key)
    if after == before:
        return
    ledger.changed()
    if after is None:
        log("node-setting-reset", setting=key)
    else:
        log("node-setting-changed", setting=key, value=after["value"], source=after["source"])


def _check(key: str, value: str, source: str, node: Node) -> None:
    if not node.config.accepts_node_labels:
        raise LabelsNotAccepted("kubernetes.node_labels is false in gpushare.yaml of this node")
    if key not in NODE_SETTINGS:
        keys = ", ".join(NODE_SETTINGS)
        raise QuotaError(source, value, f"cannot set {key}", f"the settings of labels are {keys}")
    try:
        NODE_SETTINGS[key].parse(value)
    except BadValue as bad:
        raise QuotaError(source, value, bad.rule, bad.fix) from bad
    most = node.config.terms.max_per_request
    if key == POLICY and most.policies is not None and value not in most.policies:
        rule = f"is not allowed on this node{most.source('policies')}"
        raise QuotaError(source, value, rule, f"write {' or '.join(most.policies)}")


# --- the operator's settings of a card: the compute policy of its tenants, and a cordon ---
#
# No tenant is placed on a cordoned card; its tenants keep running.


def set_card_policy(uuid: str, policy: str, state: DaemonState) -> None:
    """Set the policy of the shared tenants of a card; "": each keeps its own.

    NoRoom if the card cannot reserve that many cores: nothing was changed.
    """
    capacities = state.accounts.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
    together = sum(use.cores for use in capacity.reservations) + sum(
        record.reserved_cores(allocation, policy)
        for record in state.ledger.entries.values()
        for allocation in record.allocations
        if allocation.uuid == uuid and not allocation.whole
    )
    if together > 100:
        raise NoRoom(
            f"card {capacity.card.index} cannot reserve {together} % of its compute, as "
            f"{policy or 'its containers'} would require; first reduce what one of them has: "
            "gpushare set NAME --cores N"
        )
    if policy:
        state.node.card_overrides.set(uuid, {"policy": policy})
    else:
        state.node.card_overrides.forget(uuid, "policy")
    log("card-policy-changed", card=uuid, policy=policy or "of each container")
    state.ledger.changed()


def cordon_card(card: Card, reason: str, node: Node, ledger: Ledger) -> None:
    """Place nothing new on `card`, until `uncordon_card`, across restarts and reboots; OSError."""
    if node.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    node.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")
    ledger.changed()


def uncordon_card(card: Card, node: Node, ledger: Ledger) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in node.card_overrides.of(card.uuid):
        return
    node.card_overrides.forget(card.uuid, CORDONED)
    log("card-uncordoned", card=card.uuid, index=card.index)
    ledger.changed()
