# SPDX-License-Identifier: Apache-2.0
"""A machine that `gpushare setup` made ready and systemd booted, with docker's own units.

gpushared and gpushare-node run there under their units as they are shipped, by this machine's
Python. docker restarts a container of its own accord, and neither is configured to wait for the
other. Its containers are in scopes of systemd's, which sets their device filters.
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
from tests.stack.kubelet import StandInKubelet
from tests.system.waiting import wait_until

pytestmark = pytest.mark.needs("debian13")

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
GIB = 1 << 30
NAME = "always"
SERVICE = "gpushared.service"
NODE = "gpushare-node.service"
ENGINES = ("docker.service", "containerd.service", "podman-restart.service", "podman.service")
SCHEDULER = "gpushare-schedu"  # cut to TASK_COMM_LEN
DAC_OVERRIDE = 1 << 1  # capabilities(7)
RESOURCE = "gpushare.io/memory-gib"
#: What a place without a network lets docker be; and it is restarted here more often than it likes.
DAEMON = {"bridge": "none", "iptables": False, "ip6tables": False, "ip-forward": False}
#: Takes memory by the driver's own library, and waits.
BYPASS = (
    image.PROGRAM,
    "--library",
    "/.gpushare/driver/libcuda.so.1",
    f"alloc {9 * GIB}",
    "spin 4000000 1000000",
)
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

    def show(self, unit: str, name: str) -> str:
        return self("systemctl", "show", f"--property={name}", "--value", unit)

    def told(self) -> str:
        """Return the last lines of the units' logs."""
        units = [word for unit in (SERVICE, "docker.service") for word in ("--unit", unit)]
        return self.call("journalctl", "--no-pager", "--lines=30", *units).stdout

    def write(self, path: str, text: str) -> None:
        self("sh", "-c", f"mkdir -p {Path(path).parent} && cat >{path}", given=text.encode())

    def main_pid(self) -> int:
        """Return gpushared's process, by the place's number; 0: there is none."""
        return int(self.show(SERVICE, "MainPID"))

    def tenants(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("gpushare", "--json", "ps"))
        return found

    def container(self) -> dict[str, Any]:
        [found] = json.loads(self("docker", "inspect", NAME))
        state: dict[str, Any] = found["State"]
        return state

    def schedulers(self) -> list[str]:
        return self.call("pgrep", "-x", SCHEDULER).stdout.split()

    def scope(self, name: str = NAME) -> str:
        """Return the unit of a container's cgroup."""
        return f"docker-{self('docker', 'inspect', '--format', '{{.Id}}', name)}.scope"

    def is_frozen(self, name: str = NAME) -> bool:
        group = f"/sys/fs/cgroup/system.slice/{self.scope(name)}"
        return "frozen 1" in self("cat", f"{group}/cgroup.events")

    def events(self) -> list[str]:
        """Return what gpushared logged, event by event."""
        lines = self("journalctl", "--output=cat", "--unit", SERVICE).splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def run(
        self, name: str, *flags: str, tag: str = "gpushare-probe", command: Sequence[str] = ()
    ) -> None:
        """Run an image with 2 GiB, in the background."""
        words = ("--network", "none", "--runtime", "gpushare", "--stop-signal", "KILL")
        asks = ("--volume", "/usr/bin/busybox:/usr/bin/busybox:ro", "-e", "GPUSHARE_MEMORY=2GiB")
        run = ("docker", "run", "--detach", "--interactive", "--name", name)
        self(*run, *words, *asks, *flags, tag, *command)

    def has_its_quota(self) -> bool:
        """Whether the container runs, and gpushared has it as its tenant with what it asked."""
        state = self.container()
        pids = {row["pid"]: row["cards"][0]["quota_bytes"] for row in self.tenants()}
        return bool(state["Running"]) and pids == {state["Pid"]: 2 * GIB}


