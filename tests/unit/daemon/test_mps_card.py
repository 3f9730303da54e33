# SPDX-License-Identifier: Apache-2.0
"""A card's MPS server: its containers, their limits, users, faults, bypasses, and their stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.mps import supervisor as supervisor_module
from gpushare.daemon.mps.control import ControlProgram, MpsError, TenantLimits
from gpushare.daemon.mps.supervisor import CardServer, ControlLog, MpsSupervisor, limits_of
from gpushare.daemon.node import MpsCardState, MpsRefused
from gpushare.daemon.observed import UsageView
from gpushare.daemon.operator import run_state
from gpushare.daemon.operator.reload import set_node_setting
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.daemon_status import status_row
from gpushare.quota.node_settings import RELEASED
from gpushare.settings import MPS

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver, card, entry
from .test_freezer import KEY, FakeCgroup, group, held
from .test_mps_placement import configured

__all__ = ["group", "held"]

CARD = card(0)
MODE = 'cards: {"0": {backend: mps}}'
TRUSTED = 'cards: {"0": {backend: mps, mps_trusted: true}}'


@dataclass
class FakeControl:
    """A control daemon that does what it is told; `fails` is why it does not."""

    program: ControlProgram
    limits: list[TenantLimits] = field(default_factory=list)
    state: str = "ACTIVE"
    pids: list[int] = field(default_factory=list)
    terminated: list[int] = field(default_factory=list)
    changed: str = ""
    fails: str = ""

    def enforce(self, every: Iterable[TenantLimits], servers: list[int] | None = None) -> str:
        assert servers in (None, [900])
        if self.fails:
            raise MpsError(self.fails)
        self.limits = [*every]
        return self.changed

    def servers(self) -> dict[int, str]:
        return {900: self.state}

    def clients(self) -> dict[int, int]:
        return dict.fromkeys(self.pids, 900)

    def terminate(self, client: int, _server: int) -> None:
        self.terminated.append(client)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(CARD), configured(TRUSTED, tmp_path)) as made:
        yield made


@dataclass
class Running:
    """A card whose control daemon runs, with what it publishes."""

    node: FakeDaemon
    server: CardServer
    control: FakeControl

    def client(self, key: int, uid: int = 0, **fields: Any) -> TenantRecord:
        record = replace(
            entry(f"{key:016x}", cores=fields.pop("cores", 0)),
            name=f"train-{key}",
            isolation=MPS,
            **fields,
        )
        self.node.ledger.add(record)
        self.server.admit(record.key, uid)
        return record

    def uses(self, *found: tuple[TenantRecord, int, bool]) -> None:
        """Have the driver list these processes."""
        self.node.observed.usage = UsageView(
            processes={
                record.key: ((CARD.uuid, ProcessUse(pid, GIB, 0, is_mps=is_mps)),)
                for record, pid, is_mps in found
            }
        )


@pytest.fixture
def running(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Running:
    published: dict[str, MpsCardState] = {}

    def publish(found: MpsCardState) -> None:
        published[CARD.uuid] = found
        node.node.mps.cards = dict(published)

    server = CardServer(CARD, Path("/none"), node, publish, node.freezing)
    server.runner.folders.make()
    program = ControlProgram(
        Path("/none"), server.runner.folders.pipe, server.runner.folders.log, CARD.uuid
    )
    program = replace(program, multiuser=True)
    control = FakeControl(program)
    server.runner.control = control  # type: ignore[assignment]
    monkeypatch.setattr(server.runner, "look", lambda: "")
    return Running(node, server, control)


@pytest.mark.parametrize(
    ("mib", "noted"), [(1023, ""), (2048, ""), (4608, "4608MiB, as 4GiB"), (1025, "as 1GiB")]
)
def test_a_limit_that_the_control_daemon_cuts_off_is_noted(mib: int, noted: str) -> None:
    limits = TenantLimits((mib << 20) + 1, 30)
    assert limits.variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={mib}M"
    assert noted in limits.note
    assert bool(limits.note) == bool(noted)


@pytest.mark.parametrize(
    ("policy", "cores", "of_card", "percent"),
    [
        ("fixed-share", 30, "", 30),
        ("fixed-share", 30, "burst-share", 100),
        ("burst-share", 30, "", 100),
        ("best-effort", 0, "", 100),
    ],
)
def test_only_a_fixed_share_is_a_ceiling(
    policy: str, cores: int, of_card: str, percent: int
) -> None:
    record = replace(entry(cores=cores), policy=policy)
    assert limits_of(record, of_card).cores_percent == percent
    priorities = [limits_of(replace(record, priority=one), "").priority for one in (0, 5, 6)]
    assert priorities == [0, 0, 1]


def test_a_changed_quota_is_a_changed_limit(running: Running) -> None:
    record = running.client(1, cores=30)
    [allocation] = record.allocations
    changed = replace(record, allocations=(replace(allocation, quota_bytes=8 * GIB),))
    running.node.ledger.put(changed)
    running.server.refresh()
    assert running.control.limits[0].memory_bytes == 8 * GIB
    running.control.fails = "no"
    running.node.ledger.put(record)
    running.server.refresh()  # it keeps its limits, and is tried again
    running.control.fails = ""
    running.server.refresh()
    assert running.control.limits[0].memory_bytes == 4 * GIB


def test_a_second_user_is_refused_with_who_holds_the_server(running: Running) -> None:
    running.control.program = replace(running.control.program, multiuser=False)
    running.client(1, uid=1000)
    running.client(2, uid=1000)
    with pytest.raises(MpsRefused, match=r"serves uid 1000 \(train-1\), .* uid 0: a driver before"):
        running.client(3, uid=0)


def test_without_trust_a_card_takes_one_container_of_each_user(
    running: Running, tmp_path: Path
) -> None:
    running.node.node.config = configured(MODE, tmp_path)
    running.client(1, uid=1000)
    running.client(2, uid=2000)
    for uid in (1000, 0):  # root commands every server
        with pytest.raises(MpsRefused, match=r"train-1 has host uid 1000; without mps_trusted, it"):
            running.client(3, uid=uid)
    running.node.node.config = configured(TRUSTED, tmp_path)
    running.client(4, uid=0)


@pytest.mark.parametrize(
    ("driver", "mode", "refused"),
    [("535.1", MODE, True), ("550.1", MODE, False), ("535.1", TRUSTED, False)],
)
def test_before_550_a_card_takes_only_containers_that_trust_each_other(
    tmp_path: Path, driver: str, mode: str, *, refused: bool
) -> None:
    found = FakeDriver(CARD)
    found.driver_version = driver
    with fakes.node(tmp_path, found, configured(mode, tmp_path)) as node:
        server = CardServer(CARD, Path("/none"), node, lambda _: None, node.freezing)
        distrust = server.distrust()
    assert distrust.startswith("driver 535 lets every container command") == refused


def test_a_refused_limit_refuses_the_container(running: Running) -> None:
    running.control.fails = "set_default: has no effect"
    with pytest.raises(MpsRefused, match=r"train-1 cannot be a client .*: set_default: has no"):
        running.client(1)


@pytest.mark.parametrize("fails", ["", "no answer within 10 s"])
def test_an_ended_container_has_no_grant(
    running: Running, capfd: pytest.CaptureFixture[str], fails: str
) -> None:
    record = running.client(1)
    running.control.fails = fails
    running.server.release(record.key)
    assert bool(running.control.limits) == bool(fails)
    assert running.node.node.mps.grant_of(record.key) is None
    assert capfd.readouterr().err.count("mps-command-failed") == bool(fails)


def test_only_the_clients_of_one_container_are_terminated(running: Running) -> None:
    one, other = running.client(1), running.client(2)
    running.control.pids = [11, 22]
    running.uses((one, 11, True), (other, 22, True))
    running.server.terminate(other.key)
    assert running.control.terminated == [22]


def test_a_fault_is_reported_once_and_over_with_a_new_client(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = running.client(1), running.client(2)
    running.control.pids = [11, 22]
    running.uses((one, 11, True), (other, 22, True))
    running.server.look()
    log = running.server.runner.folders.log / "output.log"
    log.write_text("[Server 900] Client process 11 encountered a fatal GPU error.\n")
    running.control.state = "FAULT"
    for _ in range(2):
        running.server.look()
    assert capfd.readouterr().err.count("mps-server-faulted") == 1
    mps = running.node.node.mps
    assert mps.loss_of(one.key) == "process 11 of it had a fatal fault"
    assert mps.loss_of(other.key).startswith("a fatal fault of train-1 (process 11) ended the")
    warnings = " ".join(status_row(running.node)["warnings"])
    assert "have ended: train-1, train-2. Restart them" in warnings
    running.control.state, running.control.pids = "ACTIVE", [33]
    running.uses((other, 33, True))
    running.server.look()
    assert (bool(mps.loss_of(one.key)), mps.loss_of(other.key)) == (True, "")


def test_a_process_that_is_no_client_is_reported_once(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    record = running.client(1)
    reported: list[tuple[str, int]] = []
    running.node.node.mps.bypassed.listeners.append(lambda key, pid: reported.append((key, pid)))
    running.uses((record, 11, False))
    for _ in range(2):
        running.server.look()
    assert running.node.node.mps.bypass_of(record.key) == 0  # it may be connecting
    for _ in range(3):
        running.server.look()
    assert running.node.node.mps.bypass_of(record.key) == 11
    assert reported == [(record.key, 11)]
    assert capfd.readouterr().err.count("tenant-bypasses-mps") == 1
    running.control.pids = [11]
    running.server.look()
    assert running.node.node.mps.bypass_of(record.key) == 0


@pytest.mark.parametrize(
    ("line", "pids"),
    [
        ("Client process 11 encountered a fatal GPU error.", [11]),
        ("fatal exception detected on device 0, culprit: client {11, 1}", [11]),
        ("NEW CLIENT 11 from user 0: Server already exists", []),
        ("Server encountered a fatal exception. Shutting down", []),
        ("Cmd:set_default_client_priority 1", []),
        ("Cmd:Client process 11 encountered a fatal GPU error.", []),
        ('Unknown command "a fatal fault of client 11"', []),
    ],
)
def test_the_log_names_who_caused_a_fault(tmp_path: Path, line: str, pids: list[int]) -> None:
    (tmp_path / "output.log").write_text(f"[2026-11-28 09:51:35.741 Server 12] {line}\n")
    log = ControlLog(tmp_path)
    assert log.culprits() == {*pids}
    log.keep()
    assert log.culprits() == set()


def test_a_line_is_read_by_a_later_gpushared_unless_it_was_reported(tmp_path: Path) -> None:
    with (tmp_path / "output.log").open("a") as file:
        for pid in (11, 12, 13):
            print(f"[Server 1] Client process {pid} had a fatal fault", file=file, flush=True)
            log = ControlLog(tmp_path)  # while it was stopped
            assert log.culprits() == {pid}
            if pid == 12:
                assert ControlLog(tmp_path).culprits() == {pid}  # stopped before it has reported
            log.keep()


def test_the_log_does_not_fill_the_run_directory(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    """Any user can have a control daemon log, also one that has no container."""
    path, line = running.server.runner.folders.log / "output.log", "[Control 1] Cmd:ps\n"
    for is_used in (False, True):
        if is_used:
            running.client(1)
            running.control.fails = "no answer within 10 s"
        with path.open("a") as file:
            file.write(line * 200_000)
        running.server.look()
        assert path.stat().st_blocks * 512 < (1_200_000 if is_used else 100_000)
    running.control.fails = ""
    with path.open("a") as file:
        file.write(line * 200_000 + "[Server 1] Client process 11 encountered a fatal GPU error.\n")
    running.control.pids = [11]
    running.control.state = "FAULT"
    running.server.look()
    assert '"pid":11' in capfd.readouterr().err


def test_a_line_that_a_client_has_written_blames_nobody(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its command has a line break, which the control daemon logs as it is."""
    one, other = running.client(1), running.client(2)
    running.control.pids = [11, 22]
    running.uses((one, 11, True), (other, 22, True))
    running.server.look()
    log = running.server.runner.folders.log / "output.log"

    def write(*pids: int) -> None:
        with log.open("a") as file:
            for pid in pids:
                file.write(f"[Server 900] Client process {pid} encountered a fatal GPU error.\n")

    for _ in range(3):  # without a fault
        write(11)
        running.server.look()
    assert not capfd.readouterr().err.count("mps-server-faulted")
    running.server.look()
    write(11, 22)  # beside one of its own
    running.control.state = "FAULT"
    for _ in range(3):
        running.server.look()
        write(11)  # after it
    assert capfd.readouterr().err.count("mps-server-faulted") == 1
    for key in (one.key, other.key):
        loss = running.node.node.mps.loss_of(key)
        assert loss == "a fatal fault of a client ended the work of all clients of the MPS server"


