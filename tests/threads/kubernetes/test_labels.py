# SPDX-License-Identifier: Apache-2.0
"""A node's labels: what its cards are, valid, and gone when the node does not offer them."""

from __future__ import annotations

from gpushare.kubernetes.api.labels import NodeLabels, labels_of
from gpushare.kubernetes.api.server import ApiServer
from tests.stack.api_server import StandInApiServer
from tests.unit.kubernetes.made import node

NODE = "/api/v1/nodes/n"


def test_labels_are_written_once_and_those_of_others_stay(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {"metadata": {"labels": {"zone": "a", "gpushare.io/gpu.count": "9"}}})
    labels = NodeLabels(api, "n")
    labels.write(node())
    labels.write(node())
    kept = cluster.objects[NODE]["metadata"]["labels"]
    assert kept == {"zone": "a", **labels_of(node())}
    assert len(cluster.requests) == 1


def test_a_label_that_is_no_longer_offered_is_removed(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {"metadata": {"labels": {"zone": "a"}}})
    labels = NodeLabels(api, "n")
    labels.write(node())
    labels.write(node(driver_version=""))
    assert "gpushare.io/cuda.driver-version.full" not in labels_on(cluster)
    labels.remove()
    assert labels_on(cluster) == {"zone": "a"}


def test_a_label_that_something_else_changed_is_written_again(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    cluster.put(NODE, {})
    labels = NodeLabels(api, "n")
    labels.write(node())
    cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/mode": "other"}}})
    labels.write(node())
    assert labels_on(cluster)["gpushare.io/mode"] == "other", "not compared each time"
    labels.verify()
    labels.write(node())
    assert labels_on(cluster) == labels_of(node())


def labels_on(cluster: StandInApiServer) -> dict[str, str]:
    found: dict[str, str] = cluster.objects[NODE]["metadata"].get("labels") or {}
    return found
