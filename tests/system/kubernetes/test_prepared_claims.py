# SPDX-License-Identifier: Apache-2.0
"""Claims that were prepared: pods that join and leave, and what is written of their devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.kubernetes.api.claims import (
    CLAIMS,
    AllocatedClaim,
    PreparedClaims,
    claim_of,
)
from gpushare.kubernetes.api.server import ApiServer, path_of
from tests.stack.api_server import StandInApiServer
from tests.system.waiting import wait_until
from tests.unit.kubernetes.test_claims import PATH, body

pytestmark = pytest.mark.gate


class Followed:
    """Follows claims, and notes what changes."""

    def __init__(self, api: ApiServer) -> None:
        self.seen: list[AllocatedClaim] = []
        self.claims = PreparedClaims(api, self.seen.append)

    @property
    def pods(self) -> list[tuple[str, ...]]:
        return [claim.pods for claim in self.seen]


@pytest.fixture
def followed(api: ApiServer) -> Iterator[Followed]:
    made = Followed(api)
    yield made
    made.claims.close()


def reserve(cluster: StandInApiServer, *pods: str) -> None:
    reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    cluster.put(PATH, body(reservedFor=reserved))


def test_a_pod_that_joins_or_leaves_a_prepared_claim_is_noticed(
    followed: Followed, cluster: StandInApiServer
) -> None:
    reserve(cluster, "pod-1")
    followed.claims.follow(claim_of(cluster.objects[PATH]))
    wait_until(lambda: cluster.watchers == 1)
    assert not followed.seen
    reserve(cluster, "pod-1", "pod-2")
    wait_until(lambda: followed.pods == [("pod-1", "pod-2")])
    reserve(cluster, "pod-2")
    wait_until(lambda: followed.pods[1:] == [("pod-2",)])


def test_other_claims_and_a_namesake_are_not_reported(
    followed: Followed, cluster: StandInApiServer
) -> None:
    reserve(cluster, "pod-1")
    followed.claims.follow(claim_of(cluster.objects[PATH]))
    followed.claims.follow(claim_of(cluster.objects[PATH]))
    wait_until(lambda: cluster.watchers == 1)
    cluster.put(path_of(CLAIMS, "other", "team-a"), body(reservedFor=[]))
    cluster.remove(PATH)
    cluster.put(PATH, {**body(reservedFor=[]), "metadata": {"uid": "claim-2"}})
    watch = followed.claims._followed["claim-1"].watch
    wait_until(lambda: [one["metadata"]["uid"] for one in watch.objects()] == ["claim-2"])
    followed.claims.forget("claim-1")
    wait_until(lambda: cluster.watchers == 0)
    assert not followed.seen


def ready(cluster: StandInApiServer) -> list[tuple[str, str]]:
    """Return status and message of each condition in the status of the claim's devices."""
    return [
        (one["status"], one["message"])
        for device in cluster.objects[PATH]["status"].get("devices") or []
        for one in device["conditions"]
    ]


def test_a_prepared_claim_is_reported_as_ready_and_as_lost_with_its_card(
    followed: Followed, cluster: StandInApiServer
) -> None:
    cluster.put(PATH, body())
    followed.claims.follow(claim_of(cluster.objects[PATH]))
    wait_until(lambda: ready(cluster) == [("True", "reserved on the node")])
    followed.claims.update_health({"card-9": "unhealthy: XID 79"})
    followed.claims.update_health({"card-5f3c": "unhealthy: XID 79"})
    wait_until(lambda: ready(cluster) == [("False", "card-5f3c: unhealthy: XID 79")])
    followed.claims.update_health({})
    wait_until(lambda: ready(cluster) == [("True", "reserved on the node")])
    followed.claims.forget("claim-1")
    followed.claims.update_health({"card-5f3c": "unhealthy: XID 79"})
    followed.claims.close()
    assert ready(cluster) == [("True", "reserved on the node")]


def test_a_refused_claim_stays_refused_when_cards_are_well_again(
    followed: Followed, cluster: StandInApiServer
) -> None:
    def messages() -> list[str]:
        devices = cluster.objects[PATH]["status"].get("devices", [])
        return [each["conditions"][0]["message"] for each in devices]

    reserve(cluster, "pod-1")
    claim = claim_of(cluster.objects[PATH])
    followed.claims.refuse(claim, "no card has room")
    wait_until(lambda: "no card has room" in messages())
    followed.claims.update_health({})
    followed.claims.follow(claim)
    wait_until(lambda: "no card has room" not in messages())
    followed.claims.update_health({claim.devices[0].device: "unhealthy: XID 79"})
    wait_until(lambda: any("XID 79" in message for message in messages()))
