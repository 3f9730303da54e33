# SPDX-License-Identifier: Apache-2.0
"""containerd's own client: no handlers, so the launcher is named as the runc to use."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.verify import Containerd, image
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.program import find
from tests.system.waiting import wait_until

from .slices import GIB, NO_DRIVER, allocated, assert_slice, parse, probing

BUSYBOX = "/bin/busybox"
TAGGED = "gpushare-shell:latest"
# ctr 1.6 passes the end of its stdin on only where that comes late enough.
_WORDS = " ".join(f"'{command}'" for command in probing(4 * GIB))
PROBE = (BUSYBOX, "sh", "-c", f"exec {PROGRAM} {_WORDS} </dev/null")
ANNOTATION = ("--annotation", "gpushare.io/memory=4GiB")
PATIENCE_SECONDS = 120

pytestmark = pytest.mark.usefixtures("released")
Done = subprocess.CompletedProcess[str]


class Ctr:
    """Container `name`, by the `ctr` of the stage's distribution."""

    def __init__(self, stage: Stack) -> None:
        self.stage = stage
        self.name = f"train-{secrets.token_hex(4)}"

    @property
    def full_name(self) -> str:
        return f"{self.stage.cgroup}/{self.name}"

    def call(self, *words: str) -> Done:
        return subprocess.run(
            ["ctr", *words],
            check=False,
            capture_output=True,
            text=True,
            env=self.stage.environment,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )

    def run(self, *flags: str, command: Sequence[str] = PROBE) -> Done:
        return self.call(*self.argv(*flags, command=command)[1:])

    def run_probe(self, *flags: str) -> Done:
        """Run the probe as the container, which is removed."""
        return _told(lambda: self.run("--rm", *flags))

    def argv(self, *flags: str, command: Sequence[str] = PROBE) -> list[str]:
        """Return the command line that runs the container."""
        launcher = str(self.stage.installation.launcher)
        words = ["ctr", "run", "--runc-binary", launcher, *flags, f"docker.io/library/{TAGGED}"]
        return [*words, self.name, *command]

    def task(self, verb: str, *words: str) -> Done:
        return self.call("tasks", verb, *words)

    def exec_probe(self) -> Done:
        """Run the probe in the container."""
        return _told(lambda: self.task("exec", "--exec-id", "probe", self.name, *PROBE))

    def processes(self) -> list[int]:
        listed = self.task("ps", self.name).stdout.splitlines()[1:]
        return [int(line.split()[0]) for line in listed]

    def remove(self) -> None:
        self.task("rm", "--force", self.name)
        self.call("containers", "rm", self.name)


def _told(run: Callable[[], Done]) -> Done:
    """Return what the probe printed.

    ctr cancels the copying of the output when the process has ended, so that the output of a short
    one can be lost; its exit status is not.
    """
    for _ in range(5):
        done = run()
        if done.stdout or done.returncode:
            break
    return done


def import_shell(stage: Stack) -> None:
    """Import the probe's image, with a shell."""
    busybox = {BUSYBOX: Path(find("busybox")).read_bytes()}
    archive = image.build(stage.installation.probe, busybox, tag=TAGGED)
    words = ["ctr", "images", "import", "-"]
    subprocess.run(words, check=True, input=archive, capture_output=True, env=stage.environment)


@pytest.fixture(scope="session")
def shell(stage: Stack, staged_containerd: Containerd) -> None:  # noqa: ARG001 - runs
    import_shell(stage)


@pytest.fixture
def ctr(stage: Stack, shell: None) -> Iterator[Ctr]:  # noqa: ARG001 - is there
    made = Ctr(stage)
    yield made
    made.remove()


def holds(done: Done) -> None:
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)


@pytest.mark.parametrize("asks", [ANNOTATION, ("--env", "GPUSHARE_MEMORY=4GiB")])
@pytest.mark.parametrize("flags", [(), ("--read-only",)], ids=["written", "read-only"])
def test_a_container_gets_its_request(
    ctr: Ctr, asks: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    holds(ctr.run_probe(*asks, *flags))


def test_one_that_asks_for_nothing_gets_nothing(ctr: Ctr) -> None:
    assert ctr.run("--rm").returncode == NO_DRIVER


def test_ctr_prints_the_refusal(ctr: Ctr) -> None:
    done = ctr.run("--rm", "--annotation", "gpushare.io/memory=2000GiB")
    assert done.returncode != 0
    assert "gpushare: no card has room for 2000 GiB" in done.stderr


@pytest.fixture
def running(ctr: Ctr) -> Ctr:
    done = ctr.run("--detach", *ANNOTATION, command=(BUSYBOX, "sleep", "1000"))
    assert done.returncode == 0, done.stderr
    assert allocated(ctr.stage) == {ctr.full_name: 4 * GIB}
    return ctr


def test_exec_sees_the_slice_and_kill_gives_it_back(running: Ctr) -> None:
    holds(running.exec_probe())
    assert running.task("kill", "--signal", "SIGKILL", running.name).returncode == 0
    wait_until(lambda: not allocated(running.stage))


def test_a_container_whose_first_process_is_killed_is_released(running: Ctr) -> None:
    os.kill(running.processes()[0], signal.SIGKILL)
    wait_until(lambda: not allocated(running.stage))


def test_a_container_whose_shim_is_killed_is_released(running: Ctr) -> None:
    first = running.processes()[0]
    os.kill(parent_of(first), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{first}").exists())
    wait_until(lambda: not allocated(running.stage))


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
