# SPDX-License-Identifier: Apache-2.0
"""The thread that samples the driver: what it reports is published, and then judged."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpushare.daemon.audit.audit import Audit, IdleBackoff
from gpushare.daemon.eviction.steps import OnCardWatch
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from gpushare.daemon.limits import BurstUpdater
from gpushare.daemon.observe.compute_usage import ComputeMeter
from gpushare.daemon.observe.sampler import UsageSampler, update_peaks
from gpushare.daemon.state import DaemonState


class SamplingLoop:
    """Samples the driver again and again, and has what follows from it done; the truth thread.

    `beat` is called each time, and `corrected` where what was charged changes a share.
    """

    def __init__(
        self,
        state: DaemonState,
        loader: DriverLoader,
        audit: Audit,
        beat: Callable[[], None],
        corrected: Callable[[], None],
    ) -> None:
        self._state = state
        self._loader = loader
        self._audit = audit
        self._beat = beat
        self._meter = ComputeMeter(state.ledger, state.tenants, state.observed, corrected=corrected)
        self._burst = BurstUpdater(state)
        self._on_card = OnCardWatch(state)
        self._idle = IdleBackoff(state)

    def run(self, stop: threading.Event) -> None:
        """Sample until `stop` is set."""
        while True:
            hurried = self._audit.wait(self._idle.slower)
            self._beat()
            if stop.is_set():
                return
            sampler = self._loader.sampler
            if self._state.node.driver is None or sampler is None:
                continue
            if hurried or not self._idle.look(sampler):
                self._sample(sampler)
            else:
                self._burst.again_when_due()

    def _sample(self, sampler: UsageSampler) -> None:
        observed = self._state.observed
        sampler.look()
        observed.peaks = update_peaks(observed.peaks, observed.usage)
        self._meter.look()
        self._audit.look(sampler.resolver)
        self._on_card.look()
        self._idle.note()
        if not observed.usage.stale:
            self._burst.again()
