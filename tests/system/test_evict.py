# SPDX-License-Identifier: Apache-2.0
"""Real containers give their GPU memory away, and go on with it as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import simulator
from gpushare.client import Client, DaemonUnreachable, RequestRefused
from gpushare.protocol import TenantStatus
from gpushare.simulator import CheckpointFault, CheckpointOperation
from gpushare.verify import ProbeTenant
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
MIB = 1 << 20
SEED = 7


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack(cards=2) as made:
        yield made


def configure(stack: Stack, **sections: Any) -> None:
    """Add sections to gpushare.yaml; the daemon is started, or reads it again."""
    said = yaml.safe_load(stack.config.read_text())
    timing = {**said.get("timing", {}), "reconcile_interval_seconds": 0.2}
    stack.config.write_text(yaml.safe_dump({**said, "timing": timing, **sections}))
    if stack.daemon is None:
        stack.start_daemon()
    else:
        Client(stack.socket).reload()


def row(stack: Stack, bundle: Bundle) -> TenantStatus:
    [found] = [one for one in Client(stack.socket).tenants() if one["id"] == bundle.id]
    return found


def state(stack: Stack, bundle: Bundle) -> str:
    """Return the state of a container's eviction, "" if it is not evicted."""
    evicted = row(stack, bundle)["evicted"]
    return "" if evicted is None else evicted["state"]


def waits(stack: Stack, bundle: Bundle) -> bool:
    """Whether a program of a container waits for its restore."""
    evicted = row(stack, bundle)["evicted"]
    return evicted is not None and evicted["waits_since"] is not None


@contextmanager
def holding(
    stack: Stack, memory: str, mib: int = 64, **quota: str
) -> Iterator[tuple[Bundle, ProbeTenant]]:
    """A running container with known contents in its GPU memory."""
    asked = {"memory": memory, **{key.rstrip("_"): value for key, value in quota.items()}}
    bundle = Bundle(stack, quota={key: value for key, value in asked.items() if value})
    try:
        with bundle.run() as tenant:
            assert tenant.start()["code"] == 0
            assert tenant.ask(f"alloc {mib * MIB}")["code"] == 0
            assert tenant.ask(f"write {SEED}")["code"] == 0
            yield bundle, tenant
    finally:
        bundle.remove()


def is_intact(tenant: ProbeTenant) -> bool:
    answer = tenant.ask(f"check {SEED}")
    return (answer["code"], answer["different"]) == (0, 0)


def available(stack: Stack, index: int = 0) -> int:
    return Client(stack.socket).cards()[index]["available_bytes"]


def test_a_sleeping_container_gives_its_memory_to_another_and_continues(own: Stack) -> None:
    configure(own)
    client = Client(own.socket)
    with holding(own, "100GiB", devices="0") as (bundle, tenant):
        before = available(own)
        assert client.evict(bundle.id, "lunch")["id"] == bundle.id
        assert state(own, bundle) == "evicted"
        assert available(own) == before + 100 * GIB
        assert client.cards()[0]["evicted_bytes"] >= 64 * MIB
        with holding(own, "100GiB", devices="0") as (_, other):
            tenant.tell(f"check {SEED}")  # it waits: the card is full
            wait_until(lambda: waits(own, bundle))
            assert is_intact(other)
        answer = tenant.answer("check")  # the other one has ended
        assert (answer["code"], answer["different"]) == (0, 0)
        assert state(own, bundle) == ""
        assert available(own) == before
    events = [one["event"] for one in client.history(bundle.id)]
    assert "tenant-evicted" in events
    assert "tenant-restored" in events


def test_a_call_gets_the_memory_back_at_once_where_there_is_room(own: Stack) -> None:
    configure(own)
    with holding(own, "4GiB") as (bundle, tenant):
        for _ in range(3):
            Client(own.socket).evict(bundle.id)
            assert is_intact(tenant)
            assert state(own, bundle) == ""
        Client(own.socket).evict(bundle.id, hold=True)
        tenant.tell(f"check {SEED}")
        wait_until(lambda: waits(own, bundle))
        assert Client(own.socket).restore(bundle.id)["evicted"] is None
        assert tenant.answer("check")["different"] == 0


