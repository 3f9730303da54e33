# SPDX-License-Identifier: Apache-2.0
"""Tells gpushared of pods that join a prepared claim, also while gpushare-node was away."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from gpushare.errors import UserError
from gpushare.kubernetes.api.prepared_claims import PreparedClaims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.kubernetes.api.claims import ClaimReader
    from gpushare.kubernetes.api.server import ApiServer
    from gpushare.kubernetes.log import StatusLog
    from gpushare.protocol.kubernetes import ClaimStatus


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
