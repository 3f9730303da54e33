# SPDX-License-Identifier: Apache-2.0
"""The steps of the chart's DaemonSet on a bare node: install, upgrade under load, remove.

The image's files are a container's root here. Like the containers of the DaemonSet, it sees the
node's processes, and changes the node through them.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packages import chart
from packages import image as image_package
from packages.debian_root import NAME
from packages.workspace import Workspace

from tests import leftovers
from tests.stack.program import find

from .machine import NEXT, BareMachine, next_source
from .test_image import layers

pytestmark = pytest.mark.needs("package", "helm", "bare12", "bare13")

MIB = 1 << 20
YAML = "/etc/gpushare/gpushare.yaml"
ENGINE = "/etc/containerd/config.toml"
WRITTEN = "version = 2\n"
OPTIONS = ("--runtime=containerd", "--simulate=h200")
#: Runs the entry of the image "$0" as a container does that shares the node's processes only.
CONTAINER = 'mount -t proc proc "$0/proc" && exec chroot "$0" /usr/bin/gpushare-image "$@"'


class DaemonSetNode(BareMachine):
    """A bare Debian, with the image's files in a folder of it."""

    def __init__(self, release: int, image: Path, folder: Path) -> None:
        super().__init__(release, folder)
        self.use(image)

    def use(self, image: Path) -> None:
        """Unpack an image: its files are those of the containers that are run from now on."""
        self.image = self.folder / image.name
        with tarfile.open(image) as archive:
            for layer in layers(archive):
                with tarfile.open(fileobj=archive.extractfile(layer), mode="r:gz") as packed:
                    packed.extractall(self.image, filter="fully_trusted")

    def container(self, *words: str, status: int = 0) -> str:
        """Run the image with arguments, and return what it prints."""
        started = ("unshare", "--mount", "sh", "-c", CONTAINER, str(self.image))
        done = self.run(*started, *words, check=False)
        assert done.returncode == status, done.stdout
        return done.stdout

    def configure(self, workspace: Workspace, values: str = "") -> None:
        """Write the chart's configuration to where the container sees it."""
        (found,) = rendered(workspace, "configmap.yaml", values)
        (self.image / "gpushare.yaml").write_text(found["data"]["gpushare.yaml"])

    @property
    def daemon(self) -> str:
        """The program that the unit names."""
        unit = self.run("cat", "/etc/systemd/system/gpushared.service").stdout
        (program,) = (
            line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")
        )
        return program