def test_the_start_of_an_online_container_evicts_an_offline_one(own: Stack) -> None:
    configure(own, evict={"offline": True})
    with holding(own, "100GiB", devices="0") as (batch, tenant):
        with holding(own, "100GiB", devices="0", class_="online") as (_, online):
            assert state(own, batch) == "evicted"
            assert is_intact(online)
        assert is_intact(tenant)
        [evicted] = [
            one for one in Client(own.socket).history(batch.id) if one["event"] == "tenant-evicted"
        ]
    assert evicted["fields"]["cause"] == "offline"
    assert evicted["fields"]["reason"].endswith("had no room")


def test_an_idle_container_is_evicted_for_any_other(own: Stack) -> None:
    configure(own, idle={"after": "1s", "action": "evict"})
    with holding(own, "100GiB", devices="0") as (notebook, tenant):
        wait_until(lambda: row(own, notebook)["idle_since"] is not None)
        with holding(own, "100GiB", devices="0"):
            assert state(own, notebook) == "evicted"
        assert is_intact(tenant)
        assert state(own, notebook) == ""


def test_a_container_moves_to_another_card_and_a_card_is_drained(own: Stack) -> None:
    configure(own, evict={"moves": True})
    client = Client(own.socket)
    with holding(own, "100GiB", devices="0") as (bundle, tenant):
        moved = client.move(bundle.id, "1")
        assert [card["index"] for card in moved["cards"]] == [1]
        assert is_intact(tenant)
        assert tenant.ask(f"alloc {MIB}")["code"] == 0
        assert tenant.ask(f"write {SEED}")["code"] == 0
        wait_until(lambda: row(own, bundle)["processes"][0]["cards"][0]["index"] == 1)
        argv = bundle.argv("exec", bundle.id, PROGRAM, "context")
        started = subprocess.run(
            argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        )
        assert json.loads(started.stdout.splitlines()[-1])["code"] == 0, started
        with pytest.raises(RequestRefused, match="is on card 1 already"):
            client.move(bundle.id, "1")
        with holding(own, "100GiB", devices="0"), pytest.raises(RequestRefused, match="card 0"):
            client.move(bundle.id, "0")
        assert is_intact(tenant)
        argv = [*own.cli, "card", "drain", "1", "--move"]
        drained = subprocess.run(
            argv, capture_output=True, text=True, check=True, env=own.environment
        )
        assert drained.stdout == "card 1 is cordoned and empty\n"
        assert [card["index"] for card in row(own, bundle)["cards"]] == [0]
        assert is_intact(tenant)


def test_a_container_without_the_other_cards_node_stays(own: Stack) -> None:
    configure(own)
    with holding(own, "4GiB", devices="0") as (bundle, tenant):
        with pytest.raises(RequestRefused, match="has no device node of card 1"):
            Client(own.socket).move(bundle.id, "1")
        assert state(own, bundle) == ""
        assert is_intact(tenant)


def test_what_does_not_fit_host_memory_is_refused_and_continues(own: Stack) -> None:
    configure(own, evict={"host_memory": "32MiB"})
    with holding(own, "4GiB") as (bundle, tenant):
        with pytest.raises(RequestRefused, match=r"evict\.host_memory is 32 MiB"):
            Client(own.socket).evict(bundle.id)
        configure(own, evict={"host_memory": "1GiB"})
        limited = Bundle(own, quota={"memory": "4GiB"})
        limited.config["linux"].setdefault("resources", {})["memory"] = {"limit": 256 * MIB}
        limited.save()
        with limited.run() as other:
            assert other.start()["code"] == 0
            assert other.ask(f"alloc {GIB}")["code"] == 0
            configure(own, evict={"host_memory": "8GiB"})
            with pytest.raises(RequestRefused, match="the container's memory limit leaves"):
                Client(own.socket).evict(limited.id)
        limited.remove()
        assert is_intact(tenant)


