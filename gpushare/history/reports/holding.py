# SPDX-License-Identifier: Apache-2.0
"""A container's part of a card in a period, added up while the history is read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpushare.history.intervals import Interval

GIB: Final = 1 << 30
HOUR: Final = 3600.0
#: Between two intervals without a sample, idleness is not known to continue.
GAP_SECONDS: Final = 60.0


@dataclass
class LongestRun:
    """The longest time without a break in which something held, and how long it holds now."""

    longest: float = 0.0
    since: float | None = None
    total: float = 0.0
    end: float = 0.0

    def add(self, interval: Interval, *, holds: bool) -> None:
        """Add the next interval."""
        if not holds:
            self.since = None
            return
        if self.since is None or interval.start - self.end > GAP_SECONDS:
            self.since = interval.start
        self.end = interval.end
        self.total += interval.seconds
        self.longest = max(self.longest, self.end - self.since)


@dataclass
class Holding:
    """A container on a card, with its figures in a period; `below` is a part of the request.

    `seconds` is how long it had an allocation, which an evicted container has not, in the
    resolution of the history. `requested_gpu_seconds` is the time of the whole card that the
    requested compute amounts to.
    """

    labels: Mapping[str, str]
    key: str
    model: str
    is_exclusive: bool
    below: float
    seconds: float = 0.0
    last: float = 0.0
    gpu_seconds: float = 0.0
    requested_gpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    denied: float = 0.0
    byte_seconds: float = 0.0
    requested_byte_seconds: float = 0.0
    most_bytes: float = 0.0
    peak_bytes: float | None = None  # what it was before; None: not known
    memory_below: LongestRun = field(default_factory=LongestRun)
    compute_below: LongestRun = field(default_factory=LongestRun)
    idle: LongestRun = field(default_factory=LongestRun)
    idle_byte_seconds: float = 0.0

    def add(self, interval: Interval) -> None:
        """Add the next interval, in the order of time."""
        used, quota = interval.gauges.get("used_bytes"), interval.gauges.get("quota_bytes")
        cores = interval.gauges.get("cores")
        received = interval.increases.get("gpu_seconds", 0.0)
        requested = interval.seconds if self.is_exclusive else cores.integral / 100 if cores else 0
        if self.is_exclusive or quota is None or quota.most:  # 0: it was evicted all the time
            self.seconds += interval.seconds
        self.last = interval.end
        self.gpu_seconds += received
        self.requested_gpu_seconds += requested
        self.throttled_seconds += interval.increases.get("throttled_seconds", 0.0)
        self.denied += interval.increases.get("denied", 0.0)
        # Without a utilization, nobody knows what it received.
        is_measured = received > 0 or "utilization" in interval.gauges
        is_below = is_measured and received < self.below * requested
        self.compute_below.add(interval, holds=is_below)
        if quota is not None:
            self.requested_byte_seconds += quota.integral
        if used is None:
            return
        self.byte_seconds += used.integral
        self.most_bytes = max(self.most_bytes, used.most, self._new_peak(interval))
        wasted = quota is not None and used.integral < self.below * quota.integral
        self.memory_below.add(interval, holds=wasted)
        is_idle = is_measured and received == 0 and used.least > 0
        self.idle.add(interval, holds=is_idle)
        if is_idle:
            self.idle_byte_seconds += used.integral

    def _new_peak(self, interval: Interval) -> float:
        """Return the peak that gpushared saw between two samples, 0 if it is an earlier one."""
        peak = interval.gauges.get("peak_bytes")
        if peak is None:
            return 0.0
        before = peak.least if self.peak_bytes is None else self.peak_bytes
        self.peak_bytes = peak.most
        return peak.most if peak.most > before else 0.0

    @property
    def gib_hours(self) -> float:
        """The memory in use."""
        return self.byte_seconds / GIB / HOUR

    @property
    def requested_gib_hours(self) -> float:
        """The memory quota."""
        return self.requested_byte_seconds / GIB / HOUR
