# SPDX-License-Identifier: Apache-2.0
"""An image that cannot run on the node, with real engines: refused at create, and known before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import images
from gpushare.oci.rootfs import Rootfs
from tests.stack import Stack
from tests.stack.bundle import Bundle

CUDART = "usr/local/cuda/lib64/libcudart.so.14.0.1"


def compat(stack: Stack, name: str) -> tuple[int, dict[str, Any]]:
    done = stack.gpushare("compat", name, "--json", check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_runc_does_not_start_an_image_that_the_driver_cannot_run(own: Stack) -> None:
    own.configure(compatibility="refuse")
    bundle = Bundle(own, quota={"memory": "1GiB"})
    try:
        with bundle.run() as tenant:
            tenant.start()
        (bundle.rootfs / CUDART).parent.mkdir(parents=True)
        (bundle.rootfs / CUDART).touch()
        status, said = compat(own, str(bundle.path))
        assert (status, said["result"], said["kind"]) == (3, "refuse", "bundle")
        refused = bundle.refusal()
        assert "incompatible with this node: CUDA 14.0 is newer than the driver" in refused
        assert "(driver-too-old); use an image with CUDA 13.0 or older" in refused
        assert bundle.call("state").returncode != 0, "a refused container exists"
    finally:
        bundle.remove()


def test_layers_are_one_tree_in_a_mount_that_is_nowhere(tmp_path: Path) -> None:
    for layer, name in (("upper", "cuda"), ("lower", "cuda"), ("lower", "opt")):
        (tmp_path / layer / name / layer).mkdir(parents=True)
    mounts = Path("/proc/self/mountinfo").read_text()
    with images.open_layers((tmp_path / "upper", tmp_path / "lower")) as fd:
        assert Rootfs(fd).names("/") == ["cuda", "opt"]
        assert Rootfs(fd).names("/cuda") == ["lower", "upper"]
        assert Path("/proc/self/mountinfo").read_text() == mounts
        with pytest.raises(OSError, match="Read-only"):
            Rootfs(fd).replace("/cuda/new", b"")
