# SPDX-License-Identifier: Apache-2.0
"""podman, by the runtime's name and by its path, with and without our hook in hooks.d."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until
from tests.unit.host.layouts import DEBIAN, ubuntu_server

from .gpus import inside
from .podman import BUSYBOX, Done, Podman
from .slices import GIB, NO_DRIVER, allocated, assert_slice, parse, probing

PROBE = (PROGRAM, *probing(4 * GIB))
ANNOTATED = "--annotation=gpushare.io/memory=4GiB"


@pytest.fixture
def name(podman: Podman) -> Iterator[str]:
    """A container's name; it is removed in the end."""
    made = f"train-{secrets.token_hex(4)}"
    yield made
    podman.remove(made)


def holds(done: Done) -> None:
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)


@pytest.mark.gate
def test_a_container_gets_its_request(podman: Podman) -> None:
    """By the runtime's name and an annotation; by its path and a variable, whatever confines it."""
    holds(podman.run("--rm", ANNOTATED, command=PROBE))
    path = str(podman.stage.installation.launcher)
    confined = ("--env=GPUSHARE_MEMORY=4GiB", "--read-only", "--user=1000:1000", "--pid=host")
    holds(podman.run("--rm", *confined, command=PROBE, runtime=path))
    assert podman.run("--rm", command=PROBE).returncode == NO_DRIVER  # without a request


def test_podman_prints_the_refusal(podman: Podman) -> None:
    done = podman.run("--rm", "--env=GPUSHARE_MEMORY=2000GiB", command=PROBE)
    assert done.returncode == 126  # as for whatever cannot be run
    [line] = done.stderr.splitlines()
    assert "gpushare: no card has room for 2000 GiB" in line
    assert '"level"' not in line  # podman knows that what it reads is JSON


def test_exec_kill_start_and_stop(podman: Podman, stage: Stack, name: str) -> None:
    podman.start(name, ANNOTATED)
    for end in (["kill", name], ["stop", "--time=0", name]):
        holds(podman.execute(name, *PROBE))
        wait_until(lambda: allocated(stage) == {name: 4 * GIB})  # podman writes it down by and by
        assert podman.call(*end).returncode == 0
        wait_until(lambda: not allocated(stage))
        assert podman.call("start", name).returncode == 0  # the same id, once more


# --- hooks.d: a hook cannot edit a spec; it sees containers that bypassed the launcher ---


@pytest.mark.gate
def test_the_hook_stops_a_container_that_bypassed_the_launcher(podman: Podman) -> None:
    bare = str(podman.stage.runtime)
    done = podman.run("--rm", ANNOTATED, command=PROBE, runtime=bare)
    assert done.returncode == 126
    assert "Start it with --runtime gpushare" in done.stderr
    # One that asks for nothing is none of the hook's business.
    assert podman.run("--rm", command=PROBE, runtime=bare).returncode == NO_DRIVER


@pytest.mark.parametrize("device", ["0", "all"])
def test_podman_applies_the_spec_that_cdi_generate_wrote(device: str) -> None:
    """Without our runtime, in a place with the driver's files as Ubuntu leaves them."""
    with Stack(distribution=HOST) as own:
        host = ubuntu_server(own.root / "host").root
        # The daemons of the driver do not run here.
        (host / "run/nvidia-fabricmanager/socket").unlink()
        spec = own.root / "gpushare.json"
        words = ["cdi", "generate", "--driver-root", str(host), "--output", str(spec)]
        subprocess.run([*own.cli, *words], check=True, capture_output=True)
        inside(
            own,
            f"""
            mkdir -p /etc/cdi /lib/firmware
            cp '{spec}' /etc/cdi/
            cd '{host}{DEBIAN}'
            cp -a lib*nv* libcuda* {DEBIAN}/
            cp '{host}/usr/bin/'* /usr/bin/
            cp -a '{host}/lib/firmware/nvidia' /lib/firmware/
            """,
        )
        podman = Podman(own)
        paths = ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", f"{DEBIAN}/libcuda.so.1"]
        paths += [f"{DEBIAN}/libnvidia-nvvm.so.4", "/usr/bin/nvidia-smi"]
        listed = ("--rm", f"--device=nvidia.com/gpu={device}")
        done = podman.run(*listed, command=(BUSYBOX, "ls", *paths), runtime="runc")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == sorted(paths)
        other = podman.run(*listed, command=(BUSYBOX, "ls", "/dev/nvidia0"), runtime="runc")
        assert (other.returncode == 0) == (device == "all")
