# SPDX-License-Identifier: Apache-2.0
"""The driver as the daemon sees it: plain values, never a vendor's handles.

`Nvml` (nvml_client.py) gets them from a process that calls NVML; tests, from a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare import xid
from gpushare.daemon.core.log import log
from gpushare.daemon.placement.model import Card
from gpushare.protocol.rows import CardSensors


class DriverError(Exception):
    """The driver did not answer, or not in time; what was known before is stale."""


class DriverTimeout(DriverError):
    """The driver did not answer in time, or hangs since an earlier question."""


class InvalidSample(DriverError):
    """The driver answered with figures that cannot be; no tenant is judged by them."""


@dataclass(frozen=True)
class ProcessUse:
    """One process on one card, as the driver reports it."""

    pid: int  # in the daemon's pid namespace
    bytes: int | None  # None: the driver does not say
    utilization: int | None = None  # percent of the card's time, None: not known
    is_mps: bool = False  # a client of an MPS server
    encoder_percent: int | None = None  # likewise, of its encoder's time
    decoder_percent: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it uses an engine of the card, as far as the driver says."""
        return bool(self.utilization or self.encoder_percent or self.decoder_percent)


@dataclass(frozen=True)
class DriverGeneration:
    """The driver and cards of a sample; if they differ from the last one's, judge no tenant."""

    driver: str = ""  # its version
    cards: tuple[tuple[int, str], ...] = ()  # index and uuid, as the driver lists them
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by uuid of a card under MIG: its parts
    loads: int = 0  # unrequested reloads of the driver's library

    def changed_cards(self, before: DriverGeneration) -> frozenset[str]:
        """Return the uuids of cards that are not what they were: all, with another driver.

        With a card, its MIG instances have changed.
        """
        now_at = {uuid: index for index, uuid in self.cards}
        was_at = {uuid: index for index, uuid in before.cards}
        known = now_at.keys() | was_at.keys()
        if self.driver != before.driver:
            return frozenset(known)
        parts, were = dict(self.parts), dict(before.parts)
        changed = {
            uuid
            for uuid in known
            if (now_at.get(uuid), parts.get(uuid)) != (was_at.get(uuid), were.get(uuid))
        }
        instances = (
            part for uuid in changed for part in (*parts.get(uuid, ()), *were.get(uuid, ()))
        )
        return frozenset((*changed, *instances))


@dataclass(frozen=True)
class DriverSample:
    """One look at the driver. `taken_ns` is CLOCK_MONOTONIC, and makes no sample another one."""

    taken_ns: int = field(compare=False)
    uses: Mapping[str, tuple[ProcessUse, ...]] = field(default_factory=dict)  # by the card's uuid
    health: Mapping[str, str] = field(default_factory=dict)  # uuid -> what is wrong
    utilization: Mapping[str, int] = field(default_factory=dict)  # percent by uuid, where known
    generation: DriverGeneration = field(default_factory=DriverGeneration)
    xids: tuple[tuple[str, int], ...] = ()  # uuid and number of each that came since the last look
    used: Mapping[str, int] = field(default_factory=dict)  # bytes by uuid, of all processes
    compute_modes: Mapping[str, str] = field(default_factory=dict)  # by uuid; "": the default
    # By uuid; they are some seconds old, and no other sample for being others.
    sensors: Mapping[str, CardSensors] = field(default_factory=dict, compare=False)

    def free_bytes(self, card: Card) -> int | None:
        """Return the memory of a card that the driver has unused; None: it does not report it."""
        if card.uuid not in self.uses:
            return None
        listed = sum(use.bytes or 0 for use in self.uses[card.uuid])
        # Managed memory is in no process's figure.
        return card.memory_bytes - max(listed, self.used.get(card.uuid, 0))


@dataclass(frozen=True)
class DriverLimits:
    """The limits of a cgroup's processes on a card."""

    soft_bytes: int  # the memory that is theirs
    hard_bytes: int  # the most that they may have

    def __str__(self) -> str:
        """Return `soft 4294967296, hard 8589934592 bytes`."""
        return f"soft {self.soft_bytes}, hard {self.hard_bytes} bytes"


NO_LIMITS: Final = DriverLimits(0, (1 << 64) - 1)  # NVML_DEVICE_MEMORY_LIMIT_MAX


OK: Final = "ok"


class Health:
    """The health of each card: XIDs, cards that do not answer, and cards that MIG divides.

    `note` and `observe` are the truth thread's; `xids` anybody's.
    """

    def __init__(self) -> None:
        # The number of reports of each, by uuid and number; the last last.
        self.xids: Mapping[tuple[str, int], int] = MappingProxyType({})
        self._fatal: dict[str, int] = {}  # the XID after which a card cannot be used
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
            known = dict(self.xids)
            count = known.pop((uuid, number), 0) + 1
            self.xids = MappingProxyType({**known, (uuid, number): count})
            is_fatal = number in xid.FATAL
            log(
                "card-xid-reported",
                "error" if is_fatal else "warning",
                card=uuid,
                model=cards[uuid].model if uuid in cards else "",
                xid=number,
                meaning=xid.meaning(number),
                processes=[use.pid for use in sample.uses.get(uuid, ())],
            )
            if is_fatal:
                self._fatal[uuid] = number
                self._failed.discard(uuid)

    def observe(self, sample: DriverSample, cards: Mapping[str, Card]) -> Mapping[str, str]:
        """Return what is wrong by uuid, "ok" of a healthy card, after one more sample."""
        health = {uuid: self._of(card, sample) for uuid, card in cards.items()}
        for uuid, text in health.items():
            before = self._last.get(uuid, OK)
            fields = {"card": uuid, "model": cards[uuid].model}
            if before == OK and text != OK:
                log("card-unhealthy", "error", **fields, reason=text)
            elif before != OK and text == OK:
                log("card-recovered", **fields, previous=before)
        self._last = health
        return health

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
        smi = f"-i {card.index}"
        if sample.compute_modes.get(card.uuid) == "Prohibited":
            return f"no program can use it (compute mode Prohibited): nvidia-smi {smi} -c DEFAULT"
        if card.uuid in dict(sample.generation.parts) and not card.is_divided:
            return (
                f"MIG is enabled, and it has no instance: nvidia-smi mig {smi} -cgi PROFILE -C, or "
                f"nvidia-smi {smi} -mig 0"
            )
        return OK
