# SPDX-License-Identifier: Apache-2.0
"""An image that cannot run on the node, with real engines: refused at create, and known before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.images import engine_images
from gpushare.oci.rootfs import Rootfs
from gpushare.verify import Docker, image
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

CUDART = "usr/local/cuda/lib64/libcudart.so.14.0.1"


def compat(stack: Stack, name: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = stack.gpushare("compat", name, "--json", *words, check=False)
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
    with engine_images.open_layers((tmp_path / "upper", tmp_path / "lower")) as fd:
        assert Rootfs(fd).names("/") == ["cuda", "opt"]
        assert Rootfs(fd).names("/cuda") == ["lower", "upper"]
        assert Path("/proc/self/mountinfo").read_text() == mounts
        with pytest.raises(OSError, match="Read-only"):
            Rootfs(fd).replace("/cuda/new", b"")


def test_dockers_layers_are_looked_into_and_nothing_is_run(stack: Stack, docker: Docker) -> None:
    def ask(*words: str) -> str:
        done = subprocess.run(
            ["docker", *words], capture_output=True, text=True, env=stack.environment, check=True
        )
        return done.stdout.strip()

    assert docker.env == stack.env
    made = ask("create", "--network=none", image.TAG)
    tag, name = "gpushare-compat:14", f"compat-{stack.cgroup}"
    try:
        folder = stack.root / "to-copy" / "cuda" / "lib64"
        folder.mkdir(parents=True)
        (folder / "libcudart.so.14.0.1").touch()
        ask("cp", str(folder.parent), f"{made}:/usr/cuda")
        ask("commit", "--change", "ENV LD_LIBRARY_PATH=/usr/cuda/lib64", made, tag)
        containers = ask("ps", "--all", "--quiet")
        status, said = compat(stack, tag)
        assert (status, said["kind"], said["note"]) == (3, "image of docker", "")
        [runtime] = said["image"]["runtimes"]
        assert runtime == {"version": "14.0.1", "where": "/usr/cuda/lib64/libcudart.so.14.0.1"}
        assert ask("ps", "--all", "--quiet") == containers
        # A container of it gets its part, by default with a note, and is judged where it runs.
        flags = ("--runtime=gpushare", "--env", "GPUSHARE_MEMORY=1GiB", "--network=none")
        ask("run", "--detach", "--interactive", "--name", name, *flags, tag)
        status, said = compat(stack, name)
        assert (status, said["kind"]) == (3, "container")
        assert said["image"]["runtimes"] == [runtime]
        [note] = stack.client.tenant(name)["notes"]
        assert "(driver-too-old)" in note
    finally:
        ask("rm", "--force", made, name)
        wait_until(lambda: not stack.client.tenants())
        ask("image", "rm", "--force", tag)
