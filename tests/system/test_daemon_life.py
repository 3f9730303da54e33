# SPDX-License-Identifier: Apache-2.0
"""A container's life as the daemon sees it, with a daemon that is in trouble too."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from gpushare import abi, client
from gpushare.daemon.core import privileges
from tests.leftovers import mounts_under
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def allocated(stack: Stack) -> int:
    return sum(card["allocated_bytes"] for card in stack.client.cards())


def directories(stack: Stack) -> list[str]:
    found = (path.name for path in (stack.root / "run" / "tenants").iterdir())
    return [name for name in found if not name.startswith(".")]


def pid_of(bundle: Bundle) -> int:
    pid: int = json.loads(bundle.call("state").stdout)["pid"]
    return pid


@pytest.mark.gate
def test_a_container_is_reserved_then_bound_then_released(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB", "cores": "30"})
    assert bundle.create() == 0
    try:
        tenant = bundle.tenant
        assert (tenant["state"], tenant["engine"], tenant["isolation"]) == (
            "bound",
            "runc",
            "interposer",
        )
        assert tenant["pid"] == pid_of(bundle)
        assert tenant["quota"] == {"memory": "4GiB env", "cores": "30 env"}
        assert tenant["cards"][0]["quota_bytes"] == 4 * GIB
    finally:
        bundle.remove()
    wait_until(lambda: bundle.row() is None)
    assert directories(stack) == []


def test_the_directory_of_a_tenant_has_only_its_own_files(stack: Stack) -> None:
    """A tmpfs of its own, closed to others, in which it can write its status and nothing else."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.save()
    with bundle.started() as tenant:
        assert tenant.ask("context")["code"] == 0
        found = bundle.tenant
        outer = stack.root / "run" / "tenants" / found["key"]
        assert stat.S_IMODE(outer.stat().st_mode) == 0o700
        assert stat.S_IMODE((outer / "pages").stat().st_mode) == 0o755
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        [options] = [fields[5] for fields in mounts if fields[4] == f"{outer}/pages"]
        assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
        inside = Path(f"/proc/{found['pid']}/root{abi.TENANT_DIR}")
        with pytest.raises(OSError, match="Read-only"):
            (inside / "grant").open("r+b")
        with pytest.raises(OSError, match="Read-only"):
            (inside / "new").open("xb")
        with (
            (inside / "status").open("r+b") as status,
            pytest.raises(OSError, match="No space"),
        ):
            status.write(bytes(16 << 20))
        assert tenant.ask("info")["total"] == 4 * GIB
        assert stack.client.set(bundle.id, memory="5GiB")["cards"][0]["quota_bytes"] == 5 * GIB


