# SPDX-License-Identifier: Apache-2.0
"""Settings of this node that labels of its Node object set, as gpushare-node reports them.

They are kept across restarts of gpushared, also while gpushare-node is away, and take precedence
over gpushare.yaml. As with `reload`, allocations stay: they are for requests from now on.
"""

from __future__ import annotations

from gpushare.daemon.core.log import log
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.overrides import Overrides
from gpushare.errors import UserError
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.node_settings import NODE_SETTINGS, POLICY, NodeSetting


class LabelsNotAccepted(UserError):
    """The configuration of this node does not let labels set anything."""


def node_settings(store: Overrides) -> dict[str, NodeSetting]:
    """Return the settings in `store`, by key."""
    return {
        key: NodeSetting(value=value, source=source)
        for source, values in store.all().items()
        for key, value in values.items()
    }


def set_node_setting(key: str, value: str, source: str, state: DaemonState) -> None:
    """Set the node's setting `key` by `source`, a label, and by no other; the decide thread.

    QuotaError for a key or value that labels cannot set here, LabelsNotAccepted, OSError: nothing
    was changed.
    """
    _check(key, value, source, state)
    state.node_labels.set(source, {key: value})
    _forget_others(key, source, state)
    _apply(key, state)


def reset_node_setting(key: str, state: DaemonState) -> None:
    """Have gpushare.yaml set `key` again: no label of the node does; the decide thread. OSError."""
    _forget_others(key, "", state)
    _apply(key, state)


def _forget_others(key: str, source: str, state: DaemonState) -> None:
    for other in state.node_labels.all():
        if other != source:
            state.node_labels.forget(other, key)


def _apply(key: str, state: DaemonState) -> None:
    before = state.config.node_settings.get(key)
    state.config = state.config.labelled(node_settings(state.node_labels))
    after = state.config.node_settings.get(key)
    if after == before:
        return
    state.ledger.changed()
    if after is None:
        log("node-setting-reset", setting=key)
    else:
        log("node-setting-changed", setting=key, value=after["value"], source=after["source"])


def _check(key: str, value: str, source: str, state: DaemonState) -> None:
    if not state.config.accepts_node_labels:
        raise LabelsNotAccepted("kubernetes.node_labels is false in gpushare.yaml of this node")
    if key not in NODE_SETTINGS:
        keys = ", ".join(NODE_SETTINGS)
        raise QuotaError(source, value, f"cannot set {key}", f"the settings of labels are {keys}")
    try:
        NODE_SETTINGS[key].parse(value)
    except BadValue as bad:
        raise QuotaError(source, value, bad.rule, bad.fix) from bad
    most = state.config.terms.max_per_request
    if key == POLICY and most.policies is not None and value not in most.policies:
        rule = f"is not allowed on this node{most.source('policies')}"
        raise QuotaError(source, value, rule, f"write {' or '.join(most.policies)}")
