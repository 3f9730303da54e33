# SPDX-License-Identifier: Apache-2.0
"""The figures that the metrics history keeps: their names, units, and where each comes from.

A gauge has a value at a time: its minimum, maximum and integral over time are kept. A counter only
grows, until gpushared starts again: its increase is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow, TenantCard, TenantRow


#: By unit, how many the file counts as one: it has integers, so that sums are exact.
_SCALES: Final = {"percent": 1000, "watts": 1000, "seconds": 1_000_000}


@dataclass(frozen=True)
class MetricFigure:
    """One figure; `read` returns its value in what the op `metrics` answers, None: not known."""

    name: str
    unit: str  # percent | bytes | watts | celsius | MHz | seconds | count
    text: str
    read: Callable[..., float | None]
    counter: bool = False

    @property
    def scale(self) -> int:
        """The factor by which a value is multiplied in the file."""
        return _SCALES.get(self.unit, 1)

    def stored(self, *source: Any) -> int | None:
        """Return the value as the file has it."""
        value = self.read(*source)
        return None if value is None else round(value * self.scale)


def _card(key: str) -> Callable[[CardRow], float | None]:
    return lambda card: card.get(key)  # type: ignore[return-value]


def _sensor(key: str) -> Callable[[CardRow], float | None]:
    return lambda card: card["sensors"].get(key)  # type: ignore[return-value]


def _power(card: CardRow) -> float | None:
    drawn = card["sensors"].get("power_milliwatts")
    return None if drawn is None else drawn / 1000


def _part(key: str) -> Callable[[TenantRow, TenantCard], float | None]:
    return lambda _, card: card.get(key)  # type: ignore[return-value]


def _allocated(key: str) -> Callable[[TenantRow, TenantCard], float | None]:
    """Return how to read what a container has of a card; others can get that of an evicted one."""

    def read(container: TenantRow, card: TenantCard) -> float | None:
        eviction = container["eviction"]
        is_evicted = eviction is not None and eviction["state"] == "evicted"
        return 0 if is_evicted else card.get(key)  # type: ignore[return-value]

    return read


def _denied(container: TenantRow, card: TenantCard) -> float:
    """Return the denied allocations on the first card: gpushared counts them per container."""
    return container["denied_since_start"] if card is container["cards"][0] else 0


def _by_name(*figures: MetricFigure) -> Mapping[str, MetricFigure]:
    return {figure.name: figure for figure in figures}


CARD_FIGURES: Final = _by_name(
    MetricFigure("utilization", "percent", "time in which the card was busy", _card("utilization")),
    MetricFigure("used_bytes", "bytes", "memory of processes, by the driver", _card("used_bytes")),
    MetricFigure("allocated_bytes", "bytes", "quotas of containers", _card("allocated_bytes")),
    MetricFigure("reserved_bytes", "bytes", "memory of the driver", _sensor("reserved_bytes")),
    MetricFigure("power", "watts", "power draw", _power),
    MetricFigure("temperature", "celsius", "temperature", _sensor("temperature_celsius")),
    MetricFigure("sm_clock", "MHz", "clock of the multiprocessors", _sensor("sm_clock_mhz")),
    MetricFigure("memory_clock", "MHz", "clock of the memory", _sensor("memory_clock_mhz")),
    MetricFigure(
        "memory_copy",
        "percent",
        "time in which memory was read or written",
        _sensor("memory_copy_percent"),
    ),
    MetricFigure(
        "encoder", "percent", "time in which the encoder was busy", _sensor("encoder_percent")
    ),
    MetricFigure(
        "decoder", "percent", "time in which the decoder was busy", _sensor("decoder_percent")
    ),
    MetricFigure("tenants", "count", "containers and host processes", _card("tenants")),
    MetricFigure(
        "xids", "count", "XID errors", lambda card: sum(card["xids"].values()), counter=True
    ),
)

CONTAINER_FIGURES: Final = _by_name(
    MetricFigure("used_bytes", "bytes", "memory in use", _part("used_bytes")),
    MetricFigure("quota_bytes", "bytes", "memory quota; 0: evicted", _allocated("quota_bytes")),
    MetricFigure("peak_bytes", "bytes", "the most memory in use so far", _part("peak_bytes")),
    MetricFigure("cores", "percent", "compute requested; 0: none, or evicted", _allocated("cores")),
    MetricFigure("utilization", "percent", "compute received", _part("utilization")),
    MetricFigure("encoder", "percent", "time of the encoder received", _part("encoder_percent")),
    MetricFigure("decoder", "percent", "time of the decoder received", _part("decoder_percent")),
    MetricFigure(
        "gpu_seconds", "seconds", "time of the card received", _part("gpu_seconds"), counter=True
    ),
    MetricFigure(
        "throttled_seconds",
        "seconds",
        "time that threads waited at the launch gate",
        lambda _, card: card["compute"]["throttled_ns"] / 1e9,
        counter=True,
    ),
    MetricFigure("denied", "count", "allocations over the quota", _denied, counter=True),
)


def gauges(figures: Mapping[str, MetricFigure]) -> list[MetricFigure]:
    """Return those that are no counters."""
    return [figure for figure in figures.values() if not figure.counter]


def counters(figures: Mapping[str, MetricFigure]) -> list[MetricFigure]:
    """Return the counters."""
    return [figure for figure in figures.values() if figure.counter]