def test_a_machine_without_the_program_says_so(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "find_program", lambda _: None)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    assert "has no nvidia-cuda-mps-control" in node.node.mps.fault_of(card(0).uuid)


def test_no_server_holds_a_driver_that_is_about_to_be_unloaded(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        supervisor_module, "find_program", lambda _: pytest.fail("it looks for the program")
    )
    set_node_setting(RELEASED, "yes", "node label x", node.node, node.ledger)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    assert node.node.mps.fault_of(card(0).uuid) == ""


def test_a_container_that_is_no_tenant_of_such_a_card_is_not_admitted(node: FakeDaemon) -> None:
    with pytest.raises(MpsRefused, match="not in MPS mode any more"):
        node.servers.admit("0" * 16, 0)
    done: list[str] = []
    node.servers.terminate("0" * 16, lambda: done.append("killed"))
    assert done == ["killed"]  # a kill never waits for a server that is not there


def run_loop(node: FakeDaemon) -> None:
    """Have the loop do what is due, and what that has led to."""
    node.loop.settle()
    node.loop._run_due()
    node.freezing.run(lambda: None)


@pytest.fixture
def client(held: FakeDaemon) -> FakeDaemon:
    """A node whose one tenant is a client of an MPS server."""
    held.ledger.change(KEY, isolation=MPS)
    return held


@pytest.mark.parametrize("answers", [True, False])
def test_the_server_ends_its_work_before_it_is_killed(
    client: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Not while it has time, and a server that does not answer delays the kill by some seconds."""
    monkeypatch.setattr(run_state, "_send_signal", lambda *_: None)
    found: list[bool] = []

    def terminate(key: str, then: Callable[[], None]) -> None:
        assert key == KEY
        found.append(group.killed)
        if answers:
            then()

    monkeypatch.setattr(client.servers, "terminate", terminate)
    client.ask("stop", name=KEY, signal="TERM", timeout=3600)
    run_loop(client)
    assert (found, group.killed) == ([], False)
    client.ask("stop", name=KEY, signal="KILL", timeout=0)
    run_loop(client)
    assert (found, group.killed) == ([False], answers)
    if not answers:
        (promised,) = client.ledger.freezes.of(KEY)
        client.ledger.freezes.put(replace(promised, due=1.0))
        client.freezer.enforce()
    assert group.killed
