# SPDX-License-Identifier: Apache-2.0
"""A GPU of another machine, through an engine of others: what its server's quota means for clients.

Without GPUSHARE_TEST_ENGINE, `./dev setup --all` builds no engine, and nothing here runs.
"""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from typing import Any

import pytest
import remote_engine

from tests.system.waiting import wait_until

from .conftest import ENGINE, VERSION, RemoteGpu

if not ENGINE.exists():
    pytest.skip(remote_engine.MISSING, allow_module_level=True)  # one line for all

GIB = 1 << 30
MIB = 1 << 20
QUOTA = {"memory": "2GiB"}
OUT_OF_MEMORY = 2


def used(lab: RemoteGpu) -> int:
    """Return the memory of the server's clients, by the driver."""
    return sum(process["bytes"] or 0 for process in lab.server["processes"])


@pytest.mark.parametrize("kind", ["container", "run"])
def test_the_quota_of_the_server_is_the_card_of_a_client(lab: RemoteGpu, kind: str) -> None:
    serving: AbstractContextManager[Any]
    serving = lab.serving(**QUOTA) if kind == "container" else lab.serving_by_run(**QUOTA)
    with serving, lab.asking() as client:
        info = client.ask("info")
        assert (info["cards"], info["total"], info["device_total"]) == (1, 2 * GIB, 2 * GIB)
        [card] = client.ask("smi")["cards"]
        assert card["total"] == 2 * GIB
        assert card["free"] == info["free"]
        assert client.ask(f"alloc {info['free'] + 1}")["code"] == OUT_OF_MEMORY
        assert client.ask(f"alloc {info['free']}")["code"] == 0
        assert client.ask("alloc 1")["code"] == OUT_OF_MEMORY
        assert lab.server["denied_allocations"] == 2
        assert client.ask("free")["code"] == 0
        assert client.ask(f"copy {3 * MIB}")["same"]


def test_two_clients_are_two_processes_of_one_tenant_and_share_its_quota(lab: RemoteGpu) -> None:
    with lab.serving(**QUOTA) as server, lab.asking() as one, lab.asking() as other:
        assert one.ask(f"alloc {512 * MIB}")["code"] == 0
        rest = other.ask("info")
        assert rest["total"] == 2 * GIB
        assert rest["free"] < GIB
        assert other.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        wait_until(lambda: len(lab.server["processes"]) == 2)
        assert lab.server["pid"] not in [process["pid"] for process in lab.server["processes"]]
        wait_until(lambda: used(lab) > 512 * MIB)
        assert [row["id"] for row in lab.far.client.tenants()] == [server.id]


def test_a_change_of_the_quota_reaches_a_running_client(lab: RemoteGpu) -> None:
    with lab.serving(**QUOTA) as server, lab.asking() as client:
        before = client.ask("info")["free"]
        lab.far.gpushare("set", server.id, "--memory", "3GiB")
        info = client.ask("info")
        assert (info["total"], info["free"]) == (3 * GIB, before + GIB)
        assert client.ask(f"alloc {before + MIB}")["code"] == 0


def test_kernels_of_a_client_get_the_share_of_the_server(lab: RemoteGpu) -> None:
    """Not faster than its share, however slow this machine is."""
    with lab.serving(**QUOTA, policy="fixed-share", cores="25"), lab.asking() as client:
        answer = client.ask(f"spin {5_000_000} 60")
        assert answer["code"] == 0
        assert answer["took_ns"] > 0.8 * answer["asked_ns"] / 0.25


def test_an_eviction_takes_the_memory_of_a_client_and_its_next_call_has_it_back(
    lab: RemoteGpu,
) -> None:
    with lab.serving(**QUOTA) as server, lab.asking() as client:
        assert client.ask(f"alloc {64 * MIB}")["code"] == 0
        assert client.ask("write 7")["code"] == 0
        lab.far.client.evict(server.id)
        wait_until(lambda: lab.taken() == (0, 0))
        answer = client.ask("check 7")
        assert (answer["code"], answer["different"]) == (0, 0)
        assert lab.server["eviction"] is None


def test_killed_clients_give_their_memory_back(lab: RemoteGpu) -> None:
    with lab.serving(**QUOTA):
        bundle = lab.client()
        with bundle.started() as client:
            assert client.ask(f"alloc {GIB}")["code"] == 0
            wait_until(lambda: used(lab) > GIB)
            bundle.call("delete", "--force")
            wait_until(lambda: lab.server["processes"] == [])
            with lab.asking() as other:
                assert other.ask(f"alloc {GIB}")["code"] == 0


@pytest.mark.parametrize("kind", ["container", "run"])
def test_a_killed_server_leaves_nothing_once_its_clients_have_ended(
    lab: RemoteGpu, kind: str
) -> None:
    """By `gpushare run` the processes of its clients live on, and so does its reservation."""
    serving: AbstractContextManager[Any]
    serving = lab.serving(**QUOTA) if kind == "container" else lab.serving_by_run(**QUOTA)
    with serving, lab.asking() as client:
        assert client.ask(f"alloc {GIB}")["code"] == 0
        pid = lab.server["pid"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        if kind == "run":
            assert client.ask(f"copy {MIB}")["same"]
            assert lab.taken()[0] == 2 * GIB
    wait_until(lambda: lab.far.client.tenants() == [])


@pytest.mark.parametrize("side", ["far", "near"])
def test_a_killed_gpushared_finds_everything_again(lab: RemoteGpu, side: str) -> None:
    stack = getattr(lab, side)
    with lab.serving(**QUOTA), lab.asking() as client:
        assert client.ask(f"alloc {GIB}")["code"] == 0
        before = [row["id"] for row in stack.client.tenants()]
        stack.end_daemon()
        assert client.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        stack.start_daemon()
        assert [row["id"] for row in stack.client.tenants()] == before
        assert lab.taken()[0] == 2 * GIB
        assert client.ask(f"copy {MIB}")["same"]


def test_an_engine_of_another_build_is_refused_by_its_version(lab: RemoteGpu) -> None:
    lab.configure("0" * 12)
    said = lab.client().refusal()
    lab.configure(VERSION)
    assert f"its SHA-256 is {VERSION[:16]}" in said
    assert "remote.engines.lupine.version is 000000000000" in said


def test_the_node_of_the_client_shows_the_server_and_takes_no_amounts(lab: RemoteGpu) -> None:
    assert lab.near.client.cards() == []
    with lab.serving(**QUOTA), lab.asking():
        assert "remote server lab (10.87.0.1:14833)" in lab.near.gpushare("ps").stdout
    assert "GPUSHARE_MEMORY" in lab.client(memory="1GiB").refusal()
