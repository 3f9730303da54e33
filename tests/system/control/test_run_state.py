# SPDX-License-Identifier: Apache-2.0
"""Pause, resume and stop on real containers: some with a group of v2, others of v1 alone."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpushare import protocol
from gpushare.client import Client, RequestRefused
from gpushare.daemon.core.loop import boot_id
from gpushare.daemon.freezer.tenant_cgroup import freezable_groups
from gpushare.daemon.identity.processes import Cgroups, cgroups_of, name_of
from gpushare.daemon.store.freezes import FreezeRecord
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.verify import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import find
from tests.system.hostile.container import RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

BUSYBOX = {"/bin/busybox": Path(find("busybox")).read_bytes()}
#: Waits for its end, and can tell what it was told.
TOLD = "trap 'exit 7' TERM; trap 'exit 8' INT; while :; do busybox sleep 0.02; done"
DEAF = "trap '' TERM INT; while :; do busybox sleep 0.02; done"


@pytest.fixture
def own() -> Iterator[Stack]:
    """A stack whose daemon may be killed."""
    with Stack() as made:
        made.start_daemon()
        yield made


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack.socket)


def row(stack: Stack, bundle: Bundle) -> protocol.TenantStatus | None:
    return next((one for one in Client(stack.socket).tenants() if one["id"] == bundle.id), None)


def by(stack: Stack, bundle: Bundle) -> list[str]:
    found = row(stack, bundle)
    return [] if found is None else [held["by"] for held in found["interventions"]]


@contextmanager
def probing(bundle: Bundle) -> Iterator[ProbeTenant]:
    """Run the container until its probe has found the driver; it ends with the block."""
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        yield tenant


@contextmanager
def script(stack: Stack, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell script as a container called after its id; yields the runtime."""
    args = ["/bin/busybox", "sh", "-c", f"alias busybox=/bin/busybox; {text}"]
    bundle = Bundle(stack, quota={"memory": "1GiB"}, args=args, files=BUSYBOX)
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id)
    with subprocess.Popen(words, env=stack.environment) as running:
        running.bundle = bundle  # type: ignore[attr-defined]
        try:
            wait_until(lambda: _is_in_its_loop((row(stack, bundle) or {"pid": 0})["pid"]))
            yield running
        finally:
            bundle.remove()
            running.wait()


def _is_in_its_loop(pid: int) -> bool:
    """Whether the shell has set its traps: a signal that comes before them is lost."""
    if name_of(pid) != "busybox":
        return False
    return Path(f"/proc/{pid}/task/{pid}/children").read_text() != ""


def is_frozen(stack: Stack, bundle: Bundle) -> bool:
    """Whether the kernel has the tenant's group frozen, for whatever reason."""
    found = row(stack, bundle)
    assert found is not None
    paths = cgroups_of(found["pid"])
    entry = TenantRecord(found["key"], "bound", found["id"], pid=found["pid"], cgroup=cgroup(paths))
    return any(one.is_set() for one in freezable_groups(entry, {}, Cgroups.mounted()).values())


def cgroup(paths: dict[str, str]) -> str:
    name = "" if paths[""] != "/" else "devices"
    return f"{name}:{paths[name]}"


def test_a_paused_container_does_nothing_and_then_goes_on(stack: Stack, client: Client) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB", "cores": "30"})
    with probing(bundle) as tenant:
        shown = client.pause(bundle.id, "card 0 is looked at")
        assert [(held["by"], held["reason"]) for held in shown["interventions"]] == [
            ("operator", "card 0 is looked at")
        ]
        assert shown["warnings"][0].endswith("resumes it")
        tenant.tell("info")
        assert is_frozen(stack, bundle)
        assert client.cards()[0]["allocated_bytes"] == 4 << 30
        assert client.resume(bundle.id)["interventions"] == []
        assert tenant.answer("info")["total"] == 4 << 30


