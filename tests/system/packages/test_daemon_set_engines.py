# SPDX-License-Identifier: Apache-2.0
"""The steps of the chart's DaemonSet on the files of each distribution: installed, and restored.

The files are those of tests/unit/engines/machines. No engine runs: systemctl and snap record what
they are asked to restart. Real containerd, with version 2 of its files, runs what setup writes in
tests/system/engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from packages.workspace import Workspace

from gpushare.engines import toml_text
from tests.unit.engines import machine
from tests.unit.engines.test_gpu_operator import FOLDER, HANDLERS, MAIN, ORIGINALS, OperatorNode

from .machine import OwnProcesses
from .test_daemon_set import DaemonSetNode, a_node

__all__ = ["a_node"]

RECORD = '#!/bin/sh\necho "${0##*/} $*" >>/run/restarted\n'
LAUNCHER = "/usr/local/lib/gpushare/current/bin/gpushare-runtime"


class NodeLayout(NamedTuple):
    """A machine, what is on it beside its engine's files, and how its engine is restarted."""

    name: str
    restart: str
    engine: str = "containerd"
    more: str = ""


LAYOUTS = (
    NodeLayout("k3s-v3", "systemctl restart k3s-agent"),
    NodeLayout("k3s-v2", "systemctl restart k3s", more="/var/lib/rancher/k3s/server/token"),
    NodeLayout("rke2", "systemctl restart rke2-agent"),
    NodeLayout("rke2", "systemctl restart rke2-server", more="/var/lib/rancher/rke2/server/token"),
    NodeLayout("k0s", "systemctl restart k0sworker"),
    NodeLayout("k0s-v3", "systemctl restart k0sworker"),
    NodeLayout("microk8s", "snap restart microk8s.daemon-containerd"),
    NodeLayout("crio-fedora", "systemctl restart crio", engine="crio"),
    NodeLayout("containerd-v3", "systemctl restart containerd"),
    NodeLayout("containerd-v3-operator", "systemctl restart containerd"),
    NodeLayout("containerd-nvidia-drop-in", "systemctl restart containerd"),
)
FOLDERS = ("/etc/containerd", "/etc/crio", "/etc/k0s", "/run/k0s", "/var/lib/rancher", "/var/snap")


@pytest.mark.parametrize("layouts", [LAYOUTS[::2], LAYOUTS[1::2]], ids=["even", "odd"])
def test_each_distribution_is_configured_restarted_and_restored(
    a_node: DaemonSetNode, workspace: Workspace, layouts: tuple[NodeLayout, ...]
) -> None:
    a_node.run("mkdir", "-p", "/run/systemd/system")
    for program in ("systemctl", "snap"):
        a_node.write(f"/usr/local/sbin/{program}", RECORD)
        a_node.run("chmod", "755", f"/usr/local/sbin/{program}")
    a_node.configure(workspace)
    for layout in layouts:
        a_node.run("rm", "-rf", *FOLDERS)
        files = machine.files(machine.MACHINES / layout.name / "before")
        for path, text in files.items():
            a_node.write(f"/{path}", text)
        if layout.more:
            a_node.write(layout.more, "")
        before = engine_files(a_node)
        words = ("--restart-engine", f"--runtime={layout.engine}", "--simulate=h200")
        for _ in range(2):
            said = a_node.container("install", "/gpushare.yaml", *words)
            assert LAUNCHER in engine_files(a_node), layout
        assert f"do    {layout.restart}\n" not in said, layout
        restarts = a_node.run("cat", "/run/restarted").stdout.splitlines()
        assert [line for line in restarts if " restart " in line] == [layout.restart], layout
        a_node.container("remove")
        assert engine_files(a_node) == before, layout
        a_node.run("rm", "/run/restarted")


@pytest.mark.parametrize("version", sorted(ORIGINALS))
def test_beside_the_gpu_operator_in_both_orders(
    a_node: DaemonSetNode, workspace: Workspace, version: int
) -> None:
    assert isinstance(a_node.root, OwnProcesses)
    node = OperatorNode(Path(f"/proc/{a_node.root.pid}/root"), version)
    a_node.write(f"/{MAIN}", ORIGINALS[version])
    a_node.configure(workspace)
    install = ("install", "/gpushare.yaml", "--runtime=containerd", "--simulate=h200")
    a_node.container(*install)
    node.install_operator()
    a_node.container(*install)
    assert node.handlers().keys() == {*HANDLERS, "runc", "gpushare"}
    a_node.container("remove")
    assert node.handlers().keys() == {*HANDLERS, "runc"}
    assert node.read(FOLDER / "99-nvidia.toml") == node.drop_in()

    before = engine_files(a_node)
    a_node.container(*install)
    assert node.handlers().keys() == {*HANDLERS, "runc", "gpushare"}
    a_node.container("remove")
    assert engine_files(a_node) == before

    a_node.container(*install)
    node.remove_operator()
    a_node.container(*install)
    assert node.handlers().keys() == {"runc", "gpushare"}
    a_node.container("remove")
    assert node.read(MAIN) == toml_text.parse(ORIGINALS[version])


def engine_files(a_node: DaemonSetNode) -> str:
    """Return every file of an engine, with its path, mode and content."""
    script = (
        "for folder; do [ ! -d $folder ] || find $folder -type f -printf '== %p %m\\n'"
        " -exec cat {} ';'; done"
    )
    return a_node.run("sh", "-c", script, "sh", *FOLDERS).stdout
