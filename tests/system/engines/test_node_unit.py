# SPDX-License-Identifier: Apache-2.0
"""gpushare-node's unit under systemd: without capabilities it serves a kubelet, and ends clean."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from gpushare.setup.optional_unit import NODE
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13
from tests.stack.kubelet import StandInKubelet
from tests.stack.node_agent import PROGRAM, set_mode
from tests.system.waiting import wait_until

from .test_boot import of_this_python

RESOURCE = "gpushare.io/memory-gib"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A Debian 13 that systemd has booted, with this machine's Python in it."""
    paths = of_this_python()
    with Stack(distribution=DEBIAN13, cgroups="v2", booted=True, host_paths=paths) as made:
        set_mode(made, "plugin")
        made.start_daemon()
        yield made


def inside(stack: Stack, script: str) -> str:
    """Return what a shell says in the place."""
    argv = stack.argv("sh", "-c", script)
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def kubelet(stack: Stack) -> Iterator[StandInKubelet]:
    """A kubelet of the place: its folder is the place's /var/lib/kubelet."""
    folder = stack.root / "kubelet"
    with StandInKubelet(folder) as made:
        inside(stack, f"mkdir -p /var/lib/kubelet && mount --bind {folder} /var/lib/kubelet")
        yield made


@pytest.fixture
def unit(stack: Stack, kubelet: StandInKubelet) -> Iterator[str]:  # noqa: ARG001 - before it
    """The unit as it is shipped, but for the socket, which is in a /var/tmp that it must see."""
    lines = [
        f"ExecStart={PROGRAM} --socket {stack.socket}" if line.startswith("ExecStart=") else line
        for line in NODE.text().splitlines()
        if line != "PrivateTmp=yes"
    ]
    written = stack.root / NODE.name
    written.write_text("\n".join(lines) + "\n")
    inside(stack, f"cp {written} /etc/systemd/system/ && systemctl daemon-reload")
    inside(stack, f"systemctl start {NODE.name}")
    yield NODE.name
    inside(stack, f"systemctl stop {NODE.name}")


def test_it_serves_a_kubelet_and_follows_its_restart(
    stack: Stack, unit: str, kubelet: StandInKubelet
) -> None:
    wait_until(lambda: kubelet.allocatable(RESOURCE) > 0)
    pid = inside(stack, f"systemctl show --property MainPID --value {unit}").strip()
    status = inside(stack, f"cat /proc/{pid}/status")
    assert f"CapEff:\t{0:016x}" in status
    kubelet.restart()
    wait_until(lambda: kubelet.allocatable(RESOURCE) > 0)
    assert kubelet.admit(RESOURCE, 4).mounts()
    inside(stack, f"systemctl stop {unit}")
    assert [path.name for path in kubelet.plugins.iterdir()] == ["kubelet.sock"]
    result = inside(stack, f"systemctl show --property Result --value {unit}").strip()
    assert result == "success"