def test_a_paused_container_leaves_its_share_to_the_others(stack: Stack, client: Client) -> None:
    one = Bundle(stack, quota={"memory": "4GiB"})
    other = Bundle(stack, quota={"memory": "4GiB"})
    with probing(one), probing(other):
        shares = [client.tenant(each.id)["cards"][0]["share_percent"] for each in (one, other)]
        client.pause(one.id)
        after = [client.tenant(each.id)["cards"][0]["share_percent"] for each in (one, other)]
        client.resume(one.id)
        again = [client.tenant(each.id)["cards"][0]["share_percent"] for each in (one, other)]
    assert (shares, after, again) == ([50.0, 50.0], [None, 100.0], [50.0, 50.0])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_paused_container_stays_paused_if_the_daemon_dies(
    own: Stack, how: signal.Signals
) -> None:
    bundle, other = Bundle(own, quota={"memory": "4GiB"}), Bundle(own, quota={"memory": "4GiB"})
    with probing(bundle) as tenant, probing(other) as beside:
        Client(own.socket).pause(bundle.id)
        end(own, how)
        assert beside.ask("info")["total"] == 4 << 30
        own.start_daemon()
        assert by(own, bundle) == ["operator"]
        assert is_frozen(own, bundle)
        tenant.tell("info")
        Client(own.socket).resume(bundle.id)
        assert tenant.answer("info")["total"] == 4 << 30


def end(stack: Stack, how: signal.Signals) -> None:
    assert stack.daemon is not None
    stack.daemon.process.send_signal(how)
    stack.daemon.process.wait()


@pytest.mark.parametrize("frozen", [True, False], ids=["after it froze", "before it froze"])
def test_a_container_frozen_by_the_audit_resumes_when_the_daemon_restarts(
    own: Stack, frozen: bool
) -> None:
    """Killed between the journal and the kernel, and after both."""
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with probing(bundle) as tenant:
        Client(own.socket).pause(bundle.id)
        if not frozen:
            Client(own.socket).resume(bundle.id)
        key = Client(own.socket).tenant(bundle.id)["key"]
        end(own, signal.SIGKILL)
        ledger = Ledger(own.root / "run/ledger", boot_id())
        [*before] = ledger.freezes.of(key)
        ledger.freezes.drop(key, "operator")
        cgroup = before[0].cgroup if before else ""
        ledger.freezes.put(FreezeRecord(key, "audit", "over", time.time(), cgroup=cgroup))
        ledger.close()
        own.start_daemon()
        assert by(own, bundle) == []
        assert tenant.ask("info")["total"] == 4 << 30


