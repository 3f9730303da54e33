# SPDX-License-Identifier: Apache-2.0
"""Containers on a card in MPS mode, with a real runc; and a share that reaches another server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import RequestRefused
from gpushare.simulator import Simulator, device_file
from gpushare.verify import image
from tests.c.simulator.conftest import SimulatorMachine
from tests.c.simulator.mps_daemon import MpsDaemon, mps_daemon
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox

from .waiting import wait_until

GIB = 1 << 30
PIPES = "/run/host-mps"


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack of its own: the server is a non-tenant process, whose memory counts for a while."""
    with Stack() as made:
        made.start_daemon()
        yield made


@pytest.fixture
def control(stack: Stack) -> Iterator[MpsDaemon]:
    """A control daemon for the stack's card, which an operator of the host has started."""
    made = Simulator(stack.cdi.with_name("device"), stack.cdi, ())
    with mps_daemon(SimulatorMachine(made, device_file.libraries())) as running:
        yield running


def test_a_share_that_uses_the_hosts_server_is_named_and_keeps_its_quota(
    stack: Stack, control: MpsDaemon
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"}, args=(image.PROGRAM,))
    folder = control.folder / "pipe"
    mount = {"destination": PIPES, "type": "bind", "source": str(folder), "options": ["bind"]}
    bundle.config["mounts"].append(mount)
    bundle.config["process"]["env"].append(f"CUDA_MPS_PIPE_DIRECTORY={PIPES}")
    bundle.save()
    client = stack.client
    with bundle.run() as tenant, control.client().started("tenant.py") as other:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        wait_until(lambda: any("MPS" in text for text in client.tenant(bundle.id)["warnings"]))
        assert other.ask("init") == 0
        assert other.ask("context") == 0
        assert other.ask("trap")[1] != 0
        wait_until(lambda: tenant.ask("alloc 4096")["result"] == "CUDA_ERROR_LAUNCH_FAILED")


PROBE = (image.PROGRAM,)
FAULT = "/usr/bin/mps-fault"
#: The driver itself, past the interposer library, which would set the variables of a client.
AROUND = (image.PROGRAM, "--library", "/.gpushare/driver/libcuda.so.1")
WITHOUT_ENVIRONMENT = ("/bin/busybox", "env", "-i", *AROUND)
#: Variables with which a process would not be a client, and would have no limits.
UNSET = (
    "/bin/busybox",
    "env",
    "CUDA_MPS_PIPE_DIRECTORY=/nonexistent",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=7=100G",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=nonsense",
    image.PROGRAM,
)


class MpsNode:
    """A stack whose card is in MPS mode."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        stack.configure(cards={"0": {"backend": "mps", "mps_trusted": True}})

    def bundle(self, args: Sequence[str] = PROBE, **quota: str) -> Bundle:
        asked = {"memory": "4GiB", "backend": "mps", **quota}
        files = {**busybox(), FAULT: fault_program(self.stack)}
        return Bundle(self.stack, quota=asked, args=args, files=files)

    @property
    def memory_limit(self) -> str:
        """What limits memory beside the library: from 615 on, the driver does so by cgroup."""
        major, _, _ = self.stack.client.status()["driver_version"].partition(".")
        return "cgroup" if int(major) >= 615 else "server"

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.stack.events() if line["event"] == name]

    def control(self) -> int:
        """Return the process of the control daemon; 0: there is none."""
        for file in (self.stack.root / "run" / "mps").glob("*/state.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                return int(json.loads(file.read_text())["pid"])
        return 0

    def log(self) -> str:
        folder = self.stack.root / "run" / "mps"
        return "".join(path.read_text() for path in folder.glob("*/log/output.log"))

    def mps(self, bundle: Bundle) -> Any:
        return self.stack.client.tenant(bundle.id)["mps"]

    def pid(self, bundle: Bundle) -> int:
        return int(self.stack.client.tenant(bundle.id)["pid"])

    def warnings(self, bundle: Bundle) -> str:
        return " ".join(self.stack.client.tenant(bundle.id)["warnings"])


def fault_program(stack: Stack) -> bytes:
    """Return mps_fault.c, compiled once a stack."""
    program = stack.root / "mps-fault"
    if not program.exists():
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.fail("gcc is not installed: run ./dev setup")
        source = Path(__file__).with_name("mps_fault.c")
        subprocess.run([compiler, "-o", str(program), str(source), "-ldl"], check=True)
    return program.read_bytes()


@pytest.fixture
def stopped(request: pytest.FixtureRequest) -> Iterator[MpsNode]:
    """A node whose only card is in MPS mode, before gpushared is started."""
    with Stack(driver=getattr(request, "param", None)) as stack:
        yield MpsNode(stack)


@pytest.fixture
def node(stopped: MpsNode) -> MpsNode:
    """The same with gpushared."""
    stopped.stack.start_daemon()
    return stopped


@pytest.mark.parametrize("stopped", [None, "615.71.09"], indirect=True)
def test_containers_are_clients_of_one_server_within_their_quotas(node: MpsNode) -> None:
    train, serve = node.bundle(cores="30"), node.bundle(UNSET, memory="8GiB")
    with train.run() as one, serve.run() as other:
        assert one.start()["code"] == other.start()["code"] == 0
        assert one.ask(f"alloc {3 * GIB}")["code"] == 0
        assert one.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert other.ask(f"alloc {7 * GIB}")["code"] == 0
        assert other.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        wait_until(lambda: node.mps(train)["server_state"] == "ACTIVE")
        assert node.log().count("NEW CLIENT") == 2
        rows = {row["id"]: row for row in node.stack.client.tenants()}
        assert {row["isolation"] for row in rows.values()} == {"mps"}
        assert not any(row["warnings"] for row in rows.values())
        assert (node.mps(train)["percentage"], node.mps(serve)["percentage"]) == (30, 100)
        assert node.mps(train)["memory_limit"] == node.memory_limit
        assert {card["mode"] for card in node.stack.client.cards()} == {"mps"}


def test_the_mode_of_a_card_changes_only_while_no_container_uses_it(node: MpsNode) -> None:
    bundle = node.bundle()
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        control = node.control()
        with pytest.raises(RequestRefused, match="run gpushare card drain 0"):
            node.stack.configure(cards={})
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
    wait_until(lambda: not node.stack.client.tenants())
    assert node.stack.client.reload() == ["cards"]
    wait_until(lambda: not Path(f"/proc/{control}").exists())
    wait_until(lambda: not node.control())
    assert node.events("mps-control-stopped")[0]["pid"] == control


def test_a_fault_names_its_cause_and_its_victims_also_after_a_restart(node: MpsNode) -> None:
    culprit, victim = node.bundle((FAULT,)), node.bundle()
    with culprit.run() as one, victim.run() as other:
        assert one.answer("ready")
        assert other.start()["code"] == 0
        assert other.ask(f"alloc {GIB}")["code"] == 0
        control = node.control()
        node.stack.end_daemon(signal.SIGTERM)
        node.stack.start_daemon()
        wait_until(lambda: bool(node.events("mps-control-adopted")))
        assert [line["pid"] for line in node.events("mps-control-adopted")] == [control]
        assert node.control() == control
        # Both have to be known as clients before one of them faults.
        wait_until(lambda: node.mps(victim)["server_state"] == "ACTIVE")
        assert other.ask("alloc 4096")["code"] == 0
        assert one.ask("trap")["code"] != 0
        wait_until(lambda: bool(node.events("mps-server-faulted")))
        (fault,) = node.events("mps-server-faulted")
        assert (fault["name"], fault["ended"]) == (culprit.id, [victim.id])
        wait_until(lambda: bool(node.events("tenant-lost-mps-server")))
        (lost,) = node.events("tenant-lost-mps-server")
        assert lost["name"] == victim.id
        assert culprit.id in lost["cause"]
        assert other.ask("alloc 4096")["result"] == "CUDA_ERROR_LAUNCH_FAILED"
        wait_until(lambda: f"a fatal fault of {culprit.id}" in node.warnings(victim))
        assert "Restart the container" in node.warnings(victim)
    with node.bundle().started():
        pass


def test_shared_memory_is_bounded_the_cards_and_gone_with_its_containers(node: MpsNode) -> None:
    def shared(pid: int) -> Path:
        return Path(f"/proc/{pid}/root/dev/shm")

    bundle = node.bundle()
    with bundle.started():
        inner, control = shared(node.pid(bundle)), node.control()
        assert inner.stat().st_dev == shared(control).stat().st_dev
        size, memory = os.statvfs(inner), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0 < size.f_blocks * size.f_frsize < memory // 9  # 10 %, in whole pages
        (inner / "left").touch()
    wait_until(lambda: node.control() not in {0, control})
    assert list(shared(node.control()).iterdir()) == []


def test_a_control_daemon_that_ends_is_started_again(node: MpsNode) -> None:
    bundle = node.bundle()
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        before = node.control()
        wait_until(lambda: node.mps(bundle)["server_state"] == "ACTIVE")
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: len(node.events("mps-control-started")) == 2)
        wait_until(lambda: node.control() not in {0, before})
        wait_until(lambda: "has ended" in node.warnings(bundle))
        (socket,) = (node.stack.root / "run" / "mps").glob("*/p/control")
        inner = Path(f"/proc/{node.pid(bundle)}/root/.gpushare/tenant/pipes/control")
        assert inner.stat().st_ino == socket.stat().st_ino
        with node.bundle().started():
            pass


@pytest.mark.parametrize("action", ["warn", "kill"])
def test_a_process_that_bypasses_the_server_is_named_and_acted_on(
    stopped: MpsNode, action: str
) -> None:
    stopped.stack.configure(audit={"over_quota": action})
    stopped.stack.start_daemon()
    bundle = stopped.bundle(WITHOUT_ENVIRONMENT)
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        wait_until(lambda: bool(stopped.events("tenant-bypasses-mps")))
        (found,) = stopped.events("tenant-bypasses-mps")
        assert found["name"] == bundle.id
        if action == "kill":
            assert tenant.wait() != 0
        else:
            wait_until(lambda: "without its MPS server" in stopped.warnings(bundle))


def test_a_server_of_somebody_else_keeps_containers_off_the_card(stopped: MpsNode) -> None:
    made = Simulator(stopped.stack.cdi.with_name("device"), stopped.stack.cdi, ())
    with ExitStack() as stack:
        other = stack.enter_context(mps_daemon(SimulatorMachine(made, device_file.libraries())))
        client = stack.enter_context(other.client().started("tenant.py"))
        assert client.ask("init") == client.ask("context") == 0
        (server,) = other.command("get_server_list")
        stopped.stack.start_daemon()
        wait_until(
            lambda: any(server in text for text in stopped.stack.client.status()["warnings"])
        )
        assert f"did not start uses it (process {server})" in stopped.bundle().refusal()
        assert not stopped.events("mps-control-started")


def test_without_trust_a_second_container_of_a_user_is_refused(node: MpsNode) -> None:
    node.stack.configure(cards={"0": {"backend": "mps"}})
    with node.bundle().started():
        assert "has host uid 0; without mps_trusted, it takes one" in node.bundle().refusal()


def test_verify_proves_it(node: MpsNode) -> None:
    node.stack.start_containerd()
    words = ("verify", "--mps", "--runtime", "containerd", "--json")
    checks = json.loads(node.stack.gpushare(*words, check=False).stdout)
    assert [check for check in checks if not check["passed"]] == []
    assert any("clients of the card's MPS server" in check["claim"] for check in checks)


def test_root_in_a_container_changes_no_file_of_the_control_daemon(node: MpsNode) -> None:
    """The host's root would write through a link in place of the pid file.

    Of its sockets the container has that of clients alone.
    """
    script = """
        cd /.gpushare/tenant/pipes && test -S control && test "$(ls -A)" = control || exit 2
        is_refused() {
            out=$(/bin/busybox "$@" 2>&1) && { echo "$* succeeded" >&2; exit 1; }
            case $out in *"Read-only file system"*) ;; *) echo "$*: $out" >&2; exit 1 ;; esac
        }
        is_refused ln -s /nonexistent made
        for name in *; do
            is_refused rm -f "$name"
            is_refused mv "$name" moved
        done
    """
    with node.bundle(("/bin/busybox", "sh", "-c", script)).run() as tenant:
        assert tenant.wait() == 0, tenant.errors
    (socket,) = (node.stack.root / "run" / "mps").glob("*/p/control_privileged")
    assert socket.is_socket()  # it is there, and in no container
