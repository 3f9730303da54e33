# SPDX-License-Identifier: Apache-2.0
"""A container whose root is no root outside, under runc and crun, alone and by podman."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import Distribution
from tests.stack.program import find
from tests.system.waiting import wait_until

from .podman import Podman
from .slices import GIB, allocated, assert_slice, parse, probing

ROOT = 100000  # the user that its root is outside
PROBE = (PROGRAM, *probing(4 * GIB))
ANNOTATION = {"gpushare.io/memory": "4GiB"}


@pytest.fixture(scope="module", params=["runc", "crun"])
def own(distribution: Distribution, request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack(distribution=distribution, runtime=request.param, cgroups="v1") as made:
        assert made.place is not None
        made.place.make_nodes()
        made.start_daemon()
        yield made


def holds(done: subprocess.CompletedProcess[str], stack: Stack) -> None:
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)
    wait_until(lambda: not allocated(stack))


@pytest.mark.parametrize("readonly", [False, True], ids=["written", "read-only"])
def test_a_bundle(own: Stack, *, readonly: bool) -> None:
    bundle = Bundle(own, annotations=ANNOTATION, args=PROBE)
    map_users(bundle)
    bundle.config["root"]["readonly"] = readonly
    bundle.save()
    holds(bundle.call("run", "--bundle", str(bundle.path)), own)


def test_a_root_that_the_mapped_root_does_not_own(own: Stack) -> None:
    """The low-level runtime may not create a mount point there; gpushared does."""
    bundle = Bundle(own, annotations=ANNOTATION, args=PROBE)
    for name in ("proc", "dev", "sys"):
        (bundle.rootfs / name).mkdir(exist_ok=True)
    map_users(bundle, owns=False)
    bundle.save()
    holds(bundle.call("run", "--bundle", str(bundle.path)), own)


def map_users(bundle: Bundle, *, owns: bool = True) -> None:
    """Have the container's root be ROOT outside, which owns the root filesystem."""
    mapped = [{"containerID": 0, "hostID": ROOT, "size": 65536}]
    linux = bundle.config["linux"]
    linux["namespaces"].append({"type": "user"})
    linux |= {"uidMappings": mapped, "gidMappings": mapped}
    if owns:
        subprocess.run(["chown", "--recursive", f"{ROOT}:{ROOT}", str(bundle.rootfs)], check=True)


def test_its_bell_can_be_rung(own: Stack) -> None:
    script = f"exec 3<>{abi.TENANT_DIR}/{abi.WAKEUP_NAME} && printf x >&3 && echo rung"
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    args = ("/bin/busybox", "sh", "-c", script)
    bundle = Bundle(own, annotations=ANNOTATION, args=args, files=busybox)
    map_users(bundle)
    bundle.save()
    done = bundle.call("run", "--bundle", str(bundle.path))
    assert done.stdout == "rung\n", done.stderr
    wait_until(lambda: not allocated(own))


def test_podman(own: Stack) -> None:
    podman = Podman(own)
    flags = [f"--uidmap=0:{ROOT}:65536", "--annotation=gpushare.io/memory=4GiB"]
    holds(podman.run("--rm", *flags, command=PROBE), own)