@pytest.fixture(scope="module")
def machine() -> Iterator[BootedMachine]:
    """Set up, with a container that docker restarts always."""
    paths = of_this_python()
    with Stack(distribution=DEBIAN13, cgroups="v2", booted=True, host_paths=paths) as stage:
        made = BootedMachine(stage)
        made("rm", "/etc/systemd/system/docker.socket")
        settings = {**DAEMON, "data-root": f"{stage.root}/docker"}
        made.write("/etc/docker/daemon.json", json.dumps(settings))
        made.write("/etc/systemd/system/docker.service.d/often.conf", UNLIMITED)
        # The units have a /tmp of their own, and the checkout may be in the machine's.
        seen = "".join(f"BindReadOnlyPaths={path}\n" for path in paths)
        for unit in (SERVICE, NODE):
            made.write(f"/etc/systemd/system/{unit}.d/python.conf", f"[Service]\n{seen}")
        made("systemctl", "daemon-reload")
        kubelet = stage.root / "kubelet"
        kubelet.mkdir()
        made("mkdir", "-p", "/var/lib/kubelet")
        made("mount", "--bind", str(kubelet), "/var/lib/kubelet")
        options = ("--runtime", "docker", "--kubernetes", "plugin")
        made("gpushare", "setup", "--simulate", "h200", *options)
        made("systemctl", "start", "docker")
        made("docker", "load", given=image.build(stage.installation.probe))
        made.run(NAME, "--restart", "always")
        yield made
        made.call("docker", "rm", "--force", NAME)
        units = ("docker.socket", "docker", "containerd", NODE, SERVICE)
        made.call("systemctl", "stop", *units)


def test_setup_starts_the_socket_and_puts_docker_after_it(machine: BootedMachine) -> None:
    units = ("gpushared.socket", SERVICE)
    assert machine("systemctl", "is-enabled", *units).split() == ["enabled"] * 2
    assert machine("systemctl", "is-active", *units).split() == ["active"] * 2
    after = machine.show("docker.service", "After").split()
    assert "gpushared.socket" in after
    assert SERVICE not in after
    wait_until(machine.has_its_quota)
    # As a boot would put them together: no circle, and no setting that systemd does not know.
    verify = ("systemd-analyze", "verify", "--man=no", *units, *ENGINES, "multi-user.target")
    done = machine.call(*verify)
    assert "ordering cycle" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "gpushare" in line] == []


def test_the_first_request_starts_the_daemon(machine: BootedMachine) -> None:
    machine("systemctl", "stop", SERVICE)
    assert machine.main_pid() == 0
    assert machine("systemctl", "is-active", "gpushared.socket") == "active"
    assert [row["name"] for row in machine.tenants()] == [NAME]
    assert machine.main_pid() != 0


def test_tenants_and_the_scheduler_run_on_whatever_becomes_of_the_daemon(
    machine: BootedMachine,
) -> None:
    wait_until(lambda: len(machine.schedulers()) == 1)
    [scheduler] = machine.schedulers()
    # It may have its priority, and gives up afterwards what allows that.
    assert "SCHED_FIFO" in machine("chrt", "--pid", scheduler)
    assert f"{DAC_OVERRIDE:016x}" in machine("grep", "CapEff", f"/proc/{scheduler}/status")
    before = machine.container()["Pid"]
    for words in (
        ("restart", SERVICE),
        ("reload", SERVICE),
        ("daemon-reload",),
        ("kill", "--kill-whom=main", "--signal=KILL", SERVICE),
    ):
        machine("systemctl", *words)
        wait_until(machine.has_its_quota)
        assert machine.container()["Pid"] == before
        assert machine.schedulers() == [scheduler]


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


