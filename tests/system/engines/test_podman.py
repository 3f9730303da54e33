# SPDX-License-Identifier: Apache-2.0
"""podman, by the runtime's name and by its path, with and without our hook in hooks.d."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until
from tests.unit.host.layouts import DEBIAN, ubuntu_server

from .gpus import inside
from .podman import BUSYBOX, IDLE, IMAGE, Done, Podman
from .slices import GIB, NO_DRIVER, allocated, assert_slice, parse, probing

HOOK = Path(__file__).resolve().parents[3] / "hooks/hooks.d/gpushare.json"
PROBE = (PROGRAM, *probing(4 * GIB))
ANNOTATED = "--annotation=gpushare.io/memory=4GiB"
USER = 5  # games, in every Debian
#: What a container would have to be for the limits of a namespace to apply to it.
SPOOFED = (
    *("--annotation", "io.kubernetes.cri.sandbox-namespace=ai"),
    *("--annotation", "io.kubernetes.cri.sandbox-id=5a4d"),
    *("--annotation", "io.kubernetes.cri.container-name=train"),
)
POLICY = """
max_per_request: {memory: 4GiB}
namespaces: {ai: {max_per_request: {memory: 8GiB}, trust: {env: ignore}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{gpushare.io/container.train.memory: 4GiB}}
spec:
  containers:
  - {{name: train, image: {image}, command: [{command}]}}
  - {{name: side, image: {image}, command: [{command}]}}
{more}
"""


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


def test_a_container_whose_monitor_is_killed_keeps_its_quota(
    podman: Podman, stage: Stack, name: str
) -> None:
    podman.start(name, ANNOTATED)
    [found] = json.loads(podman.call("inspect", name).stdout)
    os.kill(found["State"]["ConmonPid"], signal.SIGKILL)
    holds(podman.execute(name, *PROBE))
    assert list(allocated(stage).values()) == [4 * GIB]
    os.kill(found["State"]["Pid"], signal.SIGKILL)
    wait_until(lambda: not allocated(stage))


# --- hooks.d: a hook cannot edit a spec; it sees containers that bypassed the launcher ---


@pytest.mark.gate
def test_the_hook_stops_a_container_that_bypassed_the_launcher(podman: Podman) -> None:
    bare = str(podman.stage.runtime)
    done = podman.run("--rm", ANNOTATED, command=PROBE, runtime=bare)
    assert done.returncode == 126
    assert "Start it with --runtime gpushare" in done.stderr
    # One that asks for nothing is none of the hook's business.
    assert podman.run("--rm", command=PROBE, runtime=bare).returncode == NO_DRIVER


def test_the_hook_that_is_packaged_is_the_one_that_is_registered(
    podman: Podman, stage: Stack
) -> None:
    files = podman.root / "files/usr/share/containers/oci/hooks.d"
    registered = json.loads((files / HOOK.name).read_text())
    packaged = json.loads(HOOK.read_text())
    assert registered["hook"].pop("path") == str(stage.installation.hook)
    packaged["hook"].pop("path")
    assert registered == packaged


@pytest.fixture
def play(podman: Podman, name: str) -> Iterator[Callable[[str], Done]]:
    """Play a pod of two containers, of which `train` requests a quota; it is removed in the end."""
    file = podman.root / f"{name}.yaml"
    command = ", ".join(f'"{word}"' for word in IDLE)

    def played(more: str) -> Done:
        file.write_text(POD.format(name=name, image=IMAGE, command=command, more=more))
        return podman.call("play", "kube", "--network=host", str(file))

    yield played
    podman.call("pod", "rm", "--force", "--time=0", name)


def test_of_a_played_pod_the_container_that_is_named_gets_the_quota(
    podman: Podman, stage: Stack, name: str, play: Callable[[str], Done]
) -> None:
    done = play("  hostname: other")  # then podman does not say which container it is
    assert "podman does not tell which one this is. Set GPUSHARE_MEMORY in the" in done.stderr
    assert not allocated(stage)
    podman.call("pod", "rm", "--force", "--time=0", name)
    done = play("")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: allocated(stage) == {f"{name}-train": 4 * GIB})
    holds(podman.execute(f"{name}-train", *PROBE))
    assert podman.execute(f"{name}-side", *PROBE).returncode == NO_DRIVER


def test_an_annotation_makes_no_pod_of_a_users_container() -> None:
    """It would have the namespace's ceiling, and its environment would not be read."""
    with Stack(distribution=HOST) as own:
        with own.config.open("a") as config:
            config.write(POLICY)
        own.start_daemon()
        podman = Podman(own)
        asks = ("--annotation", "io.container.manager=cri-o", "-e", "GPUSHARE_MEMORY=8GiB")
        done = podman.run("--rm", *SPOOFED, *asks, command=(BUSYBOX, "true"))
        assert done.returncode != 0
        assert "exceeds the maximum, 4GiB (max_per_request.memory, " in done.stderr
        holds(podman.run("--rm", *SPOOFED, "-e", "GPUSHARE_MEMORY=4GiB", command=PROBE))


def test_podman_without_root_warns_its_user_and_runs_what_requests_nothing() -> None:
    """On a stack of its own: its first call leaves a process that holds the user namespace."""
    with Stack(distribution=HOST) as own:
        own.start_daemon()
        podman = Podman(own, user=USER)
        done = podman.run("--rm", ANNOTATED)
        assert done.returncode == 126
        assert (
            'gpushare: this container requests a GPU (annotation "gpushare.io/memory"), but '
            "GPUs are not available to rootless engines. Start it with sudo, or without a "
            "container: gpushare run."
        ) in done.stderr
        # An image's word alone asks for nothing.
        done = podman.run("--rm", "--env=NVIDIA_VISIBLE_DEVICES=all", command=(PROGRAM,))
        assert done.returncode == NO_DRIVER


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