@pytest.mark.gate
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_ends_and_starts_again_keeps_its_tenants(
    stack: Stack, number: signal.Signals
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        before = bundle.tenant
        stack.end_daemon(number)
        assert stack.socket.exists() == (number == signal.SIGKILL)
        assert tenant.ask(f"alloc {GIB}")["code"] == 0, "a tenant needs no daemon to go on"
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == OUT_OF_MEMORY
        stack.start_daemon()
        after = bundle.tenant
        for field in ("key", "id", "pid", "state", "quota", "isolation", "created_at"):
            assert after[field] == before[field]
        assert after["cards"][0]["tracked_bytes"] == 2 * GIB
        stack.client.set(bundle.id, memory="6GiB")
        assert tenant.ask("info")["total"] == 6 * GIB
    wait_until(lambda: bundle.row() is None)
    assert allocated(stack) == 0


@pytest.mark.gate
def test_a_tenant_that_ended_while_no_daemon_ran_is_released(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        assert tenant.ask("context")["code"] == 0
        stack.end_daemon()
    stack.start_daemon()
    wait_until(lambda: allocated(stack) == 0)
    assert directories(stack) == []
    left = [point for point in mounts_under(stack.root) if "/tenants/" in point]
    assert not [point for point in left if "/tenants/." not in point]


@pytest.mark.gate
def test_a_container_whose_init_is_killed_is_released(stack: Stack) -> None:
    """No engine deletes the container."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    assert bundle.create() == 0
    try:
        os.kill(pid_of(bundle), signal.SIGKILL)
        wait_until(lambda: allocated(stack) == 0)
        assert directories(stack) == []
    finally:
        bundle.remove()


def test_a_reservation_whose_container_never_starts_expires(own: Stack) -> None:
    own.end_daemon()
    own.configure(timing={"bind_timeout_seconds": 0.5, "reconcile_interval_seconds": 0.2})
    own.start_daemon()
    opened = own.client.open({"memory": "4GiB"}, name="never", pid=os.getpid(), rootless=False)
    wait_until(lambda: allocated(own) == 0)
    with pytest.raises(client.UnknownTenant, match="took longer"):
        own.client.bind(opened["key"], opened["id"], os.getpid())
    assert directories(own) == []


@pytest.mark.gate
def test_what_set_changed_holds_when_the_same_container_starts_again(stack: Stack) -> None:
    """The spec has been through it once already."""
    bundle = Bundle(stack, quota={"memory": "4GiB", "cores": "30"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 4 * GIB
        words = ("--memory", "6GiB", "--cores", "40", "--policy", "burst-share")
        stack.gpushare("set", bundle.id, *words)
        assert tenant.ask("info")["total"] == 6 * GIB
        once = bundle.read()
    wait_until(lambda: bundle.row() is None)
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 6 * GIB
        assert bundle.read() == once
        found = bundle.tenant
        assert found["quota"]["memory"] == "6GiB operator"
        assert (found["policy"], found["cards"][0]["cores"]) == ("burst-share", 40)


def test_a_burst_uses_available_memory_and_delays_no_reservation(stack: Stack) -> None:
    quota = {"memory": "4GiB", "memory_limit": "100GiB"}
    [whole] = [card["available_bytes"] for card in stack.client.cards()]
    first = Bundle(stack, quota=quota)
    with first.started() as tenant:
        assert tenant.ask("info")["total"] == 100 * GIB
        assert tenant.ask(f"alloc {60 * GIB}")["code"] == 0
        [card] = stack.client.cards()
        assert card["available_bytes"] == whole - 4 * GIB - card["burst_used_bytes"]
        assert card["burst_used_bytes"] > 56 * GIB
        refused = Bundle(stack, quota={"memory": "100GiB"}).refusal()
        assert f"({first.id} 4 and 56 burst)" in refused
        assert tenant.ask("free")["code"] == 0
        # The daemon believes it when the driver says so too.
        wait_until(lambda: stack.client.cards()[0]["burst_used_bytes"] == 0)
        second = Bundle(stack, quota={"memory": "100GiB"})
        with second.started() as promised_to:
            assert tenant.ask(f"alloc {60 * GIB}")["result"] == OUT_OF_MEMORY
            assert tenant.ask(f"alloc {30 * GIB}")["code"] == 0
            assert promised_to.ask(f"alloc {99 * GIB}")["code"] == 0
        wait_until(lambda: tenant.ask("info")["total"] == 100 * GIB)


@pytest.mark.gate
def test_the_memory_of_a_process_that_dies_is_released(stack: Stack) -> None:
    """kill -9 of an exec'ed process: the container goes on, with all its quota."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        before = tenant.ask("info")["free"]
        words = bundle.argv("exec", bundle.id, "/usr/bin/gpushare-probe")
        second = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert second.stdin is not None
        second.stdin.write(f"alloc {GIB}\n".encode())
        second.stdin.flush()
        wait_until(lambda: bundle.tenant["cards"][0]["tracked_bytes"] >= GIB)
        assert tenant.ask("info")["free"] < before - GIB
        processes = bundle.tenant["processes"]
        [other] = [one["pid"] for one in processes if one["container_pid"] != 1]
        os.kill(other, signal.SIGKILL)
        second.communicate()
        wait_until(lambda: tenant.ask("info")["free"] == before)


def test_a_second_daemon_leaves_with_a_message(own: Stack) -> None:
    second = subprocess.run(
        own.gpushared, capture_output=True, text=True, env=own.environment, check=False
    )
    assert own.daemon is not None
    assert second.returncode == 1
    assert f"another gpushared (pid {own.daemon.process.pid}) has {own.root}/run" in second.stderr
    assert own.client.status()["pid"] == own.daemon.process.pid


def test_a_deleted_socket_is_bound_again(own: Stack) -> None:
    own.end_daemon()
    own.configure(timing={"reconcile_interval_seconds": 0.2})
    own.start_daemon()
    own.socket.unlink()
    wait_until(own.socket.exists)
    assert own.client.status()["cards"] == 1


def test_a_run_dir_that_others_may_write_is_refused(own: Stack) -> None:
    own.end_daemon()
    (own.root / "run").chmod(0o777)
    refused = subprocess.run(
        own.gpushared, capture_output=True, text=True, env=own.environment, check=False
    )
    assert refused.returncode == 1
    assert "can be written by others than root; chmod 755 it" in refused.stderr


def test_the_daemon_has_the_capabilities_that_it_says_and_no_other(stack: Stack) -> None:
    assert stack.daemon is not None
    status = Path(f"/proc/{stack.daemon.process.pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in status)
    kept = sum(1 << number for number in privileges.KEPT)
    for field in ("CapPrm", "CapEff", "CapBnd"):
        assert int(found[field], 16) & ~kept == 0, field
    assert int(found["CapInh"], 16) == 0
    assert found["NoNewPrivs"] == "1"


def test_the_history_of_a_container_outlives_it_and_the_daemon(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with bundle.started():
        pass
    wait_until(lambda: bundle.row() is None)
    own.end_daemon(signal.SIGTERM)
    own.start_daemon()
    events = list(own.client.history(bundle.id))
    assert [event["event"] for event in events] == [
        "tenant-reserved",
        "tenant-bound",
        "tenant-released",
    ]
    assert {event["generation"] for event in events} == {1}
    assert "reserved 4 GiB on card 0" in own.gpushare("history", bundle.id).stdout
    starts = [event for event in own.client.history() if event["event"] == "daemon-ready"]
    assert [event["generation"] for event in starts] == [1, 2]