def rendered(workspace: Workspace, template: str, values: str = "") -> list[dict[str, Any]]:
    """Return the objects of one template of the chart."""
    words = ("template", "gpushare", str(workspace.root / chart.SOURCE), "--values=-")
    text = subprocess.run(
        [find("helm"), *words, f"--show-only=templates/{template}"],
        input=values,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return list(yaml.safe_load_all(text))


@pytest.fixture
def a_node(request: pytest.FixtureRequest, image: Path) -> Iterator[DaemonSetNode]:
    """A node with a release of Debian; without a parameter, one on which no systemd runs."""
    folder = leftovers.note(Path(f"/var/tmp/gpushare-{secrets.token_hex(4)}"))
    made = DaemonSetNode(getattr(request, "param", 12), image, folder)
    with made:
        made.write(ENGINE, WRITTEN)
        yield made
    leftovers.remove(folder, folder.name)


def next_image(workspace: Workspace, folder: Path) -> Path:
    """Return the image of a version that is newer in every file that has a version."""
    newer, wheel = next_source(workspace, folder)
    (newer.build / NAME).symlink_to(workspace.build / NAME)
    return image_package.make_from(newer, wheel).path


@pytest.mark.parametrize("a_node", [12, 13], ids=("debian12", "debian13"), indirect=True)
def test_it_installs_upgrades_and_rolls_back_under_load_and_leaves_nothing(
    a_node: DaemonSetNode, workspace: Workspace, tmp_path: Path
) -> None:
    before = a_node.files()
    bundle = f"/usr/lib/gpushare/{workspace.version}"
    a_node.configure(workspace)
    said = a_node.container("install", "/gpushare.yaml", *OPTIONS)
    assert "containerd: register the runtime in" in said
    assert a_node.run(f"{bundle}/bin/gpushare", "--version").stdout.split()[1] == workspace.version
    configuration = a_node.run("cat", YAML).stdout
    assert "mode: plugin" in configuration
    assert "cdi_spec: /var/lib/gpushare/simulator/cdi.json}  # added by" in configuration
    assert "gpushare" in a_node.run("cat", ENGINE).stdout

    with a_node.gpushared(), a_node.tenant("2GiB") as tenant:
        assert tenant.ask(f"alloc {64 * MIB}")["code"] == 0
        kept = a_node.run("stat", "--format=%i", YAML).stdout
        again = a_node.container("install", "/gpushare.yaml", *OPTIONS)
        assert "register the runtime in" not in again
        assert a_node.run("stat", "--format=%i", YAML).stdout == kept
        first = a_node.image
        a_node.use(next_image(workspace, tmp_path / "next"))
        newer = "configuration: {max_tenants: 3}"
        for image, version, values in (
            (a_node.image, NEXT, newer),
            (first, workspace.version, ""),  # helm rollback
            (a_node.image, NEXT, newer),
        ):
            a_node.image = image
            a_node.configure(workspace, values)
            a_node.container("install", "/gpushare.yaml", *OPTIONS)
            assert ("max_tenants: 3" in a_node.run("cat", YAML).stdout) == bool(values)
            assert f"gpushare {version}" in a_node.run("gpushare", "--version").stdout
            current = a_node.run("readlink", "/usr/local/lib/gpushare/current").stdout
            assert current.startswith(version)
            if a_node.is_booted:  # systemd has restarted gpushared
                status = json.loads(a_node.run("gpushare", "--json").stdout)
                assert status["daemon"]["version"] == version
            assert tenant.ask(f"alloc {64 * MIB}")["code"] == 0
            assert tenant.ask("info")["total"] == 2 << 30
        refused = a_node.container("remove", status=3)
        assert "train" in refused
        assert tenant.ask("info")["total"] == 2 << 30
    a_node.container("remove")
    assert a_node.run("cat", ENGINE).stdout == WRITTEN
    assert a_node.files() - before == set()
    a_node.run("mkdir", "-p", "/run/gpushare")  # the kubelet, for a pod that starts again
    a_node.container("remove")
    a_node.run("test", "!", "-e", "/run/gpushare")


def test_it_refuses_before_it_changes_the_node(a_node: DaemonSetNode, workspace: Workspace) -> None:
    before = a_node.files()
    a_node.configure(workspace, "configuration: {max_tenants: many}")
    assert "max_tenants" in a_node.container("install", "/gpushare.yaml", *OPTIONS, status=1)
    a_node.configure(workspace, "configuration: {of_a_newer_version: 1}")
    assert "of_a_newer_version" in a_node.container("install", "/gpushare.yaml", *OPTIONS, status=1)
    (a_node.image / "gpushare.yaml").write_text("max_tenants: 3\n")
    assert "first line" in a_node.container("install", "/gpushare.yaml", *OPTIONS, status=1)
    for words in (("install",), ("install", "/missing"), ("remove", "more")):
        assert "usage: gpushare-image" in a_node.container(*words, status=2)
    a_node.write(YAML, "max_tenants: 3\n")
    a_node.configure(workspace)
    assert "not written by the chart" in a_node.container(
        "install", "/gpushare.yaml", *OPTIONS, status=1
    )
    assert a_node.run("cat", YAML).stdout == "max_tenants: 3\n"
    assert a_node.files() == before | {YAML, str(Path(YAML).parent)}
    a_node.container("remove")
    assert a_node.run("cat", YAML).stdout == "max_tenants: 3\n"


def test_without_the_nodes_processes_it_changes_nothing(
    a_node: DaemonSetNode, workspace: Workspace
) -> None:
    a_node.configure(workspace)
    apart = ("unshare", "--mount", "--pid", "--fork", "sh", "-c", CONTAINER, str(a_node.image))
    for words in (("install", "/gpushare.yaml"), ("remove",)):
        done = a_node.run(*apart, *words, check=False)
        assert done.returncode == 1
        assert "Set hostPID: true" in done.stdout
