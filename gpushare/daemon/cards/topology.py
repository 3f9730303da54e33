# SPDX-License-Identifier: Apache-2.0
"""How far cards are from each other, and on which NUMA node each is: plain values.

Gathered once for each time that the driver is loaded: nothing of it changes underneath a driver.
The kinds are those that `nvidia-smi topo -m` prints, the distances NVML's own levels
(nvml.h, nvmlGpuTopologyLevel_t: 0 on one board, 10 one switch, 20 several, 30 a host bridge, 40 one
NUMA node, 50 across) with a ten added, so that NVLink, which no level has, is nearer than any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

NO_NODE: Final = -1
_NEAREST: Final = 1
_ONE_NVLINK: Final = 9
_KINDS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_BELOW_NVLINK: Final = 10


@dataclass(frozen=True)
class Link:
    """What is between two cards: `kind` as `nvidia-smi topo -m`, `distance` 1 (near) to 70."""

    kind: str
    distance: int


UNKNOWN: Final = Link("?", 70)  # no nearer than any that is known


def nvlink(count: int) -> Link:
    """Return what `count` NVLinks between two cards are; of more, the cards are nearer."""
    return Link(f"NV{count}", max(_NEAREST, _ONE_NVLINK + 1 - count))


def pcie(level: int) -> Link:
    """Return what a common ancestor of NVML's `level` is; UNKNOWN for one that is none of its."""
    if level not in _KINDS:
        return UNKNOWN
    return Link(_KINDS[level], level + _BELOW_NVLINK)


@dataclass(frozen=True)
class Links:
    """All cards' links, and the NUMA node of each, by UUID; what is not in it is not known."""

    between: Mapping[frozenset[str], Link] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)

    def link(self, one: str, other: str) -> Link:
        """Return what is between two different cards."""
        return self.between.get(frozenset((one, other)), UNKNOWN)

    def distance(self, uuids: Sequence[str]) -> int:
        """Return the distances of all pairs of `uuids`, added up; 0 for one card."""
        return sum(self.link(one, other).distance for one, other in combinations(uuids, 2))

    def near(self, uuids: Sequence[str], others: Sequence[str]) -> int:
        """Return how much nearness there is between `uuids` and `others`, added up over pairs."""
        pairs = (self.link(one, other).distance for one in uuids for other in others)
        return sum(UNKNOWN.distance - distance for distance in pairs)

    def node(self, uuid: str) -> int:
        """Return the card's NUMA node; NO_NODE where it is not known."""
        return self.nodes.get(uuid, NO_NODE)


NO_LINKS: Final = Links()


def of_facts(facts: Mapping[str, Any], node_of: Callable[[str], int]) -> Links:
    """Return what near.facts() come to; `node_of` says a PCI address's node where NVML does not.

    KeyError, TypeError: they are no such facts.
    """
    cards: Mapping[str, Any] = facts["cards"]
    between = {
        frozenset((pair["one"], pair["other"])): _link(pair, cards) for pair in facts["pairs"]
    }
    nodes = {}
    for uuid, card in cards.items():
        node = card["node"]
        if node is None and card["address"] is not None:
            node = node_of(card["address"])
        nodes[uuid] = NO_NODE if node is None else int(node)
    return Links(between, nodes)


def _link(pair: Mapping[str, Any], cards: Mapping[str, Any]) -> Link:
    one, other = cards[pair["one"]], cards[pair["other"]]
    count = Counter(one["ends"])[other["address"]]
    if not count and pair["nvlink"]:
        # Through switches: as many links as the one with fewer has to what is no card.
        addresses = {card["address"] for card in cards.values()}
        count = min(sum(end not in addresses for end in card["ends"]) or 1 for card in (one, other))
    if count:
        return nvlink(count)
    return UNKNOWN if pair["level"] is None else pcie(int(pair["level"]))
