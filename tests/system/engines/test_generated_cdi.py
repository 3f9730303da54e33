# SPDX-License-Identifier: Apache-2.0
"""A spec that `gpushare cdi generate` wrote, read by podman 4 and 5, on a host as Ubuntu leaves it.

Without our runtime: what an engine makes of the spec alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.distribution import Distribution
from tests.unit.host.layouts import DEBIAN, UUIDS, ubuntu_server

from .gpus import inside
from .podman import BUSYBOX, Podman


@pytest.fixture(scope="module")
def podman(distribution: Distribution) -> Iterator[Podman]:
    """podman in a place with the driver's files, and the spec where engines look."""
    with Stack(distribution=distribution) as made:
        host = ubuntu_server(made.root / "host").root
        # The daemons of the driver do not run here.
        (host / "run/nvidia-fabricmanager/socket").unlink()
        spec = made.root / "gpushare.json"
        words = ["cdi", "generate", "--driver-root", str(host), "--output", str(spec)]
        subprocess.run([*made.cli, *words], check=True, capture_output=True)
        inside(
            made,
            f"""
            mkdir -p /etc/cdi
            cp '{spec}' /etc/cdi/
            cd '{host}{DEBIAN}'
            cp -a lib*nv* libcuda* {DEBIAN}/
            cp '{host}/usr/bin/'* /usr/bin/
            mkdir -p /lib/firmware
            cp -a '{host}/lib/firmware/nvidia' /lib/firmware/
            """,
        )
        yield Podman(made)


@pytest.mark.parametrize("device", ["0", UUIDS[0], "all"])
def test_podman_applies_the_generated_spec(podman: Podman, device: str) -> None:
    paths = ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", f"{DEBIAN}/libcuda.so.1"]
    paths += [f"{DEBIAN}/libnvidia-nvvm.so.4", "/usr/bin/nvidia-smi"]
    command = (BUSYBOX, "ls", *paths)
    words = ("--rm", f"--device=nvidia.com/gpu={device}")
    done = podman.run(*words, command=command, runtime="runc")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(paths)
    other = podman.run(*words, command=(BUSYBOX, "ls", "/dev/nvidia0"), runtime="runc")
    assert (other.returncode == 0) == (device == "all")


def test_a_device_that_the_spec_has_not_is_refused(podman: Podman) -> None:
    done = podman.run("--rm", "--device=nvidia.com/gpu=7", runtime="runc")
    assert done.returncode != 0
    assert "nvidia.com/gpu=7" in done.stderr
