# SPDX-License-Identifier: Apache-2.0
"""Which cards are well, over time: what NVML answers, the XIDs that came, MIG, changes.

A card that is not well keeps its tenants and their promises, and gets no new ones. One that was
lost, or had an XID that makes it unfit, is well again once it has failed to answer and then answers
(it was reset), or with another driver; a card that answers all the while has not been reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpushare import xid
from gpushare.daemon.cards.card import Card, Sample
from gpushare.daemon.log import log

OK: Final = "ok"
_MIG: Final = "MIG is on, and parts of a card cannot be shared: nvidia-smi -i {index} -mig 0"


class Health:
    """What is wrong with each card. `observe` is the truth thread's; `xids` anybody's."""

    def __init__(self) -> None:
        self.xids: Mapping[tuple[str, int], int] = MappingProxyType({})  # by uuid and number
        self._fatal: dict[str, int] = {}
        self._failed: set[str] = set()  # of the fatal ones: those that have not answered since
        self._driver = ""
        self._last: dict[str, str] = {}

    def note(self, sample: Sample, cards: Mapping[str, Card]) -> None:
        """Log and count the XIDs that have come; every sample is told, also one that is not used.

        One of the processes on the card may have caused it: NVML does not say which.
        """
        if sample.generation.driver != self._driver:
            self._driver = sample.generation.driver
            self._fatal.clear()
            self._failed.clear()
        for uuid, number in sample.xids:
            pids = [use.pid for use in sample.uses.get(uuid, ())]
            self._note(uuid, number, cards.get(uuid), pids)

    def observe(self, sample: Sample, cards: Mapping[str, Card]) -> Mapping[str, str]:
        """Return what is wrong by uuid, "ok" of a card that is well, after one more look."""
        found = {uuid: self._of(card, sample) for uuid, card in cards.items()}
        for uuid, text in found.items():
            before = self._last.get(uuid, OK)
            said = {"card": uuid, "model": cards[uuid].model}
            if before == OK and text != OK:
                log("card-unwell", "error", **said, why=text)
            elif before != OK and text == OK:
                log("card-well", **said, was=before)
        self._last = found
        return found

    def _note(self, uuid: str, number: int, card: Card | None, pids: list[int]) -> None:
        count = self.xids.get((uuid, number), 0) + 1
        self.xids = MappingProxyType({**self.xids, (uuid, number): count})
        fatal = number in xid.FATAL
        log(
            "card-xid",
            "error" if fatal else "warning",
            card=uuid,
            model=card.model if card else "",
            xid=number,
            meaning=xid.meaning(number),
            processes=pids,
        )
        if fatal:
            self._fatal[uuid] = number
            self._failed.discard(uuid)

    def _of(self, card: Card, sample: Sample) -> str:
        said = sample.health.get(card.uuid)
        if said is None and card.uuid not in sample.uses:
            said = "not seen"
        if said is not None:
            self._failed.add(card.uuid)
        elif card.uuid in self._failed:
            self._failed.discard(card.uuid)
            self._fatal.pop(card.uuid, None)
        number = self._fatal.get(card.uuid)
        if number is not None:
            meaning, act = xid.FATAL[number]
            return f"XID {number}: {meaning}; {act}"
        if said is not None:
            return said
        if card.uuid in dict(sample.generation.parts):
            return _MIG.format(index=card.index)
        return OK
