# SPDX-License-Identifier: Apache-2.0
"""What happens to claims besides their preparation, on threads that no kubelet waits for.

gpushared is told of pods that join a prepared claim, and the claim's status of the preparation.
"""

from __future__ import annotations

import queue
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Protocol

from gpushare.errors import UserError
from gpushare.kubernetes.api.prepared_claims import PreparedClaims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.kubernetes.api.claims import AllocatedClaim, ClaimReader
    from gpushare.kubernetes.api.server import ApiServer
    from gpushare.kubernetes.log import StatusLog
    from gpushare.protocol.kubernetes import ClaimStatus

PREPARED: Final = "gpushared has reserved the device"


class ClaimUsers(Protocol):
    """The part of gpushare.client.Client that knows the pods of prepared claims."""

    def claims(self) -> list[ClaimStatus]:
        """Return the prepared claims."""

    def set_claim_pods(self, uid: str, pods: Sequence[str]) -> None:
        """Have these pods be those that may use a claim."""


class ClaimFollower:
    """Follows the claims that are prepared on this node, until `close`."""

    def __init__(
        self, api: ApiServer, claims: ClaimReader, client: ClaimUsers, log: StatusLog
    ) -> None:
        self._claims, self._client, self._log = claims, client, log
        self._prepared = PreparedClaims(
            api, lambda claim: client.set_claim_pods(claim.uid, claim.pods)
        )
        self._reports: queue.SimpleQueue[tuple[AllocatedClaim, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="claims", daemon=True)
        self._thread.start()

    def follow(self, claim: AllocatedClaim) -> None:
        """Follow a claim that is prepared."""
        self._prepared.follow(claim)
        self._reports.put((claim, ""))

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Report a claim that cannot be prepared."""
        self._reports.put((claim, why))

    def forget(self, uid: str) -> None:
        """Stop following a claim that is released."""
        self._prepared.forget(uid)

    def close(self) -> None:
        """End; reports that were not sent are dropped, for the next prepare sends them again."""
        self._prepared.close()
        self._reports.put(None)

    def _serve(self) -> None:
        self._resume()
        while (report := self._reports.get()) is not None:
            claim, why = report
            now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            try:
                self._claims.report(claim, why or PREPARED, is_ready=not why, now=now)
            except UserError as error:
                self._log.note("claim status", f"status of claims: {error}")

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
                self._prepared.follow(claim)
            except UserError as error:
                where = f"{row['namespace']}/{row['name']}"
                self._log.note(f"claim {row['claim']}", f"claim {where}: {error}")
