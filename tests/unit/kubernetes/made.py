# SPDX-License-Identifier: Apache-2.0
"""Cards as gpushared reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpushare.kubernetes.cards import NodeCards, node_cards
from tests.unit.rows import GIB, card_row

__all__ = ["GIB", "STATUS", "card", "node"]
STATUS: Mapping[str, Any] = {
    "driver_version": "580.95.05",
    "cuda_version": "13.0",
    "isolation": "interposer",
    "kubernetes_mode": "dra",
    "tenants": 0,
    "default_placement": "",
    "accepts_node_labels": True,
    "node_settings": {},
}


def card(index: int = 0, **changed: Any) -> dict[str, Any]:
    """Return a row of gpushared's `cards`, as far as a scheduler needs it."""
    made = {
        "uuid": f"GPU-5F3C0000-0000-0000-0000-{index:012}",
        "model": "NVIDIA H200",
        "schedulable_bytes": 139 * GIB + 12345,
        "mode": "unused",
        "numa_node": 1,
        **changed,
    }
    return dict(card_row(index, **made))


def node(*rows: Mapping[str, Any], **status: Any) -> NodeCards:
    """Return a node with these cards; one card if there is none."""
    return node_cards(rows or (card(),), {**STATUS, **status})
