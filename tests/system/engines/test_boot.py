# SPDX-License-Identifier: Apache-2.0
"""A machine that `gpushare setup` made ready and systemd booted, with docker's own units.

gpushared runs there under its unit as it is shipped, by this machine's Python. docker restarts a
container of its own accord, and neither is configured to wait for the other.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.verify import image
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13
from tests.system.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
GIB = 1 << 30
NAME = "always"
SERVICE = "gpushared.service"
#: What a place without a network lets docker be; and it is restarted here more often than it likes.
DAEMON = {"bridge": "none", "iptables": False, "ip6tables": False, "ip-forward": False}
UNLIMITED = "[Unit]\nStartLimitIntervalSec=0\n"


def of_this_python() -> tuple[Path, ...]:
    """Return what a program of this environment needs that a distribution does not have."""
    base = Path(sys.base_prefix)
    if base != Path("/usr"):
        return (ROOT, base)
    return (ROOT, Path(sysconfig.get_paths()["stdlib"]), Path(sys.executable).resolve())


class BootedMachine:
    """The place, and what its administrator types."""

    def __init__(self, stage: Stack) -> None:
        self.stage = stage

    def call(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
        program = str(PROGRAMS / words[0]) if words[0].startswith("gpushare") else words[0]
        argv = self.stage.argv(program, *words[1:])
        done = subprocess.run(argv, check=False, capture_output=True, input=given, timeout=120)
        return subprocess.CompletedProcess(
            argv, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def __call__(self, *words: str, given: bytes = b"") -> str:
        done = self.call(*words, given=given)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}{self.told()}"
        return done.stdout.strip()

    def told(self) -> str:
        """Return the last lines of the units' logs."""
        units = [word for unit in (SERVICE, "docker.service") for word in ("--unit", unit)]
        return self.call("journalctl", "--no-pager", "--lines=30", *units).stdout

    def write(self, path: str, text: str) -> None:
        self("sh", "-c", f"mkdir -p {Path(path).parent} && cat >{path}", given=text.encode())

    def main_pid(self) -> int:
        """Return gpushared's process, by the place's number; 0: there is none."""
        return int(self("systemctl", "show", "--property=MainPID", "--value", SERVICE))

    def tenants(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("gpushare", "--json", "ps"))
        return found

    def container(self) -> dict[str, Any]:
        [found] = json.loads(self("docker", "inspect", NAME))
        state: dict[str, Any] = found["State"]
        return state

    def events(self) -> list[str]:
        """Return what gpushared logged, event by event."""
        lines = self("journalctl", "--output=cat", "--unit", SERVICE).splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def has_its_quota(self) -> bool:
        """Whether the container runs, and gpushared has it as its tenant with what it asked."""
        state = self.container()
        pids = {row["pid"]: row["cards"][0]["quota_bytes"] for row in self.tenants()}
        return bool(state["Running"]) and pids == {state["Pid"]: 2 * GIB}


@pytest.fixture(scope="module")
def machine() -> Iterator[BootedMachine]:
    """Set up, with a container that docker restarts always."""
    with Stack(
        distribution=DEBIAN13, cgroups="v2", booted=True, host_paths=of_this_python()
    ) as stage:
        made = BootedMachine(stage)
        made("rm", "/etc/systemd/system/docker.socket")
        made.write(
            "/etc/docker/daemon.json", json.dumps({**DAEMON, "data-root": f"{stage.root}/docker"})
        )
        made.write("/etc/systemd/system/docker.service.d/often.conf", UNLIMITED)
        made("systemctl", "daemon-reload")
        made("gpushare", "setup", "--simulate", "h200", "--runtime", "docker")
        made("systemctl", "start", "docker")
        made("docker", "load", given=image.build(stage.installation.probe))
        made(
            *("docker", "run", "--detach", "--interactive", "--restart", "always"),
            *(
                "--name",
                NAME,
                "--network",
                "none",
                "--runtime",
                "gpushare",
                "--stop-signal",
                "KILL",
            ),
            *("-e", "GPUSHARE_MEMORY=2GiB", "gpushare-probe"),
        )
        yield made
        made.call("docker", "rm", "--force", NAME)
        made.call("systemctl", "stop", "docker.socket", "docker", "containerd", "gpushared")


def test_setup_starts_the_socket_and_puts_docker_after_it(machine: BootedMachine) -> None:
    assert (
        machine("systemctl", "is-enabled", "gpushared.socket", SERVICE).split() == ["enabled"] * 2
    )
    assert machine("systemctl", "is-active", "gpushared.socket", SERVICE).split() == ["active"] * 2
    after = machine("systemctl", "show", "--property=After", "--value", "docker.service").split()
    assert "gpushared.socket" in after
    assert SERVICE not in after
    wait_until(machine.has_its_quota)


def test_the_first_request_starts_the_daemon(machine: BootedMachine) -> None:
    machine("systemctl", "stop", SERVICE)
    assert machine.main_pid() == 0
    assert machine("systemctl", "is-active", "gpushared.socket") == "active"
    assert [row["name"] for row in machine.tenants()] == [NAME]
    assert machine.main_pid() != 0


