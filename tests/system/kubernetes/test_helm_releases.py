# SPDX-License-Identifier: Apache-2.0
"""Helm itself: a release is installed, upgraded, rolled back, removed from nodes, uninstalled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.helm_cluster import HelmCluster

from .test_chart import rendered, whole_chart

pytestmark = pytest.mark.needs("helm")

DAEMON_SET = "/apis/apps/v1/namespaces/gpushare-system/daemonsets/gpushare-node"
NAMESPACE = "/api/v1/namespaces/gpushare-system"
OLD, NEW = "0.1.98", "0.1.99"
#: Of the newer release: other objects, and other contents of the same.
VALUES = (
    "--set=mode=dra,configuration.max_tenants=3,metrics.enabled=true,metrics.dashboards.enabled=true",
)
ABSENT = ("--reset-then-reuse-values", "--set=state=absent")


class HelmRelease:
    """The release `gpushare` in a cluster, by the charts of two versions."""

    def __init__(self, cluster: HelmCluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        for version in (OLD, NEW):
            versions = (f"--version={version}", f"--app-version={version}")
            words = ("package", str(whole_chart()), *versions, f"--destination={folder}")
            done = cluster.helm(*words, folder=folder)
            assert done.returncode == 0, done.stderr

    def run(self, verb: str, *words: str, chart: str = "", fails: bool = False) -> str:
        """Run `helm VERB gpushare`, with the chart of a version if that is given."""
        package = [str(self._folder / f"gpushare-{chart}.tgz")] if chart else []
        done = self.cluster.helm(verb, "gpushare", *package, *words, folder=self._folder)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout + done.stderr

    @property
    def image(self) -> str:
        """The image of gpushare-node."""
        container = self.pod["containers"][0]
        return str(container["image"])

    @property
    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects[DAEMON_SET]["spec"]["template"]["spec"]
        return found


def plurals(paths: Iterable[str]) -> set[str]:
    return {path.split("/")[-2] for path in paths}


@pytest.fixture
def release(tmp_path: Path) -> Iterator[HelmRelease]:
    cluster = HelmCluster()
    with cluster.running():
        yield HelmRelease(cluster, tmp_path)


def test_a_rollback_restores_every_object(release: HelmRelease) -> None:
    release.run("install", "--create-namespace", chart=OLD)
    before = release.cluster.kept()
    assert len(before) == len(rendered()) + 1  # the namespace
    release.run("upgrade", *VALUES, chart=NEW)
    upgraded = release.cluster.kept()
    assert release.image.endswith(f":{NEW}")
    assert {"deviceclasses", "services"} <= plurals(upgraded.keys() - before.keys())
    both = before.keys() & upgraded.keys()
    changed = plurals({path for path in both if upgraded[path] != before[path]})
    assert changed == {"clusterroles", "configmaps", "daemonsets"}
    release.run("rollback")
    assert release.cluster.kept() == before
    assert release.image.endswith(f":{OLD}")
    release.run("rollback", "2")
    assert release.cluster.kept() == upgraded
    assert release.cluster.releases() == [*["superseded"] * 3, "deployed"]


def test_a_release_is_removed_from_the_nodes_and_uninstalled(release: HelmRelease) -> None:
    release.run("install", "--create-namespace", *VALUES, chart=OLD)
    before = release.cluster.kept()
    said = release.run("upgrade", *ABSENT, chart=OLD)
    assert "gpushare is removed from each node" in said
    assert [one["name"] for one in release.pod["initContainers"]] == ["leave", "remove"]
    left = release.cluster.kept().keys()
    assert plurals(before.keys() - left) >= {"configmaps", "deviceclasses", "runtimeclasses"}
    assert plurals(left) == {
        *("namespaces", "daemonsets"),
        *("serviceaccounts", "clusterroles", "clusterrolebindings"),
    }
    release.run("rollback")  # they have changed their mind
    assert release.cluster.kept() == before
    release.run("upgrade", *ABSENT, chart=OLD)
    release.run("uninstall")
    assert set(release.cluster.kept()) == {NAMESPACE}
    assert release.cluster.releases() == []
