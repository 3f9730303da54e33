# SPDX-License-Identifier: Apache-2.0
"""A container's life as the daemon sees it, with a daemon that is in trouble too."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from gpushare import abi, client, protocol
from gpushare.client import Client
from gpushare.daemon.core import privileges
from gpushare.verify import ProbeTenant
from tests.leftovers import mounts_under
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
Result = TypeVar("Result")
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def own() -> Iterator[Stack]:
    """A stack whose daemon may be killed."""
    with Stack() as made:
        made.start_daemon()
        yield made


def asking(stack: Stack) -> Client:
    return Client(stack.socket)


def row(stack: Stack, bundle: Bundle) -> protocol.TenantStatus | None:
    return next((one for one in asking(stack).tenants() if one["id"] == bundle.id), None)


def allocated(stack: Stack) -> int:
    return sum(card["allocated_bytes"] for card in asking(stack).cards())


@contextmanager
def started(bundle: Bundle) -> Iterator[ProbeTenant]:
    """Run the container until its probe has found the driver; it ends with the block."""
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        yield tenant


def create(bundle: Bundle) -> None:
    """Create without output pipes: the container's init keeps those it is given."""
    done = subprocess.run(
        bundle.argv("create", "--bundle", str(bundle.path), bundle.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=bundle.stack.environment,
        check=False,
    )
    assert done.returncode == 0


def directories(stack: Stack) -> list[str]:
    found = (path.name for path in (stack.root / "run" / "tenants").iterdir())
    return [name for name in found if not name.startswith(".")]


def kill(stack: Stack) -> None:
    """End the daemon as the out-of-memory killer does."""
    assert stack.daemon is not None
    stack.daemon.process.kill()
    stack.daemon.process.wait()


def test_a_container_is_reserved_then_bound_then_released(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB", "cores": "30"})
    create(bundle)
    try:
        tenant = row(stack, bundle)
        assert tenant is not None
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
    wait_until(lambda: row(stack, bundle) is None)
    assert directories(stack) == []


def pid_of(bundle: Bundle) -> int:
    state = json.loads(bundle.call("state").stdout)
    pid: int = state["pid"]
    return pid


def test_the_directory_of_a_tenant_has_only_its_own_files(stack: Stack) -> None:
    """A tmpfs of its own, closed to others, in which it can write its status and nothing else."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.save()
    with started(bundle) as tenant:
        assert tenant.ask("context")["code"] == 0
        found = row(stack, bundle)
        assert found is not None
        outer = stack.root / "run" / "tenants" / found["key"]
        assert stat.S_IMODE(outer.stat().st_mode) == 0o700
        assert stat.S_IMODE((outer / "pages").stat().st_mode) == 0o755
        [options] = [line.split()[5] for line in mountinfo() if line.split()[4] == f"{outer}/pages"]
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
        assert asking(stack).set(bundle.id, memory="5GiB")["cards"][0]["quota_bytes"] == 5 * GIB


def mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def test_the_processes_and_figures_of_a_tenant_are_shown(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        found = row(stack, bundle)
        assert found is not None
        [card] = found["cards"]
        assert (card["tracked_bytes"], card["contexts"], card["denied_allocations"]) == (GIB, 1, 0)
        assert card["used_bytes"] == GIB + card["overhead_bytes"]
        [process] = found["processes"]
        assert (process["container_pid"], process["name"]) == (1, "gpushare-probe")
        assert process["pid"] == found["pid"]
        wait_until(lambda: shown_bytes(stack, bundle) == card["used_bytes"])
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == OUT_OF_MEMORY
        found = row(stack, bundle)
        assert found is not None
        assert found["cards"][0]["denied_allocations"] == 1


def shown_bytes(stack: Stack, bundle: Bundle) -> int | None:
    found = row(stack, bundle)
    return found["processes"][0]["bytes"] if found and found["processes"] else None


def test_a_daemon_that_is_killed_and_started_again_keeps_its_tenants(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        before = row(own, bundle)
        kill(own)
        assert tenant.ask(f"alloc {GIB}")["code"] == 0, "a tenant needs no daemon to go on"
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == OUT_OF_MEMORY
        own.start_daemon()
        after = row(own, bundle)
        assert before is not None
        assert after is not None
        for field in ("key", "id", "pid", "state", "quota", "isolation", "created_at"):
            assert after[field] == before[field]
        assert after["cards"][0]["tracked_bytes"] == 2 * GIB
        asking(own).set(bundle.id, memory="6GiB")
        assert tenant.ask("info")["total"] == 6 * GIB
    wait_until(lambda: row(own, bundle) is None)
    assert allocated(own) == 0


def test_a_daemon_that_is_stopped_leaves_its_tenants_running(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask("context")["code"] == 0
        assert own.daemon is not None
        own.daemon.process.terminate()
        assert own.daemon.process.wait() == 0
        assert not own.socket.exists()
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        own.start_daemon()
        assert row(own, bundle) is not None


def test_a_tenant_that_ended_while_no_daemon_ran_is_released(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask("context")["code"] == 0
        kill(own)
    bundle.remove()
    own.start_daemon()
    wait_until(lambda: allocated(own) == 0)
    assert directories(own) == []
    left = [point for point in mounts_under(own.root) if "/tenants/" in point]
    assert not [point for point in left if "/tenants/." not in point]


def test_a_container_whose_init_is_killed_is_released(own: Stack) -> None:
    """No engine deletes the container."""
    bundle = Bundle(own, quota={"memory": "4GiB"})
    create(bundle)
    try:
        os.kill(pid_of(bundle), signal.SIGKILL)
        wait_until(lambda: allocated(own) == 0)
        assert directories(own) == []
    finally:
        bundle.remove()


def test_a_reservation_whose_container_never_starts_expires(own: Stack) -> None:
    settings = yaml.safe_load(own.config.read_text())
    own.config.write_text(
        yaml.safe_dump(
            {**settings, "timing": {"bind_timeout_seconds": 0.5, "reconcile_interval_seconds": 0.2}}
        )
    )
    kill(own)
    own.start_daemon()
    opened = asking(own).open({"memory": "4GiB"}, name="never", pid=os.getpid(), rootless=False)
    assert allocated(own) == 4 * GIB
    wait_until(lambda: allocated(own) == 0)
    with pytest.raises(client.UnknownTenant, match="took longer"):
        asking(own).bind(opened["key"], opened["id"], os.getpid())
    assert directories(own) == []


def test_the_same_container_again_after_a_stop(stack: Stack) -> None:
    """The spec has been through it once already; what `set` changed still holds."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        asking(stack).set(bundle.id, memory="6GiB")
        once = bundle.read()
    wait_until(lambda: row(stack, bundle) is None)
    with started(bundle) as tenant:
        assert tenant.ask("info")["total"] == 6 * GIB
        assert bundle.read() == once
        found = row(stack, bundle)
        assert found is not None
        assert found["quota"]["memory"] == "6GiB operator"


def test_a_quota_below_the_use_refuses_new_memory_until_the_use_fits(own: Stack) -> None:
    """Also after the daemon was killed, and when the container is started again."""
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == 0
        [card] = asking(own).set(bundle.id, memory="2GiB")["cards"]
        assert card["over_limit_bytes"] == card["used_bytes"] - 2 * GIB > 0
        assert tenant.ask(f"alloc {GIB // 4}")["result"] == OUT_OF_MEMORY
        kill(own)
        own.start_daemon()
        assert tenant.ask(f"alloc {GIB // 4}")["result"] == OUT_OF_MEMORY
        found = row(own, bundle)
        assert found is not None
        assert "allocations fail until it frees" in found["warnings"][0]
        assert tenant.ask("free")["code"] == 0
        assert tenant.ask(f"alloc {GIB // 4}")["code"] == 0
        found = row(own, bundle)
        assert found is not None
        assert found["warnings"] == []
    wait_until(lambda: row(own, bundle) is None)
    with started(bundle) as tenant:
        assert tenant.ask("info")["total"] == 2 * GIB


def test_a_burst_uses_available_memory_and_delays_no_reservation(own: Stack) -> None:
    quota = {"memory": "4GiB", "memory_limit": "100GiB"}
    [whole] = [card["available_bytes"] for card in asking(own).cards()]
    first = Bundle(own, quota=quota)
    with started(first) as tenant:
        assert tenant.ask("info")["total"] == 100 * GIB
        assert tenant.ask(f"alloc {60 * GIB}")["code"] == 0
        [card] = asking(own).cards()
        assert card["available_bytes"] == whole - 4 * GIB - card["burst_used_bytes"]
        assert card["burst_used_bytes"] > 56 * GIB
        with Bundle(own, quota={"memory": "100GiB"}).run() as other:
            assert other.wait() != 0
            assert f"({first.id} 4 and 56 burst)" in other.errors
        assert tenant.ask("free")["code"] == 0
        # The daemon believes it when the driver says so too.
        wait_until(lambda: asking(own).cards()[0]["burst_used_bytes"] == 0)
        second = Bundle(own, quota={"memory": "100GiB"})
        with started(second) as promised_to:
            assert tenant.ask(f"alloc {60 * GIB}")["result"] == OUT_OF_MEMORY
            assert tenant.ask(f"alloc {30 * GIB}")["code"] == 0
            assert promised_to.ask(f"alloc {99 * GIB}")["code"] == 0
        wait_until(lambda: tenant.ask("info")["total"] == 100 * GIB)


def test_a_constantly_allocating_burst_tenant_gets_no_reserved_memory(own: Stack) -> None:
    """Reservations are made and released while it allocates and frees as fast as it can."""
    bundle = Bundle(own, quota={"memory": "4GiB", "memory_limit": "139GiB"})
    [whole] = [card["available_bytes"] for card in asking(own).cards()]
    stopped = threading.Event()
    refusals: list[str] = []
    made = 0

    def take_and_free(tenant: ProbeTenant) -> None:
        while not stopped.is_set():
            while tenant.ask(f"alloc {16 * GIB}")["code"] == 0:
                continue
            tenant.ask("free")

    with started(bundle) as tenant, ThreadPoolExecutor(1) as thread:
        running = thread.submit(take_and_free, tenant)
        try:
            while made < 5 and len(refusals) < 1000:
                try:
                    other = asking(own).open(
                        {"memory": "60GiB"}, name="other", pid=os.getpid(), rootless=False
                    )
                except client.RequestRefused as error:
                    refusals.append(str(error))
                    continue
                made += 1
                for _ in range(5):
                    found = row(own, bundle)
                    assert found is not None
                    assert found["cards"][0]["used_bytes"] <= whole - 60 * GIB
                asking(own).release(other["key"], other["id"])
                # The next look lends it what is free again.
                wait_until(lambda: limit_of(own, bundle) > whole - 60 * GIB)
        finally:
            stopped.set()
            running.result()
    assert made == 5
    assert all(" burst" in refusal for refusal in refusals)


def limit_of(stack: Stack, bundle: Bundle) -> int:
    found = row(stack, bundle)
    assert found is not None
    return found["cards"][0]["current_limit_bytes"]


def test_a_container_that_still_runs_is_not_made_a_second_time(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        assert tenant.ask("context")["code"] == 0
        refused = bundle.call("create", "--bundle", str(bundle.path))
        assert refused.returncode != 0
        assert "is still running" in refused.stderr
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        assert row(stack, bundle) is not None


def test_the_memory_of_a_process_that_dies_is_released(stack: Stack) -> None:
    """kill -9 of an exec'ed process: the container goes on, with all its quota."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with started(bundle) as tenant:
        before = tenant.ask("info")["free"]
        words = bundle.argv("exec", bundle.id, "/usr/bin/gpushare-probe")
        second = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert second.stdin is not None
        second.stdin.write(f"alloc {GIB}\n".encode())
        second.stdin.flush()
        wait_until(lambda: used(stack, bundle) >= GIB)
        assert tenant.ask("info")["free"] < before - GIB
        found = row(stack, bundle)
        assert found is not None
        [other] = [one["pid"] for one in found["processes"] if one["container_pid"] != 1]
        os.kill(other, signal.SIGKILL)
        second.communicate()
        wait_until(lambda: tenant.ask("info")["free"] == before)


def used(stack: Stack, bundle: Bundle) -> int:
    found = row(stack, bundle)
    return found["cards"][0]["tracked_bytes"] if found else 0


def test_a_second_daemon_leaves_with_a_message(own: Stack) -> None:
    second = subprocess.run(
        own.gpushared, capture_output=True, text=True, env=own.environment, check=False
    )
    assert own.daemon is not None
    assert second.returncode == 1
    assert f"another gpushared (pid {own.daemon.process.pid}) has {own.root}/run" in second.stderr
    assert asking(own).status()["pid"] == own.daemon.process.pid


def test_a_deleted_socket_is_bound_again(own: Stack) -> None:
    settings = yaml.safe_load(own.config.read_text())
    own.config.write_text(
        yaml.safe_dump({**settings, "timing": {"reconcile_interval_seconds": 0.2}})
    )
    kill(own)
    own.start_daemon()
    own.socket.unlink()
    wait_until(own.socket.exists)
    assert asking(own).status()["cards"] == 1


def test_a_run_dir_that_others_may_write_is_refused(own: Stack) -> None:
    kill(own)
    (own.root / "run").chmod(0o777)
    refused = subprocess.run(
        own.gpushared, capture_output=True, text=True, env=own.environment, check=False
    )
    assert refused.returncode == 1
    assert "can be written by others than root; chmod 755 it" in refused.stderr


def test_a_card_that_is_whole_is_its_tenants_alone(own: Stack) -> None:
    bundle = Bundle(own, quota={"count": "1"})
    with started(bundle) as tenant:
        card = asking(own).cards()[0]
        assert tenant.ask("info")["total"] >= card["memory_bytes"]
        assert card["mode"] == "exclusive"
        found = row(own, bundle)
        assert found is not None
        assert found["isolation"] == "exclusive"
        with Bundle(own, quota={"memory": "1GiB"}).run() as other:
            assert other.wait() != 0
            assert f"card 0 is allocated exclusively to {bundle.id}" in other.errors
    wait_until(lambda: allocated(own) == 0)


def test_the_daemon_has_the_capabilities_that_it_says_and_no_other(stack: Stack) -> None:
    assert stack.daemon is not None
    status = Path(f"/proc/{stack.daemon.process.pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in status)
    kept = sum(1 << number for number in privileges.KEPT)
    for field in ("CapPrm", "CapEff", "CapBnd"):
        assert int(found[field], 16) & ~kept == 0, field
    assert int(found["CapInh"], 16) == 0
    assert found["NoNewPrivs"] == "1"


def test_every_user_may_read_and_none_may_change(stack: Stack) -> None:
    """As nvidia-smi: figures are no secret; what others have is root's to change."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with started(bundle):
        assert as_nobody(lambda: len(asking(stack).cards())) == 1
        # Again where a sample falls between the two.
        wait_until(lambda: as_nobody(lambda: row(stack, bundle)) == row(stack, bundle))
        with pytest.raises(client.RequestRefused, match="requires root"):
            as_nobody(lambda: asking(stack).set(bundle.id, memory="5GiB"))
        found = row(stack, bundle)
        assert found is not None
        assert found["cards"][0]["quota_bytes"] == 4 * GIB


def as_nobody(call: Callable[[], Result]) -> Result:
    """Return what `call` returns, or raise what it raises, on a thread whose user is nobody.

    The kernel keeps users by thread; it is libc that makes all threads of a process follow.
    """
    setresuid = {"x86_64": 117, "aarch64": 147}[os.uname().machine]
    with ThreadPoolExecutor(1) as thread:
        changed = thread.submit(
            lambda: ctypes.CDLL(None).syscall(ctypes.c_long(setresuid), -1, 65534, -1)
        )
        assert changed.result() == 0
        assert thread.submit(os.geteuid).result() == 65534
        return thread.submit(call).result()


def test_the_history_of_a_container_outlives_it_and_the_daemon(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    try:
        with started(bundle):
            pass
        assert own.daemon is not None
        wait_until(lambda: row(own, bundle) is None)
        own.daemon.stop()
        own.start_daemon()
        events = list(asking(own).history(bundle.id))
    finally:
        bundle.remove()
    assert [event["event"] for event in events] == [
        "tenant-reserved",
        "tenant-bound",
        "tenant-released",
    ]
    assert {event["generation"] for event in events} == {1}
    shown = subprocess.run(
        [*own.cli, "history", bundle.id],
        check=True,
        capture_output=True,
        text=True,
        env=own.environment,
    )
    assert "reserved 4 GiB on card 0" in shown.stdout
    starts = [event for event in asking(own).history() if event["event"] == "daemon-ready"]
    assert [event["generation"] for event in starts] == [1, 2]
