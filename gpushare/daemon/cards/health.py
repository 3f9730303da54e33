# SPDX-License-Identifier: Apache-2.0
"""What is wrong with each card: XIDs, cards that do not answer, and cards that MIG divides."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpushare import xid
from gpushare.daemon.cards.driver_client import DriverSample
from gpushare.daemon.core.log import log
from gpushare.daemon.placement.model import Card

OK: Final = "ok"
_PROHIBITED_MODE: Final = "Prohibited"
_PROHIBITED: Final = (
    "no program can use it (compute mode Prohibited): nvidia-smi -i {index} -c DEFAULT"
)
_MIG: Final = (
    "MIG is enabled, and it has no instance: nvidia-smi mig -i {index} -cgi PROFILE -C, or "
    "nvidia-smi -i {index} -mig 0"
)


class Health:
    """What is wrong with each card. `observe` is the truth thread's; `xids` anybody's."""

    def __init__(self) -> None:
        self.xids: Mapping[tuple[str, int], int] = MappingProxyType(
            {}
        )  # by uuid and number; the last last
        self._fatal: dict[str, int] = {}
        self._failed: set[str] = set()  # of the fatal ones: those that have not answered since
        self._driver = ""
        self._last: dict[str, str] = {}

    def note(self, sample: DriverSample, cards: Mapping[str, Card]) -> None:
        """Log and count the XIDs that have come, also those of a sample that is not used.

        One of the processes on the card may have caused it: NVML does not say which.
        """
        if sample.generation.driver != self._driver:
            self._driver = sample.generation.driver
            self._fatal.clear()
            self._failed.clear()
        for uuid, number in sample.xids:
            pids = [use.pid for use in sample.uses.get(uuid, ())]
            self._note(uuid, number, cards.get(uuid), pids)

    def observe(self, sample: DriverSample, cards: Mapping[str, Card]) -> Mapping[str, str]:
        """Return what is wrong by uuid, "ok" of a healthy card, after one more sample."""
        found = {uuid: self._of(card, sample) for uuid, card in cards.items()}
        for uuid, text in found.items():
            before = self._last.get(uuid, OK)
            fields = {"card": uuid, "model": cards[uuid].model}
            if before == OK and text != OK:
                log("card-unhealthy", "error", **fields, reason=text)
            elif before != OK and text == OK:
                log("card-recovered", **fields, previous=before)
        self._last = found
        return found

    def _note(self, uuid: str, number: int, card: Card | None, pids: list[int]) -> None:
        known = dict(self.xids)
        count = known.pop((uuid, number), 0) + 1
        self.xids = MappingProxyType({**known, (uuid, number): count})
        fatal = number in xid.FATAL
        log(
            "card-xid-reported",
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

    def _of(self, card: Card, sample: DriverSample) -> str:
        reported = sample.health.get(card.uuid)
        if reported is None and card.uuid not in sample.uses:
            reported = "not seen"
        if reported is not None:
            self._failed.add(card.uuid)
        elif card.uuid in self._failed:
            self._failed.discard(card.uuid)
            self._fatal.pop(card.uuid, None)
        number = self._fatal.get(card.instance.card_uuid if card.instance else card.uuid)
        if number is not None:
            meaning, act = xid.FATAL[number]
            return f"XID {number}: {meaning}; {act}"
        if reported is not None:
            return reported
        if sample.compute_modes.get(card.uuid) == _PROHIBITED_MODE:
            return _PROHIBITED.format(index=card.index)
        if card.uuid in dict(sample.generation.parts) and not card.is_divided:
            return _MIG.format(index=card.index)
        return OK
