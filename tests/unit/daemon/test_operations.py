# SPDX-License-Identifier: Apache-2.0
"""bind, release, open and set, without a container: what they change, and what they refuse."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import Config
from gpushare.daemon import clock, processes, release
from gpushare.daemon.bind import NoSuchTenant, bind
from gpushare.daemon.cards import Card
from gpushare.daemon.host import Command, open_tenant
from gpushare.daemon.ledger import Entry
from gpushare.daemon.node import Node, NoDriver
from gpushare.daemon.placement import NoRoom, NoSuchCard
from gpushare.daemon.requests import Forbidden, Peer, Request, operation
from gpushare.daemon.resize import NotResizable, set_memory
from gpushare.daemon.tenant_socket import TenantSocket
from gpushare.protocol import Opened
from gpushare.quota import QuotaError

from . import fakes
from .fakes import GIB, MIB, FakeDriver, wait_until

ME = Command(name="train", uid=os.getuid(), rootless=False)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0), fakes.card(1))) as made:
        yield made


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "1000"])
    yield started
    started.kill()
    started.wait()


def opened(node: Node, **quota: str) -> Opened:
    asked = {key.replace("_", "-"): value for key, value in quota.items()}
    return open_tenant(ME, asked, node)


def entry_of(node: Node, tenant: Opened) -> Entry:
    return node.ledger.entries[tenant["key"]]


def grant(node: Node, tenant: Opened) -> Path:
    return node.mounts.path(tenant["key"]) / "grant"


def test_open_reserves_and_makes_the_pages(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    entry = entry_of(node, tenant)
    assert (entry.state, entry.engine, entry.name) == ("reserved", "host", "train")
    assert (entry.policy, entry.isolation) == ("fixed-share", "interposer")
    assert entry.quota == {"memory": "4GiB option", "cores": "30 option"}
    assert re.fullmatch(r"host-[0-9a-f]{8}", tenant["id"])
    directory = Path(tenant["directory"])
    assert sorted(path.name for path in directory.iterdir()) == ["grant", "socket", "status"]
    assert clock.boottime() < entry.expires <= clock.boottime() + node.config.timing.bind


def test_open_says_what_to_mount_in_order(node: Node, tmp_path: Path) -> None:
    tenant = opened(node, memory="4GiB")
    rows = [(row["source"], row["destination"], row["read_only"]) for row in tenant["mounts"]]
    lib, directory = str(node.libraries), tenant["directory"]
    assert rows == [
        (f"{tmp_path}/libcuda.so.1", "/opt/gpushare/driver/libcuda.so.1", True),
        (f"{tmp_path}/libnvidia-ml.so.1", "/opt/gpushare/driver/libnvidia-ml.so.1", True),
        (f"{lib}/libcuda.so.1", "/opt/gpushare/lib/libcuda.so.1", True),
        (f"{lib}/libnvidia-ml.so.1", "/opt/gpushare/lib/libnvidia-ml.so.1", True),
        (directory, "/opt/gpushare/tenant", True),
        (f"{directory}/status", "/opt/gpushare/tenant/status", False),
    ]


def test_a_whole_card_has_no_pages_and_no_mounts(node: Node) -> None:
    tenant = opened(node, count="1")
    assert (tenant["mounts"], tenant["directory"], tenant["isolation"]) == ([], "", "exclusive")
    assert entry_of(node, tenant).holdings[0].memory_bytes == 140 * GIB


def test_a_rootless_tenant_gets_no_whole_card(node: Node) -> None:
    with pytest.raises(QuotaError, match="run: whole cards are for root; use sudo"):
        open_tenant(replace(ME, rootless=True), {"count": "1"}, node)
    assert not node.ledger.entries


def test_a_rootless_tenant_is_advice_and_its_pages_its_own(node: Node) -> None:
    tenant = open_tenant(replace(ME, rootless=True), {"memory": "1GiB"}, node)
    assert tenant["isolation"] == "advice"
    assert (Path(tenant["directory"]) / "status").stat().st_mode & 0o777 == 0o600


def test_two_of_one_name_can_be_told_apart(node: Node) -> None:
    first, second = opened(node, memory="1GiB"), opened(node, memory="1GiB")
    names = {entry_of(node, tenant).name for tenant in (first, second)}
    assert len(names) == 2
    assert "train" in names


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        ({}, "asks for no GPU"),
        ({"cores": "30"}, "asks for cores, and for no memory"),
        ({"memory": "4Q"}, "is not a size"),
        ({"memory": "4GiB", "cores": "101"}, "is not a share of a card in percent"),
        ({"memory": "4GiB", "backend": "mig"}, "is not in this version"),
        ({"memory": "4GiB", "oversubscribe": "host"}, "is not in this version"),
        ({"memory": "4GiB", "placement": "topology"}, "is not in this version"),
        ({"memory": "4GiB", "memory-limit": "8GiB"}, "is a burst above memory"),
        ({"memorry": "4GiB"}, "did you mean"),
    ],
)
def test_a_bad_quota_reserves_nothing(node: Node, quota: dict[str, str], error: str) -> None:
    with pytest.raises(QuotaError, match=re.escape(error)):
        open_tenant(ME, quota, node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_no_room_and_no_such_card_reserve_nothing(node: Node) -> None:
    with pytest.raises(NoRoom, match="no card has room for 200 GiB"):
        opened(node, memory="200GiB")
    with pytest.raises(NoSuchCard, match="card 7 does not exist"):
        opened(node, memory="1GiB", devices="7")
    assert not node.ledger.entries


def test_a_quota_that_holds_no_context_is_refused_where_that_is_known(node: Node) -> None:
    node.loaded().contexts.learn(fakes.card(0), 500 * MIB)
    with pytest.raises(NoRoom, match="256 MiB holds not even one CUDA context: card 0 needs"):
        opened(node, memory="256MiB")


def test_no_driver_is_said_as_such(node: Node) -> None:
    node.driver, node.why_none = None, "no driver: no CDI spec"
    with pytest.raises(NoDriver, match="no CDI spec; see gpushare doctor"):
        opened(node, memory="1GiB")


def test_pages_that_cannot_be_made_leave_no_reservation(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.mounts, "make", full)
    with pytest.raises(OSError, match="No space left"):
        opened(node, memory="1GiB")
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_a_socket_that_cannot_be_made_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(TenantSocket, "listen", fail)
    with pytest.raises(OSError, match="Too many open files"):
        opened(node, memory="1GiB")
    assert not node.ledger.entries
    assert not node.tenants.pages
    assert node.mounts.made() == []


def test_bind_notes_the_process_and_doing_it_twice_changes_nothing(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    bound = bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    process = processes.look(program.pid)
    assert process is not None
    assert (bound.state, bound.pid, bound.starttime) == (
        "bound",
        program.pid,
        process.starttime,
    )
    assert bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node) == bound


@pytest.mark.parametrize("wrong", ["key", "id", "pid"])
def test_bind_of_what_is_not_reserved_is_refused(node: Node, wrong: str) -> None:
    tenant = opened(node, memory="1GiB")
    key = "f" * 16 if wrong == "key" else tenant["key"]
    identity = "other" if wrong == "id" else tenant["id"]
    pid = 4194304 if wrong == "pid" else os.getpid()
    with pytest.raises(NoSuchTenant):
        bind(key, identity, pid, os.getpid(), node)
    assert entry_of(node, tenant).state == "reserved"


def test_bind_to_a_second_process_is_refused(node: Node, program: subprocess.Popen[bytes]) -> None:
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    with pytest.raises(NoSuchTenant, match=f"is bound to process {program.pid}"):
        bind(tenant["key"], tenant["id"], os.getpid(), os.getpid(), node)


def request(op: str, uid: int, **fields: object) -> Request:
    return Request({"op": op, **fields}, Peer(os.getpid(), uid))


def test_a_user_binds_and_releases_its_own_host_process_only(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, tenant), uid=4321))
    key, identity = tenant["key"], tenant["id"]
    for op in ("bind", "release"):
        asked = request(op, 9999, key=key, id=identity, pid=program.pid)
        with pytest.raises(Forbidden, match="is for root"):
            operation(asked).run(asked, node)
    others = request("bind", 4321, key=key, id=identity, pid=program.pid)
    with pytest.raises(Forbidden, match="another user's"):
        operation(others).run(others, node)
    own = request("release", 4321, key=key, id=identity)
    operation(own).run(own, node)
    assert not node.ledger.entries


def test_release_of_a_reservation_gives_everything_back(node: Node) -> None:
    tenant = opened(node, memory="1GiB")
    asked = request("release", 0, key=tenant["key"], id=tenant["id"])
    for _ in range(2):
        operation(asked).run(asked, node)
        assert not node.ledger.entries
        assert node.mounts.made() == []
        assert not node.tenants.pages


def test_poststop_is_a_hint_while_the_process_lives(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    asked = request("release", 0, key=tenant["key"], id=tenant["id"])
    operation(asked).run(asked, node)
    assert entry_of(node, tenant).state == "bound"
    program.kill()
    program.wait()
    operation(asked).run(asked, node)
    assert not node.ledger.entries


def test_the_end_of_the_process_is_the_end_of_the_tenant(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    """Nobody says anything: no poststop, no release."""
    node.watch.ended = lambda key: node.decide.submit(lambda: release.process_ended(key, node))
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    loop = threading.Thread(target=node.loop.run)
    loop.start()
    try:
        program.kill()
        program.wait()
        wait_until(lambda: not node.ledger.entries)
    finally:
        node.loop.stop()
        loop.join()


def test_a_cgroup_that_still_has_processes_keeps_the_promise(
    node: Node, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    populated = [True]
    monkeypatch.setattr(
        processes.Cgroups, "is_populated", lambda _self, cgroup: populated[0] and cgroup == ":/x"
    )
    monkeypatch.setattr(processes, "own_cgroup", lambda *_: ":/x")
    tenant = opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, tenant), engine="runc"))
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    program.kill()
    program.wait()
    release.reconcile(node)
    assert tenant["key"] in node.ledger.entries
    populated[0] = False
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_reservation_that_is_never_bound_expires(node: Node) -> None:
    tenant = opened(node, memory="1GiB")
    release.reconcile(node)
    assert tenant["key"] in node.ledger.entries
    node.ledger.add(replace(entry_of(node, tenant), expires=clock.boottime() - 1))
    release.reconcile(node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_one_that_cannot_be_released_keeps_its_promise_and_holds_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = opened(node, memory="4GiB"), opened(node, memory="1GiB")
    monkeypatch.setattr(clock, "boottime", lambda: 1e9)
    remove = node.mounts.remove

    def busy(key: str) -> None:
        if key == stuck["key"]:
            raise OSError(errno.EBUSY, "busy", key)
        remove(key)

    with monkeypatch.context() as while_busy:
        while_busy.setattr(node.mounts, "remove", busy)
        release.reconcile(node)
        assert set(node.ledger.entries) == {stuck["key"]}
        assert other["key"] not in node.mounts.made()
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_directory_that_stays_does_not_keep_the_daemon_from_starting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", key)

    os.close(node.mounts.make("0" * 16, size_bytes=1 << 20))
    monkeypatch.setattr(node.mounts, "remove", full)
    release.adopt(node)
    assert node.mounts.made() == ["0" * 16]


def shown(node: Node) -> list[str]:
    """Return the ids that `gpushare ps -a` lists."""
    asked = request("tenants", os.getuid(), all=True)
    return [row["id"] for row in operation(asked).run(asked, node)[0]]


def test_a_container_that_got_nothing_says_so_when_it_is_named(node: Node, tmp_path: Path) -> None:
    entry = Entry(
        key="0" * 16, state="none", id="web", bundle=str(tmp_path), why="no GPU was asked"
    )
    node.ledger.add(entry)
    asked = request("tenant", 0, name="we")
    assert operation(asked).run(asked, node)[1]["tenant"]["why"] == "no GPU was asked"
    with pytest.raises(NotResizable, match="web has no GPU: no GPU was asked"):
        set_memory(entry, "4GiB", node)


def test_a_container_that_got_nothing_is_forgotten_with_its_bundle(
    node: Node, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    node.ledger.add(Entry(key="0" * 16, state="none", id="x", bundle=str(bundle), why="no GPU"))
    release.reconcile(node)
    assert shown(node) == ["x"]
    bundle.rmdir()
    assert shown(node) == []  # at once, not when it is swept
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_restarted_daemon_takes_over_what_runs_and_sweeps_the_rest(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB", cores="30")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
        waiting = opened(first, memory="1GiB")
        lost = opened(first, memory="2GiB")
        first.ledger.release(lost["key"])
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        assert set(second.ledger.entries) == {tenant["key"], waiting["key"]}
        assert set(second.tenants.pages) == {tenant["key"], waiting["key"]}
        assert second.mounts.made() == sorted([tenant["key"], waiting["key"]])
        assert second.tenants.pages[tenant["key"]].grant.generation == 1
        [room] = second.rooms()
        assert (room.promised_bytes, room.cores_free) == (5 * GIB, 70)


def test_a_tenant_that_ended_while_nobody_looked_is_released(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
    program.kill()
    program.wait()
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        wait_until(lambda: not second.ledger.entries)


def test_pages_that_are_lost_do_not_free_the_memory_of_who_runs(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
        first.mounts.remove(tenant["key"])
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        assert second.rooms()[0].promised_bytes == 4 * GIB
        assert not second.tenants.pages


def test_set_changes_the_page_the_ledger_and_what_the_container_gets_next(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    resized = set_memory(entry_of(node, tenant), "6GiB", node)
    assert resized.holdings[0].memory_bytes == 6 * GIB
    assert resized.quota["memory"] == "6GiB operator"
    assert node.ledger.entries[tenant["key"]] == resized
    assert node.overrides.of(tenant["id"]) == {"memory": "6GiB"}
    memory = int.from_bytes(grant(node, tenant).read_bytes()[4096 + 48 : 4096 + 56], "little")
    assert memory == 6 * GIB
    assert node.tenants.pages[tenant["key"]].grant.generation == 2


def test_set_refuses_what_there_is_no_room_for(node: Node) -> None:
    tenant = opened(node, memory="100GiB", devices="0")
    opened(node, memory="20GiB", devices="0")
    with pytest.raises(NoRoom, match=r"no room to grow by 21 GiB: card 0 has 20 of 140 GiB free"):
        set_memory(entry_of(node, tenant), "121GiB", node)
    assert entry_of(node, tenant).holdings[0].memory_bytes == 100 * GIB
    assert node.overrides.of(tenant["id"]) == {}
    set_memory(entry_of(node, tenant), "120GiB", node)


def test_set_refuses_less_than_is_used(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    pages = node.tenants.pages[tenant["key"]]
    pages.grant.set_measured(0, 3 * GIB, 0)
    with pytest.raises(QuotaError, match=r"is less than train uses, 3 GiB; .* set 3GiB or more"):
        set_memory(entry_of(node, tenant), "2GiB", node)
    set_memory(entry_of(node, tenant), "3GiB", node)


def test_set_does_not_count_what_a_process_held_that_has_died(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="4GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    pages = node.tenants.pages[tenant["key"]]
    living = processes.look(program.pid)
    assert living is not None
    for starttime in (living.starttime, living.starttime + 1):  # the second is nobody's
        os.pwrite(pages.status.fd, abi.STATUS_HEADER.pack(abi.ABI_MAGIC, abi.ABI_VERSION, 1), 0)
        record = abi.PROCESS.pack(program.pid, 0, starttime, 0, 0)
        os.pwrite(pages.status.fd, record, abi.status_process_offset(0))
        os.pwrite(pages.status.fd, abi.SLOT.pack(3 * GIB, 0, 0), abi.status_slot_offset(0, 0))
        if starttime == living.starttime:
            with pytest.raises(QuotaError, match="is less than train uses, 3 GiB"):
                set_memory(entry_of(node, tenant), "1GiB", node)
    assert set_memory(entry_of(node, tenant), "1GiB", node).holdings[0].memory_bytes == GIB


@pytest.mark.parametrize("text", ["4G", "0GiB", "", "many"])
def test_set_refuses_what_is_no_size(node: Node, text: str) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError):
        set_memory(entry_of(node, tenant), text, node)


def test_set_is_not_for_whole_cards(node: Node) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="has whole cards"):
        set_memory(entry_of(node, tenant), "4GiB", node)


def test_the_node_may_give_defaults(tmp_path: Path) -> None:
    config = Config(default_memory_bytes=2 * GIB, whole_is_share=True, reserve_bytes=GIB)
    card = Card(0, "GPU-0000", "H200", 4 * GIB, 0)
    with fakes.node(tmp_path, FakeDriver(card), config) as node:
        tenant = opened(node, count="1")
        assert entry_of(node, tenant).holdings[0].memory_bytes == 2 * GIB
        with pytest.raises(NoRoom, match=r"has 1 of 4 GiB free \(train 2, reserve 1\)"):
            opened(node, memory="2GiB")
