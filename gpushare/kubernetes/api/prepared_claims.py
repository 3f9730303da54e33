# SPDX-License-Identifier: Apache-2.0
"""The claims that are prepared here: reports their status, and tells gpushared who joins them.

The kubelet does not tell a driver of a pod that joins a prepared claim: only the claim's
`status.reservedFor` does. A watch cannot select claims by node, so each has a watch of its own.
Most claims are made from a template for one pod, which no other can join: they need none.

The status, `status.devices` of a claim, is informational, so it has a thread of its own: a pod
never waits for it. A report that the API server does not take in time is logged and dropped; the
next change is reported again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.claims import CLAIMS, AllocatedClaim, ClaimReader, claim_of
from gpushare.kubernetes.api.event_recorder import timestamp
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.watch import CLOSE_SECONDS, WatchedObjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.protocol.kubernetes import ClaimStatus

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


class PreparedClaims:
    """Follows prepared claims, and calls `changed`, on another thread, if the pods of one change.

    If `changed` raises a UserError, it is called again with the claim's next change.
    """

    def __init__(
        self,
        api: ApiServer,
        changed: Callable[[AllocatedClaim], None],
        log: StatusLog | None = None,
    ) -> None:
        self._api = api
        self._changed = changed
        self._status = ClaimStatusReporter(ClaimReader(api), log or StatusLog())
        self._status.start()
        self._lock = threading.Lock()
        self._followed: dict[str, _FollowedClaim] = {}

    def follow(self, claim: AllocatedClaim) -> None:
        """Take a claim that was prepared with `claim.pods`."""
        self._status.add(claim)
        if claim.is_of_one_pod:
            return
        with self._lock:
            if claim.uid in self._followed:
                return
            followed = self._followed[claim.uid] = _FollowedClaim(self._api, claim, self._changed)
        followed.watch.start()

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Take a claim that gpushared refused to prepare."""
        self._status.refuse(claim, why)

    def forget(self, uid: str) -> None:
        """Take a claim that is no longer prepared; an unknown one is fine."""
        self._status.forget(uid)
        with self._lock:
            followed = self._followed.pop(uid, None)
        if followed is not None:
            followed.watch.close()

    def update_health(self, faults: Mapping[str, str]) -> None:
        """Take the faults of devices, by name; devices without one are well."""
        self._status.update(faults)

    def close(self) -> None:
        """Follow no claims any more."""
        self._status.close()
        with self._lock:
            watches = [followed.watch for followed in self._followed.values()]
            self._followed.clear()
        for watch in watches:
            watch.end()
        until = time.monotonic() + CLOSE_SECONDS  # for all of them
        for watch in watches:
            watch.close(until - time.monotonic())


class _FollowedClaim:
    """One claim, and the pods that were last reported of it."""

    def __init__(
        self, api: ApiServer, claim: AllocatedClaim, changed: Callable[[AllocatedClaim], None]
    ) -> None:
        self._uid = claim.uid
        self._pods = set(claim.pods)
        self._changed = changed
        query = {"fieldSelector": f"metadata.name={claim.name}"}
        path = path_of(CLAIMS, namespace=claim.namespace)
        self.watch = WatchedObjects(api, path, query, changed=self._compare)

    def _compare(self) -> None:
        for one in self.watch.objects():
            claim = claim_of(one)
            if claim.uid == self._uid and set(claim.pods) != self._pods:
                self._changed(claim)
                self._pods = set(claim.pods)


class ClaimUsers(Protocol):
    """The part of gpushare.client.Client that knows the pods of prepared claims."""

    def claims(self) -> list[ClaimStatus]:
        """Return the prepared claims."""

    def set_claim_pods(self, uid: str, pods: Sequence[str]) -> None:
        """Have these pods be those that may use a claim."""


class ClaimFollower(PreparedClaims):
    """Follows the claims that are prepared on this node, those of an earlier process too."""

    def __init__(
        self, api: ApiServer, claims: ClaimReader, client: ClaimUsers, log: StatusLog
    ) -> None:
        super().__init__(api, lambda claim: client.set_claim_pods(claim.uid, claim.pods), log)
        self._claims, self._client, self._log = claims, client, log
        threading.Thread(target=self._resume, name="claims", daemon=True).start()

    def _resume(self) -> None:
        """Follow the claims that an earlier process prepared."""
        try:
            rows = self._client.claims()
        except UserError as error:
            self._log.note("claims", f"prepared claims: {error}")
            return
        for row in rows:
            try:
                claim = self._claims.read(row["namespace"], row["name"])
                if claim.uid != row["claim"]:
                    continue  # another one of that name: the kubelet releases the old one
                if set(claim.pods) != set(row["pods"]):
                    self._client.set_claim_pods(claim.uid, claim.pods)
                self.follow(claim)
            except UserError as error:
                where = f"{row['namespace']}/{row['name']}"
                self._log.note(f"claim {row['claim']}", f"claim {where}: {error}")