def test_a_container_that_crashes_while_gpushared_is_away_comes_back_with_its_quota(
    machine: BootedMachine,
) -> None:
    before = machine.container()["Pid"]
    machine("sh", "-c", f"{KILLED_FOR_LONG} && {CRASHED} && {SOON_AGAIN}")
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
    # systemd writes anew what it has to say of the group; of this it says nothing.
    machine("systemctl", "daemon-reload")
    assert machine.is_frozen()
    machine("gpushare", "resume", NAME)
    machine("gpushare", "set", NAME, "--memory", "3GiB")
    assert machine.tenants()[0]["cards"][0]["quota_bytes"] == 3 * GIB
    machine("gpushare", "stop", NAME)
    wait_until(lambda: machine.container()["Pid"] not in {0, frozen})
    events = machine.events()
    assert "privileges-drop-failed" not in events
    assert "context-size-measured" in events  # the probe, a child of the unit's


def test_a_card_stays_when_systemd_is_reloaded_and_no_other_node_is_let_through(
    machine: BootedMachine,
) -> None:
    def opened(script: str) -> str:
        """Open a device node in the container; return what the kernel says to that."""
        return machine.call("docker", "exec", NAME, "busybox", "sh", "-c", script).stderr

    # No driver serves the node here, which the kernel says once the filter has let it pass.
    assert "No such device or address" in opened("exec 3<>/dev/nvidiactl")
    machine("systemctl", "daemon-reload")
    assert "No such device or address" in opened("exec 3<>/dev/nvidiactl")
    assert "not permitted" in opened("mknod /tmp/other c 195 7 && exec 3<>/tmp/other")
    # It is systemd's filter: without what the spec made it know, the card would be lost.
    machine("systemctl", "set-property", "--runtime", machine.scope(), "DeviceAllow=")
    assert "not permitted" in opened("exec 3<>/dev/nvidiactl")


def test_a_container_that_bypasses_the_library_is_frozen_in_its_scope(
    machine: BootedMachine,
) -> None:
    wait_until(lambda: "context-size-measured" in machine.events())
    machine.run("around", "--cgroup-parent", "gpu-jobs.slice", command=BYPASS)
    try:
        row = next(row for row in machine.tenants() if row["name"] == "around")
        group = machine("cat", f"/proc/{row['pid']}/cgroup").rpartition(":")[2]
        assert "/gpu.slice/gpu-jobs.slice/docker-" in group
        frozen = f"/sys/fs/cgroup{group}/cgroup.events"
        wait_until(lambda: "frozen 1" in machine("cat", frozen))
        assert not machine.is_frozen()
        machine("gpushare", "set", "around", "--over-quota", "kill")
        wait_until(lambda: [row["name"] for row in machine.tenants()] == [NAME])
        wait_until(lambda: "over-quota-killed" in machine.events())
    finally:
        machine("docker", "rm", "--force", "around")


def test_gpushare_node_serves_a_kubelet_without_capabilities(machine: BootedMachine) -> None:
    with StandInKubelet(machine.stage.root / "kubelet") as kubelet:
        machine("systemctl", "restart", NODE)
        wait_until(lambda: kubelet.allocatable(RESOURCE) > 0)
        status = machine("cat", f"/proc/{machine.show(NODE, 'MainPID')}/status")
        assert f"CapEff:\t{0:016x}" in status
        assert kubelet.admit(RESOURCE, 4).mounts()
        machine("systemctl", "stop", NODE)
        assert [path.name for path in kubelet.plugins.iterdir()] == ["kubelet.sock"]
        assert machine.show(NODE, "Result") == "success"


def test_undone_nothing_of_it_is_left_with_systemd(machine: BootedMachine) -> None:
    machine("docker", "rm", "--force", NAME)
    wait_until(lambda: not machine.tenants())
    machine("gpushare", "setup", "--undo")
    units = machine("sh", "-c", "systemctl list-unit-files 'gpushare*' --no-legend; true")
    assert units == ""
    folder = "/etc/systemd/system/docker.service.d"
    assert machine("ls", folder).split() == ["often.conf"]
    assert "gpushared.socket" not in machine.show("docker.service", "After").split()