@pytest.mark.parametrize(
    "words",
    [
        ("systemctl", "restart", SERVICE),
        ("systemctl", "reload", SERVICE),
        ("systemctl", "daemon-reload"),
        ("systemctl", "kill", "--kill-whom=main", "--signal=KILL", SERVICE),
    ],
)
def test_tenants_run_on_whatever_becomes_of_the_daemon(
    machine: BootedMachine, words: Sequence[str]
) -> None:
    before = machine.container()["Pid"]
    machine(*words)
    wait_until(machine.has_its_quota)
    assert machine.container()["Pid"] == before


def test_a_daemon_that_hangs_is_ended_by_the_watchdog_and_comes_back(
    machine: BootedMachine,
) -> None:
    folder = f"/run/systemd/system/{SERVICE}.d"
    machine.write(f"{folder}/quick.conf", "[Service]\nWatchdogSec=4\nTimeoutAbortSec=2\n")
    machine("systemctl", "daemon-reload")
    machine("systemctl", "restart", SERVICE)
    before, container = machine.main_pid(), machine.container()["Pid"]
    machine("kill", f"-{signal.SIGSTOP}", str(before))
    wait_until(lambda: machine.main_pid() not in {0, before})
    wait_until(machine.has_its_quota)
    assert machine.container()["Pid"] == container
    assert (
        "watchdog" in machine("journalctl", "--unit", SERVICE, "--grep", "atchdog timeout").lower()
    )
    machine("rm", "-r", folder)
    machine("systemctl", "daemon-reload")
    machine("systemctl", "restart", SERVICE)


SLOW = f"/run/systemd/system/{SERVICE}.d/slow.conf"
KILLED = f"systemctl kill --kill-whom=main --signal=KILL {SERVICE}"
#: gpushared is killed, and takes five seconds to come back.
KILLED_FOR_LONG = (
    f"mkdir -p {SLOW.rpartition('/')[0]} && printf '[Service]\\nRestartSec=5\\n' >{SLOW}"
    f" && systemctl daemon-reload && {KILLED}"
)
SOON_AGAIN = f"rm {SLOW} && systemctl daemon-reload"
CRASHED = f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' {NAME})"
#: What is done to the two, in words of a shell.
BOTH = {
    "docker, then gpushared": f"systemctl restart docker && systemctl restart {SERVICE}",
    "gpushared, then docker": f"systemctl restart {SERVICE} && systemctl restart docker",
    "together": f"systemctl restart docker {SERVICE}",
    "docker while gpushared is stopped": f"systemctl stop {SERVICE} && systemctl restart docker",
    "docker while gpushared is about to come back": f"{KILLED} && systemctl restart docker",
    "docker, and gpushared takes five seconds to come back": (
        f"{KILLED_FOR_LONG} && systemctl restart docker && {SOON_AGAIN}"
    ),
    "the container, and gpushared takes five seconds to come back": (
        f"{KILLED_FOR_LONG} && {CRASHED} && {SOON_AGAIN}"
    ),
}


@pytest.mark.parametrize("script", BOTH.values(), ids=BOTH)
def test_a_container_comes_back_with_its_quota(machine: BootedMachine, script: str) -> None:
    before = machine.container()["Pid"]
    machine("sh", "-c", script)
    wait_until(lambda: machine.container()["Pid"] != before)
    wait_until(machine.has_its_quota)
    assert machine.container()["Error"] == ""


def test_a_boot_ends_with_both_and_with_the_container(machine: BootedMachine) -> None:
    machine(
        "systemctl", "stop", "docker.socket", "docker", "containerd", "gpushared.socket", SERVICE
    )
    assert machine.main_pid() == 0
    # What a boot starts, in one transaction: multi-user.target wants all of them.
    machine("systemctl", "enable", "docker", "containerd")
    machine("systemctl", "start", "multi-user.target")
    wait_until(machine.has_its_quota)
    assert machine.container()["Error"] == ""


def test_the_unit_lets_the_daemon_do_all_that_it_does(machine: BootedMachine) -> None:
    """Freeze and thaw a container, change its quota, and end it: cgroups, pages, signals."""
    machine("gpushare", "pause", NAME)
    frozen = machine.container()["Pid"]
    group = machine("cat", f"/proc/{frozen}/cgroup").rpartition(":")[2]
    assert machine("cat", f"/sys/fs/cgroup{group}/cgroup.freeze") == "1"
    machine("gpushare", "resume", NAME)
    machine("gpushare", "set", NAME, "--memory", "3GiB")
    assert machine.tenants()[0]["cards"][0]["quota_bytes"] == 3 * GIB
    machine("gpushare", "stop", NAME)
    wait_until(lambda: machine.container()["Pid"] not in {0, frozen})
    events = machine.events()
    assert "privileges-drop-failed" not in events
    assert "context-size-measured" in events  # the probe, a child of the unit's


def test_undone_nothing_of_it_is_left_with_systemd(machine: BootedMachine) -> None:
    machine("docker", "rm", "--force", NAME)
    wait_until(lambda: not machine.tenants())
    machine("gpushare", "setup", "--undo")
    units = machine("sh", "-c", "systemctl list-unit-files 'gpushare*' --no-legend; true")
    assert units == ""
    folder = "/etc/systemd/system/docker.service.d"
    assert machine("ls", folder).split() == ["often.conf"]
    after = machine("systemctl", "show", "--property=After", "--value", "docker.service").split()
    assert "gpushared.socket" not in after