def test_a_paused_container_that_its_runtime_kills_is_released(
    stack: Stack, client: Client
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with probing(bundle):
        client.pause(bundle.id)
        assert bundle.call("kill", runtime="runc").returncode == 0
        bundle.remove()
    wait_until(lambda: row(stack, bundle) is None)


@pytest.mark.parametrize(("name", "status"), [("TERM", 7), ("INT", 8)])
@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_container_may_end_by_itself(
    stack: Stack, client: Client, name: str, status: int, paused: bool
) -> None:
    with script(stack, TOLD) as running:
        bundle = running.bundle  # type: ignore[attr-defined]
        if paused:
            client.pause(bundle.id)
        shown = client.stop(bundle.id, name, 600)
        assert [held["by"] for held in shown["interventions"]] == ["stop"]
        assert running.wait() == status
    wait_until(lambda: row(stack, bundle) is None)


def test_a_container_that_ignores_the_signal_is_killed_after_its_timeout(
    stack: Stack, client: Client
) -> None:
    with script(stack, DEAF) as running:
        client.stop(running.bundle.id, "TERM", 1)  # type: ignore[attr-defined]
        assert running.wait() == 128 + signal.SIGKILL


def test_a_daemon_that_is_killed_within_the_timeout_does_it_at_its_start(own: Stack) -> None:
    with script(own, DEAF) as running:
        Client(own.socket).stop(running.bundle.id, "TERM", 1)  # type: ignore[attr-defined]
        end(own, signal.SIGKILL)
        own.start_daemon()
        assert running.wait() == 128 + signal.SIGKILL


def test_a_tenant_in_a_shared_cgroup_is_not_paused(stack: Stack, client: Client) -> None:
    one, other = (Bundle(stack, quota={"memory": "1GiB"}) for _ in range(2))
    other.config["linux"]["cgroupsPath"] = one.config["linux"]["cgroupsPath"] + "/beneath"
    other.save()
    with probing(one), probing(other) as beside:
        with pytest.raises(RequestRefused, match=f"{other.id} is in its cgroup"):
            client.pause(one.id)
        with pytest.raises(RequestRefused, match="is in its cgroup"):
            client.stop(one.id, "KILL", 0)
        assert beside.ask("info")["total"] == 1 << 30
        client.pause(other.id)
        client.resume(other.id)


def test_a_tenant_is_not_paused_before_it_runs(stack: Stack, client: Client) -> None:
    """Its runtime would wait for it without end."""
    bundle = Bundle(stack, quota={"memory": "1GiB"})
    words = bundle.argv("create", "--bundle", str(bundle.path), bundle.id)
    try:
        with Path("/dev/null").open("r+b") as null:
            subprocess.run(words, env=stack.environment, check=True, stdout=null, stderr=null)
        with pytest.raises(RequestRefused, match="is still starting"):
            client.pause(bundle.id)
        with pytest.raises(RequestRefused, match="is still starting"):
            client.stop(bundle.id, "TERM", 1)
    finally:
        bundle.remove()


def test_a_tenant_that_was_not_paused_is_not_resumed(stack: Stack, client: Client) -> None:
    bundle = Bundle(stack, quota={"memory": "1GiB"})
    with probing(bundle), pytest.raises(RequestRefused, match="neither paused nor frozen"):
        client.resume(bundle.id)


def test_a_command_of_the_host_is_paused_through_its_cgroup(stack: Stack, client: Client) -> None:
    words = [*stack.cli, "run", "--memory", "1GiB", "--name", "hosts", "--"]
    with subprocess.Popen(
        [*words, "sh", "-c", "echo up; read word; echo $word; exec sleep 1000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stack.environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        client.pause("hosts")
        print("said", file=process.stdin, flush=True)
        assert [held["by"] for held in client.tenant("hosts")["interventions"]] == ["operator"]
        client.resume("hosts")
        assert process.stdout.readline() == "said\n"
        client.stop("hosts", "TERM", 600)
        assert process.wait() == -signal.SIGTERM
    wait_until(lambda: "hosts" not in [one["name"] for one in client.tenants()])


@pytest.fixture(scope="module")
def v1() -> Iterator[RuntimeNamespace]:
    """Where containers have no group of v2."""
    with Stack() as stack, ExitStack() as closing:
        made = RuntimeNamespace(stack)
        closing.callback(made.close)
        stack.start_daemon()
        yield made


@pytest.fixture(params=["runc", "crun"])
def old(v1: RuntimeNamespace, request: pytest.FixtureRequest) -> Iterator[RuntimeContainer]:
    made = RuntimeContainer(v1, request.param)
    yield made
    made.remove()
    v1.assert_empty()


def test_under_v1_a_container_is_paused_and_goes_on(
    old: RuntimeContainer, v1: RuntimeNamespace
) -> None:
    with old.started() as tenant:
        v1.client.pause(old.id)
        tenant.tell("info")
        assert old.through.state(old.id)["status"] == "paused"
        v1.client.resume(old.id)
        assert tenant.answer("info")["total"] == 1 << 30


def test_under_v1_a_container_that_the_engine_thaws_is_frozen_again(
    old: RuntimeContainer, v1: RuntimeNamespace
) -> None:
    with old.started():
        v1.client.pause(old.id)
        assert old.call("resume").returncode == 0
        wait_until(lambda: old.through.state(old.id)["status"] == "paused")
        assert v1.client.tenant(old.id)["interventions"]
        v1.client.resume(old.id)


def test_under_v1_a_container_that_the_engine_paused_stays_paused(
    old: RuntimeContainer, v1: RuntimeNamespace
) -> None:
    with old.started() as tenant:
        assert old.call("pause").returncode == 0
        v1.client.pause(old.id)
        v1.client.resume(old.id)
        assert old.through.state(old.id)["status"] == "paused"
        assert old.call("resume").returncode == 0
        assert tenant.ask("info")["total"] == 1 << 30


@pytest.mark.parametrize("before", ["running", "paused by us", "paused by the engine"])
def test_under_v1_a_stop_reaches_a_frozen_container(
    old: RuntimeContainer, v1: RuntimeNamespace, before: str
) -> None:
    with old.started() as tenant:
        if before == "paused by us":
            v1.client.pause(old.id)
        elif before == "paused by the engine":
            assert old.call("pause").returncode == 0
        v1.client.stop(old.id, "KILL", 0)
        assert tenant.wait() != 0


def test_under_v1_a_removed_container_is_released_though_it_is_paused(
    old: RuntimeContainer, v1: RuntimeNamespace
) -> None:
    with old.started():
        v1.client.pause(old.id)
        old.remove()
        wait_until(lambda: old.row() is None)
