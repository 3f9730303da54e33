# SPDX-License-Identifier: Apache-2.0
"""Low-level runtimes and cgroup layouts, without an engine: every pair holds the quota."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import DEBIAN13, Cgroups, Distribution
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, DockerClient, holds
from .node import CriNode
from .slices import assert_slice, probing

GIB = 1 << 30


@pytest.mark.parametrize(
    ("runtime", "cgroups"),
    [("runc", "machine"), ("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")],
)
def test_a_quota_is_enforced_and_released(
    distribution: Distribution, runtime: str, cgroups: Cgroups
) -> None:
    with Stack(distribution=distribution, cgroups=cgroups, runtime=runtime) as stack:
        if (runtime, cgroups) == ("crun", "v2") and not may_raise_limits():
            said = subprocess.run(stack.argv("crun", "--version"), check=True, capture_output=True)
            if b"crun version 1.8" in said.stdout:
                pytest.skip("crun 1.8 needs CAP_SYS_RESOURCE to load a device filter of cgroup v2")
        stack.start_daemon()
        bundle = Bundle(stack, quota={"memory": "4GiB"})
        with bundle.run() as tenant:
            assert tenant.start()["code"] == 0
            assert tenant.ask("info")["total"] == 4 * GIB
            assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
            state = json.loads(bundle.call("state").stdout)
            assert Client(stack.socket).tenants()[0]["pid"] == state["pid"]
        wait_until(lambda: not Client(stack.socket).tenants())


def test_over_crun_a_quota_is_enforced_for_docker_and_a_kubelet() -> None:
    """As after `gpushare setup --low-level crun`; all else of engines is tested over runc."""
    with Stack(distribution=DEBIAN13, cgroups="v1", runtime="crun") as stack:
        stack.start_daemon()
        stack.start_containerd()
        stack.start_docker().prepare(stack.installation.probe)
        with DockerClient(stack).run("over-crun", "--runtime=gpushare", *FOUR_GIB) as tenant:
            holds(tenant)
        with CriNode(stack) as node, node.pod({"memory": "4GiB"}) as pod:
            assert_slice(pod.run("train").probe(*probing(4 * GIB)).said, 4 * GIB)
        wait_until(lambda: not Client(stack.socket).tenants())


@pytest.mark.parametrize("cgroups", ["v1", "v2"])
def test_a_container_that_bypasses_the_library_is_frozen(
    distribution: Distribution, cgroups: Cgroups
) -> None:
    """In a cgroup that the runtime made; in systemd's it is test_booted.py's."""
    with Stack(distribution=distribution, cgroups=cgroups) as stack:
        stack.start_daemon()
        log = stack.root / "gpushared.log"
        wait_until(lambda: '"context-size-measured"' in log.read_text())
        client = Client(stack.socket)
        args = (PROGRAM, "--library", "/opt/gpushare/driver/libcuda.so.1")
        bundle = Bundle(stack, quota={"memory": "2GiB"}, args=args)
        with bundle.run() as tenant:
            assert tenant.start()["code"] == 0
            assert tenant.ask(f"alloc {6 * GIB}")["code"] == 0  # nothing refuses it
            wait_until(
                lambda: [one["by"] for one in client.tenants()[0]["interventions"]] == ["audit"]
            )
            assert '"paused"' in bundle.call("state").stdout
            client.set(bundle.id, over_quota_action="kill")
            wait_until(lambda: tenant.process.poll() is not None)
        wait_until(lambda: not client.tenants())


def may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, 24 in capability.h; sandboxes take it away."""
    status = Path("/proc/self/status").read_text().splitlines()
    [effective] = [line.split()[1] for line in status if line.startswith("CapEff:")]
    return bool(int(effective, 16) >> 24 & 1)
