# SPDX-License-Identifier: Apache-2.0
"""Objects are valid in every version of Kubernetes that has their kind."""

from __future__ import annotations

import pytest

from gpushare.kubernetes.api.claims import CLAIMS
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.slices import devices_of
from gpushare.kubernetes.templates import content, template
from gpushare.manifest.alauda import GROUPS, config_maps
from tests.stack.api_server import StandInApiServer
from tests.system.kubernetes.test_role import everything
from tests.unit.kubernetes import test_manifests as manifests
from tests.unit.kubernetes.made import GIB, card, node
from tests.unit.kubernetes.test_claims import body as claim_body

from . import schemas

pytestmark = pytest.mark.needs("helm")


@pytest.mark.parametrize("name", manifests.OBJECTS)
def test_manifests_that_are_shipped_and_shown(name: str) -> None:
    found = manifests.OBJECTS[name]
    is_dra = found["apiVersion"].startswith("resource.k8s.io/")
    is_dra |= "resourceClaims" in manifests.pod_spec(found)
    schemas.check(found, schemas.DRA_VERSIONS if is_dra else ())


def test_what_gpushare_node_writes(api: ApiServer, cluster: StandInApiServer) -> None:
    cluster.put("/api/v1/nodes/n", {"apiVersion": "v1", "kind": "Node"})
    cluster.put(path_of(CLAIMS, "train", "team-a"), claim_body())
    everything(api, cluster)
    written = [body for _, change, _, body in cluster._log if change != "DELETED"]
    assert {one["kind"] for one in written} == {"Node", "ResourceSlice", "ResourceClaim", "Event"}
    for one in written:
        schemas.check(one)


@pytest.mark.parametrize("memory", ["4096mi", "50pct", "all"])
def test_templates_that_pods_wait_for(memory: str) -> None:
    pod = {"metadata": {"name": "p", "namespace": "ai", "uid": "u"}}
    name = f"gpushare-{memory}-30-2"
    spec = content(name, devices_of(node(card(0), card(1, schedulable_bytes=GIB))))
    assert spec is not None
    schemas.check(template(name, spec, pod))


def test_the_resources_of_an_alauda_cluster() -> None:
    for one in config_maps(GROUPS):
        schemas.check(one)
