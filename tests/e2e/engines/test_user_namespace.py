# SPDX-License-Identifier: Apache-2.0
"""A container whose root is no root outside, under runc and crun, by itself and by podman."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from gpushare.verify.image import PROGRAM
from tests.e2e.waiting import wait_until
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import Distribution

from .podman import Podman
from .slices import GIB, assert_slice, parse, probing, promised

ROOT = 100000  # who its root is outside
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
    wait_until(lambda: not promised(stack))


@pytest.mark.parametrize("readonly", [False, True], ids=["written", "read-only"])
def test_a_bundle(own: Stack, *, readonly: bool) -> None:
    bundle = Bundle(own, annotations=ANNOTATION, args=PROBE)
    mapped = [{"containerID": 0, "hostID": ROOT, "size": 65536}]
    linux = bundle.config["linux"]
    linux["namespaces"].append({"type": "user"})
    linux |= {"uidMappings": mapped, "gidMappings": mapped}
    bundle.config["root"]["readonly"] = readonly
    subprocess.run(["chown", "--recursive", f"{ROOT}:{ROOT}", str(bundle.rootfs)], check=True)
    bundle.save()
    holds(bundle.call("run", "--bundle", str(bundle.path)), own)


def test_podman(own: Stack) -> None:
    podman = Podman(own)
    flags = [f"--uidmap=0:{ROOT}:65536", "--annotation=gpushare.io/memory=4GiB"]
    holds(podman.run("--rm", *flags, command=PROBE), own)
