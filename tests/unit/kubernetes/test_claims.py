# SPDX-License-Identifier: Apache-2.0
"""Claims: what was allocated here, to which pods, with which parameters, and their status."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.kubernetes.api.claims import (
    CLAIMS,
    BadClaim,
    ClaimReader,
    claim_of,
    read_parameters,
)
from gpushare.kubernetes.api.server import ApiServer, path_of
from tests.stack.api_server import StandInApiServer

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


def test_a_cluster_that_shares_no_devices_allocates_a_whole_card() -> None:
    whole = result()
    del whole["consumedCapacity"], whole["shareID"]
    (device,) = claim_of(body(whole)).devices
    assert (device.share, device.memory_bytes, device.cores) == ("", None, None)


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
