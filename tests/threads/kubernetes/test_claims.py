# SPDX-License-Identifier: Apache-2.0
"""Claims: what was allocated here, to which pods, with which parameters, and their status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.claims import (
    CLAIMS,
    AllocatedClaim,
    BadClaim,
    ClaimReader,
    claim_of,
    read_parameters,
)
from gpushare.kubernetes.api.prepared_claims import ClaimFollower, PreparedClaims
from gpushare.kubernetes.api.server import ApiNotFound, ApiServer, path_of
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import AllocatedPart, ScheduledClaim
from tests.system.waiting import wait_until

NOW = "2026-11-23T15:00:00Z"
PATH = path_of(CLAIMS, "train", "team-a")
GIB = 1 << 30


def result(request: str = "gpu", **changed: Any) -> dict[str, Any]:
    return {
        "request": request,
        "driver": "gpu.gpushare.io",
        "pool": "n",
        "device": "card-5f3c",
        "shareID": "11111111-2222-3333-4444-555555555555",
        "consumedCapacity": {"memory": "20Gi", "cores": "40", "tenants": "1"},
        **changed,
    }


def opaque(driver: str = "gpu.gpushare.io", **keys: Any) -> dict[str, Any]:
    kind = {"apiVersion": "gpu.gpushare.io/v1", "kind": "GpuShare"}
    return {"driver": driver, "parameters": {**kind, **keys}}


def body(*results: dict[str, Any], **status: Any) -> dict[str, Any]:
    """Return a claim as the scheduler leaves it."""
    reserved = [{"resource": "pods", "name": "p", "uid": "pod-1"}]
    devices = {"results": list(results or (result(),)), "config": status.pop("config", [])}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "team-a", "uid": "claim-1"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpushare"}}],
            }
        },
        "status": {"allocation": {"devices": devices}, "reservedFor": reserved, **status},
    }


def test_a_claim_is_read_with_its_devices_and_pods(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(PATH, body())
    claim = ClaimReader(api).read("team-a", "train")
    assert (claim.uid, claim.pods, claim.is_of_one_pod) == ("claim-1", ("pod-1",), False)
    (device,) = claim.devices
    assert (device.request, device.device) == ("gpu", "card-5f3c")
    assert (device.memory_bytes, device.cores) == (20 * GIB, 40)
    assert device.share == "11111111-2222-3333-4444-555555555555"


def test_a_claim_that_is_not_allocated_has_no_devices(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(PATH, {**body(), "status": {}})
    assert ClaimReader(api).read("team-a", "train").devices == ()
    with pytest.raises(ApiNotFound):
        ClaimReader(api).read("team-a", "other")


def test_a_cluster_that_shares_no_devices_allocates_a_whole_card() -> None:
    whole = result()
    del whole["consumedCapacity"], whole["shareID"]
    (device,) = claim_of(body(whole)).devices
    assert (device.share, device.memory_bytes, device.cores) == ("", None, None)


def test_a_capacity_may_be_named_with_the_drivers_domain() -> None:
    named = result(consumedCapacity={"gpu.gpushare.io/memory": "1Gi", "cores": "0"})
    (device,) = claim_of(body(named)).devices
    assert (device.memory_bytes, device.cores) == (GIB, 0)


def test_only_pods_may_use_a_claim() -> None:
    reserved = [
        {"resource": "pods", "name": "p", "uid": "pod-1"},
        {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "g", "uid": "g"},
        {"resource": "pods", "name": "q", "uid": "pod-2"},
    ]
    assert claim_of(body(reservedFor=reserved)).pods == ("pod-1", "pod-2")


def test_the_claims_parameters_come_over_those_of_the_class() -> None:
    config = [
        {"source": "FromClass", "opaque": opaque(priority=3, policy="fixed-share")},
        {"source": "FromClass", "opaque": {"driver": "net.example.com", "parameters": {"x": 1}}},
        {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque(policy="best-effort")},
        {"source": "FromClaim", "requests": ["other"], "opaque": opaque(weight=9)},
    ]
    (device,) = claim_of(body(config=config)).devices
    assert device.parameters == {"priority": "3", "policy": "best-effort"}


def test_parameters_for_a_request_hold_for_its_alternatives() -> None:
    config = [{"source": "FromClaim", "requests": ["gpu"], "opaque": opaque(weight=2)}]
    (device,) = claim_of(body(result("gpu/small"), config=config)).devices
    assert (device.request, device.parameters) == ("gpu", {"weight": "2"})


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        (None, "not an object"),
        ({"apiVersion": "gpu.gpushare.io/v2", "kind": "GpuShare"}, "Use apiVersion: gpu.gpushare"),
        ({}, "None None is unknown"),
        (opaque(memory="9Gi")["parameters"], "memory: unknown. Use policy, priority, class"),
        (opaque(weight=True)["parameters"], "weight: not text or a whole number"),
        (opaque(weight=1.5)["parameters"], "weight: not text or a whole number"),
        (opaque(policy=["a"])["parameters"], "policy: not text"),
    ],
)
def test_parameters_that_are_none_are_refused(parameters: Any, rule: str) -> None:
    with pytest.raises(BadClaim, match=rule):
        read_parameters(parameters)


def test_admin_access_is_refused() -> None:
    with pytest.raises(BadClaim, match="adminAccess is not supported"):
        claim_of(body(result(adminAccess=True)))


def test_an_amount_that_is_none_is_refused() -> None:
    with pytest.raises(BadClaim, match="consumedCapacity memory"):
        claim_of(body(result(consumedCapacity={"memory": "a lot"})))


def reported(cluster: StandInApiServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.objects[PATH]["status"]["devices"]
    return found


def test_the_status_of_a_device_is_reported(api: ApiServer, cluster: StandInApiServer) -> None:
    other = {"driver": "net.example.com", "pool": "n", "device": "eth1"}
    cluster.put(PATH, body(devices=[other]))
    reader = ClaimReader(api)
    claim = reader.read("team-a", "train")
    reader.report(claim, "reserved 20 GiB on card 0", is_ready=True, now=NOW)
    assert reported(cluster)[0] == other
    assert reported(cluster)[1]["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "reserved 20 GiB on card 0",
            "lastTransitionTime": NOW,
        }
    ]
    assert cluster.objects[PATH]["status"]["allocation"] == body()["status"]["allocation"]
    written = cluster.version
    reader.report(claim, "reserved 20 GiB on card 0", is_ready=True, now="2027-01-01T00:00:00Z")
    assert cluster.version == written, "it has not changed"
    reader.report(claim, "again", is_ready=True, now="2027-01-01T00:00:00Z")
    assert reported(cluster)[1]["conditions"][0]["lastTransitionTime"] == NOW
    reader.report(claim, "the card is lost", is_ready=False, now="2027-01-02T00:00:00Z")
    (condition,) = reported(cluster)[1]["conditions"]
    assert (condition["status"], condition["lastTransitionTime"]) == (
        "False",
        "2027-01-02T00:00:00Z",
    )


def test_a_status_that_was_changed_meanwhile_is_read_again(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(PATH, body())
    reader = ClaimReader(api)
    claim = reader.read("team-a", "train")
    times = [1]

    def touch(method: str, _path: str) -> None:
        if method == "PUT" and times:
            times.pop()
            cluster.put(PATH, cluster.objects[PATH])

    cluster.fault = touch
    reader.report(claim, "ready", is_ready=True, now=NOW)
    assert len(reported(cluster)) == 1


@pytest.mark.parametrize("status", [403, 404])
def test_a_cluster_without_device_status_is_no_fault(
    api: ApiServer, cluster: StandInApiServer, status: int
) -> None:
    cluster.put(PATH, body())
    reader = ClaimReader(api)
    claim = reader.read("team-a", "train")
    cluster.fault = lambda method, _path: status if method == "PUT" else None
    reader.report(claim, "ready", is_ready=True, now=NOW)
    assert "devices" not in cluster.objects[PATH]["status"]


def test_the_status_of_another_claim_of_that_name_is_left_alone(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(PATH, body())
    reader = ClaimReader(api)
    claim = reader.read("team-a", "train")
    cluster.remove(PATH)
    cluster.put(PATH, {**body(), "metadata": {"uid": "claim-2"}})
    reader.report(claim, "ready", is_ready=True, now=NOW)
    assert "devices" not in cluster.objects[PATH]["status"]


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


def test_a_claim_of_one_pod_is_not_watched(followed: Followed, cluster: StandInApiServer) -> None:
    made = body()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    claim = claim_of(made)
    assert claim.is_of_one_pod
    followed.claims.follow(claim)
    followed.claims.forget(claim.uid)
    assert not [request for request in cluster.requests if "watch=1" in request]


def test_a_change_that_could_not_be_passed_on_is_passed_on_later(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    calls: list[tuple[str, ...]] = []

    def changed(claim: AllocatedClaim) -> None:
        calls.append(claim.pods)
        if len(calls) < 3:
            raise BadClaim("gpushared is away")

    reserve(cluster, "pod-1")
    claims = PreparedClaims(api, changed)
    claims.follow(claim_of(cluster.objects[PATH]))
    reserve(cluster, "pod-1", "pod-2")
    wait_until(lambda: len(calls) == 3)
    claims.close()
    assert set(calls) == {("pod-1", "pod-2")}


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


def test_a_status_that_cannot_be_written_delays_nothing(
    followed: Followed, cluster: StandInApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put(PATH, body())
    cluster.fault = lambda method, _path: 422 if method == "PUT" else None
    followed.claims.follow(claim_of(cluster.objects[PATH]))
    wait_until(lambda: "claim team-a/train: PUT" in capsys.readouterr().err)
    assert not ready(cluster)


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


def test_another_claim_of_that_name_is_none_of_its_business(
    cluster: StandInApiServer, api: ApiServer
) -> None:
    daemon = Daemon(claim_in(cluster, "pod-1"), "pod-1")
    again = claim_in(cluster, "pod-9")
    with following(api, daemon) as follower:
        follower.refuse(ClaimReader(api).read("ai", "train"), "no room")
        path = path_of(CLAIMS, "train", "ai")
        wait_until(lambda: "devices" in cluster.objects[path]["status"])
        [device] = cluster.objects[path]["status"]["devices"]
        assert device["conditions"][0]["message"] == "no room"
    assert cluster.objects[path]["metadata"]["uid"] == again.uid
    assert daemon.pods == ["pod-1"]
