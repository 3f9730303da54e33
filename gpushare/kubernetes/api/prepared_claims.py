# SPDX-License-Identifier: Apache-2.0
"""The claims that are prepared here: reports their status, and notices pods that join them.

The kubelet does not tell a driver of a pod that joins a prepared claim: only the claim's
`status.reservedFor` does. A watch cannot select claims by node, so each has a watch of its own.
Most claims are made from a template for one pod, which no other can join: they need none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gpushare.kubernetes.api.claim_status import ClaimStatusReporter
from gpushare.kubernetes.api.claims import CLAIMS, AllocatedClaim, ClaimReader, claim_of
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.watch import CLOSE_SECONDS, WatchedObjects
from gpushare.kubernetes.log import StatusLog


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
