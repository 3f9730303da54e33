# SPDX-License-Identifier: Apache-2.0
"""Reports the devices of prepared claims as ready, or not, in `status.devices` of the claim.

The status is informational, so it has a thread of its own: a pod never waits for it. A report that
the API server does not take in time is logged and dropped; the next change is reported again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.errors import UserError
from gpushare.kubernetes.api.claims import AllocatedClaim, ClaimReader
from gpushare.kubernetes.api.event_recorder import timestamp
from gpushare.kubernetes.log import StatusLog

PREPARED: Final = "reserved on the node"
_CLOSE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class _Report:
    claim: AllocatedClaim
    fault: str  # empty: the devices are ready


class ClaimStatusReporter:
    """Writes the last report of each claim. Any thread may report."""

    def __init__(self, reader: ClaimReader, log: StatusLog) -> None:
        self._reader = reader
        self._log = log
        self._changed = threading.Condition()
        self._claims: dict[str, _Report] = {}  # as last reported
        self._waiting: dict[str, _Report] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="claim status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, claim: AllocatedClaim) -> None:
        """Report a claim as prepared."""
        self._report(_Report(claim, ""))

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Report a claim that gpushared refused; the kubelet tries again."""
        with self._changed:
            self._waiting[claim.uid] = _Report(claim, why)
            self._changed.notify_all()

    def forget(self, uid: str) -> None:
        """Take a claim that is no longer prepared: nothing of it is reported any more."""
        with self._changed:
            self._claims.pop(uid, None)
            self._waiting.pop(uid, None)

    def update(self, faults: Mapping[str, str]) -> None:
        """Report the claims on devices with a fault, by the device's name, and those without."""
        with self._changed:
            reports = list(self._claims.values())
        for report in reports:
            names = [device.device for device in report.claim.devices]
            fault = next((f"{name}: {faults[name]}" for name in names if faults.get(name)), "")
            if fault != report.fault:
                self._report(_Report(report.claim, fault))

    def close(self) -> None:
        """End; what was not written is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def _report(self, report: _Report) -> None:
        with self._changed:
            self._claims[report.claim.uid] = self._waiting[report.claim.uid] = report
            self._changed.notify_all()

    def _serve(self) -> None:
        while (report := self._take()) is not None:
            claim, fault = report.claim, report.fault
            now = timestamp(time.time())
            try:
                self._reader.report(claim, fault or PREPARED, is_ready=not fault, now=now)
            except UserError as error:
                self._log.note("claim status", f"claim {claim.namespace}/{claim.name}: {error}")

    def _take(self) -> _Report | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            return self._waiting.pop(next(iter(self._waiting)))
