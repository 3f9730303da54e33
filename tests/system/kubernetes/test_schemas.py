# SPDX-License-Identifier: Apache-2.0
"""Objects are valid in every version of Kubernetes that has their kind."""

from __future__ import annotations

import pytest

from gpushare.kubernetes.api.claims import CLAIMS
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.manifest.alauda import GROUPS, config_maps
from tests.stack.api_server import StandInApiServer
from tests.system.kubernetes.test_role import everything
from tests.unit.kubernetes import test_manifests as manifests
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


def test_the_resources_of_an_alauda_cluster() -> None:
    for one in config_maps(GROUPS):
        schemas.check(one)