def test_managed_memory_and_whole_cards_are_refused(own: Stack) -> None:
    configure(own)
    client = Client(own.socket)
    with holding(own, "4GiB", devices="0") as (bundle, tenant):
        assert tenant.ask(f"alloc cuMemAllocManaged {MIB}")["code"] == 0
        with pytest.raises(RequestRefused, match="managed memory"):
            client.evict(bundle.id)
        with holding(own, "", devices="1") as (whole, _):
            reason = pytest.raises(RequestRefused, match="whole cards")
            with reason:
                client.evict(whole.id)
        assert state(own, bundle) == ""


def ask_for(stack: Stack, step: str, name: str) -> None:
    """Ask for a step of a daemon that is killed meanwhile."""
    with suppress(DaemonUnreachable):
        getattr(Client(stack.socket), step)(name)


@pytest.mark.parametrize("step", ["evict", "restore"])
def test_a_killed_daemon_continues_where_it_was(own: Stack, step: str) -> None:
    configure(own)
    with holding(own, "100GiB", mib=256, devices="0") as (bundle, tenant):
        if step == "restore":
            Client(own.socket).evict(bundle.id, hold=True)
        assert own.daemon is not None
        call = threading.Thread(target=ask_for, args=(own, step, bundle.id))
        call.start()
        if step == "evict":
            wait_until(lambda: state(own, bundle) != "")
        else:
            wait_until(lambda: state(own, bundle) != "evicted")
        own.daemon.process.send_signal(signal.SIGKILL)
        own.daemon.process.wait()
        call.join()
        own.start_daemon()
        wait_until(lambda: state(own, bundle) in {"evicted", ""})
        is_evicted = state(own, bundle) == "evicted"
        assert (available(own) > 100 * GIB) == is_evicted
        if is_evicted:
            Client(own.socket).restore(bundle.id)
        assert is_intact(tenant)


def inject(stack: Stack, operation: CheckpointOperation, effect: CheckpointFault) -> None:
    """Have the next call of that kind for a process of card 0 go wrong; 999: CUDA_ERROR_UNKNOWN."""
    simulator.fail(
        Path(stack.env["GPUSHARE_SIM_DEVICE"]),
        checkpoint_faults=1,
        checkpoint_operation=operation,
        checkpoint_effect=effect,
        checkpoint_error=999,
    )


@pytest.mark.parametrize("operation", ["LOCK", "CHECKPOINT"])
def test_a_driver_that_refuses_leaves_the_container_as_it_was(own: Stack, operation: str) -> None:
    configure(own)
    with holding(own, "4GiB", devices="0") as (bundle, tenant):
        inject(own, CheckpointOperation[operation], CheckpointFault.REFUSES)
        with pytest.raises(RequestRefused, match="It goes on as before"):
            Client(own.socket).evict(bundle.id)
        assert state(own, bundle) == ""
        assert is_intact(tenant)
        Client(own.socket).evict(bundle.id, hold=True)
        assert state(own, bundle) == "evicted"


def test_a_process_that_the_driver_loses_is_shown_and_ends_by_the_operators_choice(
    own: Stack,
) -> None:
    configure(own)
    client = Client(own.socket)
    with holding(own, "100GiB", devices="0") as (bundle, _):
        client.evict(bundle.id, hold=True)
        inject(own, CheckpointOperation.RESTORE, CheckpointFault.FAILS)
        with pytest.raises(RequestRefused, match="gpushare stop"):
            client.restore(bundle.id)
        assert state(own, bundle) == "failed"
        assert any("has lost its GPU memory" in one for one in row(own, bundle)["warnings"])
        assert available(own) < 100 * GIB
        client.stop(bundle.id, "KILL", 0)
        wait_until(lambda: available(own) > 100 * GIB)
