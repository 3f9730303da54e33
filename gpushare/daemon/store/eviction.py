# SPDX-License-Identifier: Apache-2.0
"""What the ledger records of an eviction: where a tenant's GPU memory is.

| state | memory | its allocations |
|---|---|---|
| evicting | on its cards; on the way to host memory | count |
| evicted | in host memory of its processes | are available to others |
| restoring | in host memory, on the way to the cards of its allocations | count again |
| failed | the driver can neither keep nor restore it (CU_PROCESS_STATE_FAILED) | count |

A step is recorded before it is begun, and what it has led to afterwards. A daemon that finds an
eviction in between asks the driver for the state of each process: it never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

EvictionState = Literal["evicting", "evicted", "restoring", "failed"]
_STATES: Final = ("evicting", "evicted", "restoring", "failed")


@dataclass(frozen=True)
class EvictedProcess:
    """A process that uses the driver, by its numbers on the host."""

    pid: int
    starttime: int


@dataclass(frozen=True)
class EvictionRecord:
    """An eviction; `since` is when it came into this state, in seconds since the epoch.

    `cause` is what evicted it (`operator`, `idle` or `offline`: the reason is a request that had
    no room). `processes` are in the order in which they are evicted, and restored. `card_bytes` is
    what the driver reported for each of its allocations, and `cards` the UUIDs of the cards that
    the memory came from, both by the tenant's card number: a restore to another card changes the
    UUIDs of the allocations first.
    """

    state: EvictionState
    since: float
    cause: str = "operator"
    reason: str = ""
    processes: tuple[EvictedProcess, ...] = ()
    card_bytes: tuple[int, ...] = ()
    cards: tuple[str, ...] = ()
    error: str = ""  # of a failed one: what the driver said
    held: bool = False  # it is restored by an operator alone

    @property
    def bytes(self) -> int:
        """What is, or is about to be, in host memory."""
        return sum(self.card_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON has it."""
        return {
            **vars(self),
            "processes": [asdict(one) for one in self.processes],
            "card_bytes": list(self.card_bytes),
            "cards": list(self.cards),
        }


_FIELDS: Final = frozenset(each.name for each in fields(EvictionRecord))


def eviction_from_json(values: Mapping[str, Any] | None) -> EvictionRecord | None:
    """Return the record that `to_json` wrote; ValueError, TypeError, LookupError for others."""
    if values is None:
        return None
    if values.keys() != _FIELDS or values["state"] not in _STATES:
        raise ValueError("it does not have the fields of an eviction")
    return EvictionRecord(
        **{
            **values,
            "processes": tuple(EvictedProcess(**one) for one in values["processes"]),
            "card_bytes": tuple(map(int, values["card_bytes"])),
            "cards": tuple(map(str, values["cards"])),
        }
    )


@dataclass(frozen=True)
class EvictionTotals:
    """What was done since gpushared started, for the metrics. `seconds` are of all together."""

    evictions: int = 0
    restores: int = 0
    moves: int = 0
    failures: int = 0
    eviction_seconds: float = 0.0
    restore_seconds: float = 0.0
    driver_seconds: float = 0.0  # of both, in the driver

    def plus(self, **more: float) -> EvictionTotals:
        """Return these and what has been done since."""
        return EvictionTotals(
            **{key: value + more.get(key, 0) for key, value in vars(self).items()}
        )
