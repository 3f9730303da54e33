# SPDX-License-Identifier: Apache-2.0
"""Low-level runtimes and cgroup layouts: every pair holds the quota, and freezes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import DEBIAN13, HOST, Cgroups, Distribution
from tests.system.waiting import wait_until

from .slices import allocated, assert_slice, parse, probing

GIB = 1 << 30
ROOT = 100000  # the user outside that is root in a container with a user namespace
ANNOTATION = {"gpushare.io/memory": "4GiB"}


@pytest.mark.parametrize(
    ("distribution", "runtime", "cgroups"),
    [
        (HOST, "runc", "v1"),
        (HOST, "runc", "v2"),
        (HOST, "crun", "v1"),
        # crun 1.8, of Debian 12, needs CAP_SYS_RESOURCE to load a device filter of cgroup v2.
        pytest.param(DEBIAN13, "crun", "v2", marks=pytest.mark.needs("debian13")),
    ],
    ids=lambda each: each.name if isinstance(each, Distribution) else each,
)
def test_a_quota_is_enforced_and_a_container_paused_and_frozen(
    distribution: Distribution, runtime: str, cgroups: Cgroups
) -> None:
    with Stack(distribution=distribution, cgroups=cgroups, runtime=runtime) as stack:
        stack.configure(timing={"reconcile_interval_seconds": 0.2})
        stack.start_daemon()
        client = stack.client
        bundle = Bundle(stack, quota={"memory": "4GiB"})
        with bundle.started() as tenant:
            assert tenant.ask("info")["total"] == 4 * GIB
            assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
            state = json.loads(bundle.call("state").stdout)
            assert client.tenants()[0]["pid"] == state["pid"]
            client.pause(bundle.id)
            tenant.tell("info")
            assert '"paused"' in bundle.call("state").stdout
            # Whoever resumes it beneath us is overruled at the next look.
            assert bundle.call("resume").returncode == 0
            wait_until(lambda: '"paused"' in bundle.call("state").stdout)
            client.resume(bundle.id)
            assert tenant.answer("info")["total"] == 4 * GIB
            client.pause(bundle.id)
            client.stop(bundle.id, "KILL", 0)
            assert tenant.wait() != 0
        wait_until(lambda: not client.tenants())
        assert_a_bypass_is_frozen(stack)


def assert_a_bypass_is_frozen(stack: Stack) -> None:
    """In a cgroup that the runtime made; in systemd's it is test_boot.py's."""
    log, client = stack.root / "gpushared.log", stack.client
    wait_until(lambda: '"context-size-measured"' in log.read_text())
    args = (PROGRAM, "--library", "/.gpushare/driver/libcuda.so.1")
    bundle = Bundle(stack, quota={"memory": "2GiB"}, args=args)
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {6 * GIB}")["code"] == 0  # nothing refuses it
        wait_until(lambda: [one["by"] for one in client.tenants()[0]["interventions"]] == ["audit"])
        assert '"paused"' in bundle.call("state").stdout
        client.set(bundle.id, over_quota_action="kill")
        wait_until(lambda: tenant.process.poll() is not None)
    wait_until(lambda: not client.tenants())


# --- a container whose root is no root outside ---


@pytest.fixture(scope="module", params=["runc", "crun"])
def mapping(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack(distribution=HOST, runtime=request.param, cgroups="v1") as made:
        assert made.place is not None
        made.place.make_nodes()
        made.start_daemon()
        yield made


def enforced(done: subprocess.CompletedProcess[str], stack: Stack) -> None:
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)
    wait_until(lambda: not allocated(stack))


def map_users(bundle: Bundle) -> None:
    """Have the container's root be ROOT outside."""
    mapped = [{"containerID": 0, "hostID": ROOT, "size": 65536}]
    linux = bundle.config["linux"]
    linux["namespaces"].append({"type": "user"})
    linux |= {"uidMappings": mapped, "gidMappings": mapped}
    bundle.save()


@pytest.mark.parametrize("owns", [False, True], ids=["not-owner", "owner-read-only"])
def test_in_a_user_namespace_a_quota_is_enforced(mapping: Stack, *, owns: bool) -> None:
    """Where the mapped root does not own the root, gpushared makes the mount points."""
    args = (PROGRAM, *probing(4 * GIB))
    bundle = Bundle(mapping, annotations=ANNOTATION, args=args)
    if owns:
        subprocess.run(["chown", "--recursive", f"{ROOT}:{ROOT}", str(bundle.rootfs)], check=True)
        bundle.config["root"]["readonly"] = True
    for name in ("proc", "dev", "sys"):
        (bundle.rootfs / name).mkdir(exist_ok=True)
    map_users(bundle)
    enforced(bundle.call("run", "--bundle", str(bundle.path)), mapping)
