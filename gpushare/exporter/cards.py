# SPDX-License-Identifier: Apache-2.0
"""The families of a card. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpushare.exporter.family import OF_CARD, Family, Sample, Snapshot, card_labels, of_cards

#: Those that a card does not get over are there from the start, with 0: what begins with 1 is no
#: increase to Prometheus.
WATCHED: Final = (*("46", "48", "62", "64", "79", "95", "109", "119", "120", "136", "140", "143"),)


def _bypass(snapshot: Snapshot) -> Iterable[Sample]:
    for card in snapshot.cards:
        for action, count in card["bypass"].items():
            yield (*card_labels(snapshot, card), action), count


def _drift(snapshot: Snapshot) -> Iterable[Sample]:
    for card in snapshot.cards:
        found = [
            part["drift_bytes"]
            for _, part in snapshot.parts
            if part["uuid"] == card["uuid"] and part["drift_bytes"] is not None
        ]
        yield card_labels(snapshot, card), sum(found)


def _xids(snapshot: Snapshot) -> Iterable[Sample]:
    for card in snapshot.cards:
        for xid in sorted({*WATCHED, *card["xids"]}, key=int):
            yield (*card_labels(snapshot, card), xid), card["xids"].get(xid, 0)


FAMILIES: Final = (
    of_cards(
        "gpushare_card_memory_total_bytes",
        "Memory of the card, less what its driver keeps.",
        lambda card: card["memory_bytes"],
    ),
    of_cards(
        "gpushare_card_memory_used_bytes",
        "Memory that processes have, as the driver says, whosever they are.",
        lambda card: card["used_bytes"],
    ),
    of_cards(
        "gpushare_card_memory_granted_bytes",
        "Memory that is promised to containers.",
        lambda card: card["granted_bytes"],
    ),
    of_cards(
        "gpushare_card_memory_free_bytes",
        "Memory that can still be promised.",
        lambda card: card["free_bytes"],
    ),
    of_cards(
        "gpushare_card_cores_granted_ratio",
        "Part of the card's compute that is set aside for containers.",
        lambda card: card["cores_granted"] / 100,
    ),
    of_cards(
        "gpushare_card_utilization_ratio",
        "Part of the time in which the card was busy, as the driver says.",
        lambda card: None if card["utilisation"] is None else card["utilisation"] / 100,
    ),
    of_cards("gpushare_card_shares", "Containers on the card.", lambda card: card["shares"]),
    of_cards(
        "gpushare_card_shares_max",
        "The most containers that the card may have.",
        lambda card: card["shares_max"],
    ),
    of_cards(
        "gpushare_card_cordoned",
        "1 where an operator lets nothing new be placed on it.",
        lambda card: float(card["cordoned"]),
    ),
    of_cards(
        "gpushare_card_healthy",
        "1 where the card answers and is well.",
        lambda card: float(card["healthy"]),
    ),
    Family(
        "gpushare_card_xid_errors_total",
        "counter",
        (*OF_CARD, "xid"),
        "How often the driver reported each error of the card, by NVIDIA's number.",
        _xids,
    ),
    Family(
        "gpushare_bypass_processes",
        "gauge",
        (*OF_CARD, "action"),
        "Processes that hold memory of the card and are no container's that has a part of it, by "
        "what is done: the host's own are ignored, of others audit.unknown says.",
        _bypass,
    ),
    Family(
        "gpushare_ledger_drift_bytes",
        "gauge",
        OF_CARD,
        "What containers' accounts say that the driver should have, less what it has for them.",
        _drift,
    ),
)
