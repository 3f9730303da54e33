# SPDX-License-Identifier: Apache-2.0
"""podman, by the runtime's name and by its path, with and without our hook in hooks.d."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.system.waiting import wait_until

from .podman import BUSYBOX, IDLE, IMAGE, Done, Podman
from .slices import GIB, NO_DRIVER, allocated, assert_slice, parse, probing

HOOK = Path(__file__).resolve().parents[3] / "hooks/hooks.d/gpushare.json"
PROBE = (PROGRAM, *probing(4 * GIB))
ANNOTATED = "--annotation=gpushare.io/memory=4GiB"

pytestmark = pytest.mark.usefixtures("released")


@pytest.fixture(scope="session")
def podman(stage: Stack) -> Podman:
    return Podman(stage)


@pytest.fixture
def name(podman: Podman) -> Iterator[str]:
    """A container's name; it is removed in the end."""
    made = f"train-{secrets.token_hex(4)}"
    yield made
    podman.remove(made)


@pytest.fixture(params=["name", "path"])
def runtime(stage: Stack, request: pytest.FixtureRequest) -> str:
    """The runtime as containers.conf calls it, and as its path is typed."""
    return "gpushare" if request.param == "name" else str(stage.installation.launcher)


def holds(done: Done) -> None:
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)


@pytest.mark.parametrize("asks", [ANNOTATED, "--env=GPUSHARE_MEMORY=4GiB"])
def test_a_container_gets_its_request(podman: Podman, runtime: str, asks: str) -> None:
    holds(podman.run("--rm", asks, command=PROBE, runtime=runtime))


def test_one_that_asks_for_nothing_gets_nothing(podman: Podman, runtime: str) -> None:
    assert podman.run("--rm", command=PROBE, runtime=runtime).returncode == NO_DRIVER


def test_podman_prints_the_refusal(podman: Podman, runtime: str) -> None:
    done = podman.run("--rm", "--env=GPUSHARE_MEMORY=2000GiB", command=PROBE, runtime=runtime)
    assert done.returncode == 126  # as for whatever cannot be run
    [line] = done.stderr.splitlines()
    assert "gpushare: no card has room for 2000 GiB" in line
    assert '"level"' not in line  # podman knows that what it reads is JSON


def test_exec_kill_start_and_stop(podman: Podman, stage: Stack, name: str) -> None:
    podman.start(name, ANNOTATED)
    for end in ("kill", "stop"):
        holds(podman.execute(name, *PROBE))
        wait_until(lambda: allocated(stage) == {name: 4 * GIB})  # podman writes it down by and by
        words = [end, "--time=0", name] if end == "stop" else [end, name]
        assert podman.call(*words).returncode == 0
        wait_until(lambda: not allocated(stage))
        assert podman.call("start", name).returncode == 0  # the same id, once more


def test_a_container_whose_first_process_is_killed_is_released(
    podman: Podman, stage: Stack, name: str
) -> None:
    podman.start(name, ANNOTATED)
    [found] = json.loads(podman.call("inspect", name).stdout)
    os.kill(found["State"]["Pid"], signal.SIGKILL)
    wait_until(lambda: not allocated(stage))


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


def test_each_container_of_a_pod_asks_for_itself(podman: Podman, stage: Stack) -> None:
    pod = f"pod-{secrets.token_hex(4)}"
    parent = f"--cgroup-parent=/{stage.cgroup}"
    infra = [f"--infra-image={IMAGE}", f"--infra-command={BUSYBOX} sleep 1000"]
    done = podman.call("pod", "create", f"--name={pod}", "--network=none", parent, *infra)
    assert done.returncode == 0, done.stderr
    try:
        for member, size in (("train", "4GiB"), ("serve", "8GiB")):
            asks = ["--annotation", f"gpushare.io/memory={size}"]
            words = ["run", "--detach", f"--pod={pod}", f"--name={pod}-{member}", *asks, IMAGE]
            done = podman.call(*words, BUSYBOX, "sleep", "1000")
            assert done.returncode == 0, done.stderr
        holds(podman.execute(f"{pod}-train", *PROBE))
        assert sorted(allocated(stage).values()) == [4 * GIB, 8 * GIB]
    finally:
        podman.call("pod", "rm", "--force", "--time=0", pod)


@pytest.mark.parametrize("flag", ["--read-only", "--user=1000:1000", "--pid=host"])
def test_however_it_is_confined(podman: Podman, flag: str) -> None:
    holds(podman.run("--rm", ANNOTATED, flag, command=PROBE))


# --- hooks.d: a hook cannot edit a spec; it sees containers that bypassed the launcher ---


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
def play(podman: Podman, name: str) -> Iterator[Callable[[str], Done]]:
    """Play a pod of two containers, of which `train` requests a quota; it is removed in the end."""
    file = podman.root / f"{name}.yaml"
    command = ", ".join(f'"{word}"' for word in IDLE)

    def played(more: str = "") -> Done:
        file.write_text(POD.format(name=name, image=IMAGE, command=command, more=more))
        return podman.call("play", "kube", "--network=host", str(file))

    yield played
    podman.call("pod", "rm", "--force", "--time=0", name)


def test_of_a_played_pod_the_container_that_is_named_gets_the_quota(
    podman: Podman, stage: Stack, name: str, play: Callable[[str], Done]
) -> None:
    done = play("")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: allocated(stage) == {f"{name}-train": 4 * GIB})
    holds(podman.execute(f"{name}-train", *PROBE))
    assert podman.execute(f"{name}-side", *PROBE).returncode == NO_DRIVER


def test_where_podman_does_not_say_which_container_it_is_the_refusal_names_the_way(
    stage: Stack, play: Callable[[str], Done]
) -> None:
    done = play("  hostname: other")
    assert "podman does not tell which one this is. Set GPUSHARE_MEMORY in the" in done.stderr
    assert not allocated(stage)
