# SPDX-License-Identifier: Apache-2.0
"""A container's life as the daemon sees it, with a daemon that is in trouble too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpushare import client
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
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_ends_and_starts_again_keeps_its_tenants(
    stack: Stack, number: signal.Signals
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        before = bundle.tenant
        assert (before["state"], before["pid"]) == ("bound", pid_of(bundle))
        assert (before["engine"], before["isolation"]) == ("runc", "interposer")
        assert before["quota"] == {"memory": "4GiB env"}
        stack.end_daemon(number)
        assert stack.socket.exists() == (number == signal.SIGKILL)
        assert tenant.ask(f"alloc {GIB}")["code"] == 0, "a tenant needs no daemon to go on"
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == OUT_OF_MEMORY
        stack.start_daemon()
        after = bundle.tenant
        for field in ("key", "id", "pid", "state", "quota", "isolation", "created"):
            assert after[field] == before[field]
        held = after["cards"][0]
        assert held["used_bytes"] - held["overhead_bytes"] == 2 * GIB
        stack.client.set(bundle.id, memory="6GiB")
        assert tenant.ask("info")["total"] == 6 * GIB
    wait_until(lambda: bundle.row() is None)
    assert allocated(stack) == 0
    assert directories(stack) == []


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
    opened = own.client.open({"memory": "4GiB"}, name="never", rootless=False)
    wait_until(lambda: allocated(own) == 0)
    with pytest.raises(client.UnknownTenant, match="took longer"):
        own.client.bind(opened["key"], opened["id"], os.getpid())
    assert directories(own) == []


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
        wait_until(lambda: bundle.tenant["cards"][0]["kinds"]["buffers"] >= GIB)
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


def test_the_daemon_has_the_capabilities_that_it_says_and_no_other(stack: Stack) -> None:
    assert stack.daemon is not None
    status = Path(f"/proc/{stack.daemon.process.pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in status)
    kept = sum(1 << number for number in privileges.KEPT)
    for field in ("CapPrm", "CapEff", "CapBnd"):
        assert int(found[field], 16) & ~kept == 0, field
    assert int(found["CapInh"], 16) == 0
    assert found["NoNewPrivs"] == "1"
