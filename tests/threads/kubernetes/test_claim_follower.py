# SPDX-License-Identifier: Apache-2.0
"""Claims of an earlier gpushare-node: which pods may use them by now, and which are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.claims import ClaimReader
from gpushare.kubernetes.api.prepared_claims import ClaimFollower
from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import CLAIMS, AllocatedPart, ScheduledClaim
from tests.system.waiting import wait_until


class Daemon:
    """gpushared with one prepared claim, and the pods that it knows of."""

    def __init__(self, claim: ScheduledClaim, *pods: str) -> None:
        self.pods = list(pods)
        names = {"namespace": claim.namespace, "name": claim.name}
        self.row: dict[str, Any] = {"claim": claim.uid, **names, "pods": self.pods}

    def claims(self) -> list[Any]:
        return [self.row]

    def set_claim_pods(self, uid: str, pods: Sequence[str]) -> None:
        assert uid == self.row["claim"]
        self.pods = list(pods)


def claim_in(cluster: StandInApiServer, *pods: str) -> ScheduledClaim:
    claim = ScheduledClaim(cluster, "train", "n", [AllocatedPart("GPU-A")])
    claim.reserve(*pods)
    return claim


@contextmanager
def following(api: ApiServer, daemon: Daemon) -> Iterator[ClaimFollower]:
    made = ClaimFollower(api, ClaimReader(api), daemon, StatusLog())
    try:
        yield made
    finally:
        api.stop.set()
        made.close()


def test_a_pod_that_joined_meanwhile_may_use_the_claim(
    cluster: StandInApiServer, api: ApiServer
) -> None:
    daemon = Daemon(claim_in(cluster, "pod-1", "pod-2"), "pod-1")
    with following(api, daemon):
        wait_until(lambda: daemon.pods == ["pod-1", "pod-2"])


def test_a_pod_that_joins_later_may_use_it_too(cluster: StandInApiServer, api: ApiServer) -> None:
    claim = claim_in(cluster, "pod-1")
    daemon = Daemon(claim, "pod-1")
    with following(api, daemon):
        wait_until(lambda: any("watch" in each for each in cluster.requests))
        claim.reserve("pod-1", "pod-2")
        wait_until(lambda: daemon.pods == ["pod-1", "pod-2"])


def test_another_claim_of_that_name_is_none_of_its_business(
    cluster: StandInApiServer, api: ApiServer
) -> None:
    daemon = Daemon(claim_in(cluster, "pod-1"), "pod-1")
    again = claim_in(cluster, "pod-9")
    with following(api, daemon) as follower:
        follower.refuse(ClaimReader(api).read("ai", "train"), "no room")
        path = CLAIMS.format(namespace="ai", name="train")
        wait_until(lambda: "devices" in cluster.objects[path]["status"])
        [device] = cluster.objects[path]["status"]["devices"]
        assert device["conditions"][0]["message"] == "no room"
    assert cluster.objects[path]["metadata"]["uid"] == again.uid
    assert daemon.pods == ["pod-1"]
