# SPDX-License-Identifier: Apache-2.0
"""`numa: bind`: a container's CPUs and memory, kept to the NUMA nodes of its cards."""

from __future__ import annotations

from gpushare.daemon.cards.topology import NO_NODE
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.oci.cpuset import Bound, bind
from gpushare.oci.spec import Spec

BIND = "bind"


def bound(original: Spec, entry: Entry, node: Node) -> Bound:
    """Return what of CPUs and memory the container of `entry` keeps; what there is to say is noted.

    Where the node of one of its cards is not known, all of it: its CPUs may be anywhere.
    """
    driver = node.loaded()
    nodes = {holding.uuid: driver.links.node(holding.uuid) for holding in entry.holdings}
    unknown = [uuid for uuid, number in nodes.items() if number == NO_NODE]
    if unknown:
        cards = ", ".join(
            str(card.index) for uuid in unknown if (card := driver.card(uuid)) is not None
        )
        note = f"numa: bind: the NUMA node of card {cards} is not known: left as is"
        found = Bound(notes=(note,))
    else:
        path = original.at("linux", "cgroupsPath")
        allowed = node.numa.allowed(path if isinstance(path, str) else "")
        found = bind(original, node.numa.of(nodes.values()), allowed)
    if found.notes:
        known = node.ledger.entries[entry.key]
        node.ledger.describe(entry.key, found.notes, known.uninterposed, known.compat)
        for note in found.notes:
            log("tenant-noted", tenant=entry.key, name=entry.title, note=note)
    return found
