# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows of cards: plain values, never a vendor's handles.

`Driver` is the seam: nvml.py implements it over a process that calls NVML, tests over a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gpushare.daemon.cards.topology import Links


class DriverError(Exception):
    """The driver did not answer, or not in time; what was known before is stale."""


class DriverSilent(DriverError):
    """The driver did not answer in time, or hangs since an earlier question."""


class Implausible(DriverError):
    """The driver answered with figures that cannot be; nobody is judged by them."""


@dataclass(frozen=True)
class Card:
    """One card. `index` and `minor` may change with a reboot, `uuid` does not."""

    index: int
    uuid: str
    model: str
    memory_bytes: int  # total less what the driver keeps for itself
    minor: int  # N of /dev/nvidiaN
    datacenter: bool = False  # of the kind that cuda-compat packages are made for
    brand: str = ""  # as NVIDIA_REQUIRE_ variables name it; empty: not known
    capability: tuple[int, int] | None = None  # compute capability; None: not known

    @property
    def little_bytes(self) -> int:
        """So little may be left without the driver being able to use it: a twentieth, or 1 GiB."""
        return max(self.memory_bytes // 20, 1 << 30)


@dataclass(frozen=True)
class Use:
    """What one process takes of one card, as the driver says; `bytes` None: it does not say."""

    pid: int  # in the daemon's pid namespace
    bytes: int | None
    utilisation: int | None = None  # percent of the card's time, None: not known


@dataclass(frozen=True)
class Generation:
    """What the figures of a sample are of; where it differs from the last one's, judge nobody."""

    driver: str = ""  # its version
    cards: tuple[tuple[int, str], ...] = ()  # index and uuid, as the driver lists them
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by uuid of a card under MIG: its parts
    loads: int = 0  # how often the driver's library was loaded anew, not as it was told to

    def changed_cards(self, before: Generation) -> frozenset[str]:
        """Return the uuids of cards that are not what they were: all, with another driver."""
        now_at, was_at = ({uuid: at for at, uuid in one.cards} for one in (self, before))
        known = now_at.keys() | was_at.keys()
        if self.driver != before.driver:
            return frozenset(known)
        parts, were = dict(self.parts), dict(before.parts)
        return frozenset(
            uuid
            for uuid in known
            if (now_at.get(uuid), parts.get(uuid)) != (was_at.get(uuid), were.get(uuid))
        )


@dataclass(frozen=True)
class Sample:
    """One look at the driver. `taken_ns` is CLOCK_MONOTONIC."""

    taken_ns: int
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)  # by the card's uuid
    health: Mapping[str, str] = field(default_factory=dict)  # uuid -> what is wrong
    utilisation: Mapping[str, int] = field(default_factory=dict)  # percent by uuid, where known
    generation: Generation = field(default_factory=Generation)
    xids: tuple[tuple[str, int], ...] = ()  # uuid and number of each that came since the last look
    used: Mapping[str, int] = field(default_factory=dict)  # bytes by uuid, of everybody together

    def taken_bytes(self, uuid: str) -> int:
        """Return what is taken of a card: managed memory is in no process's figure."""
        listed = sum(use.bytes or 0 for use in self.uses.get(uuid, ()))
        return max(listed, self.used.get(uuid, 0))


@dataclass(frozen=True)
class Limits:
    """What the processes of a cgroup may have of a card: `soft` is theirs, `hard` the most."""

    soft_bytes: int
    hard_bytes: int

    def __str__(self) -> str:
        """Return `soft 4294967296, hard 8589934592 bytes`."""
        return f"soft {self.soft_bytes}, hard {self.hard_bytes} bytes"


NO_LIMITS: Final = Limits(0, (1 << 64) - 1)  # NVML_DEVICE_MEMORY_LIMIT_MAX


class Driver(Protocol):
    """A driver that is loaded. Every method may raise DriverError, within its deadline."""

    @property
    def driver_version(self) -> str:
        """As the driver says it."""
        ...

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that it can do."""
        ...

    @property
    def has_limits(self) -> bool:
        """Whether it can hold a cgroup to a limit; false once it has said that it cannot."""
        ...

    def renew(self, library: Path, env: Mapping[str, str]) -> None:
        """Load the driver's library anew, from the file where it is now."""
        ...

    def cards(self) -> tuple[Card, ...]:
        """Return the cards by index."""
        ...

    def links(self) -> Links:
        """Return how far the cards are from each other."""
        ...

    def sample(self) -> Sample:
        """Return what each process takes of each card."""
        ...

    def set_limits(self, uuid: str, cgroup: Path, limits: Limits) -> None:
        """Limit what the processes of the cgroup whose directory is `cgroup` have of a card."""
        ...

    def limits(self, uuid: str, cgroup: Path) -> Limits:
        """Return the limits of a cgroup on a card, NO_LIMITS where none are set."""
        ...
