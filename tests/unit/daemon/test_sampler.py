# SPDX-License-Identifier: Apache-2.0
"""What the driver says, put beside what tenants say, and which process each of its PIDs is."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import pid_resolver, processes
from gpushare.daemon.identity.pid_resolver import PidResolver, ProcessOwners, device_clients
from gpushare.daemon.observe.non_tenant import NonTenantUse
from gpushare.daemon.observed import UsageView
from gpushare.daemon.pages.tenants import CardGrant, Pages
from gpushare.daemon.views.rows import card_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol.rows import TenantStatus

from . import fakes, registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver

CARD = fakes.card().uuid


KEY = "0" * 16


@dataclass
class SampledTenant:
    """A bound tenant without a cgroup of its own, that uses 1 GiB in one context."""

    node: FakeDaemon
    pages: Pages
    child: int  # the process of the tenant: a descendant of ours, which is the bound one
    starttime: int

    def claim(self, used: int, *, denied: int = 0, pid: int = 0, starttime: int = 0) -> None:
        fd = self.pages.status.fd
        process = pid or self.child, starttime or self.starttime
        registered.register(fd, 0, *process, denied=denied)
        registered.hold(fd, 0, used, contexts=1)

    def looks(self, count: int = 1) -> list[int]:
        """Look so often; return the overhead after each, in MiB."""
        told = []
        for _ in range(count):
            self.node.sampler.look()
            told.append(self.pages.grant.overhead_bytes(0) // MIB)
        return told

    def uses(self, size: int | None, *others: ProcessUse) -> None:
        """Have the driver say so of its process."""
        self.node.driver.uses = {CARD: (ProcessUse(self.child, size, 40), *others)}

    @property
    def usage(self) -> UsageView:
        return self.node.observed.usage

    @property
    def row(self) -> TenantStatus:
        return tenant_status(self.node.ledger.entries[KEY], self.node)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver()) as made:
        yield made


@pytest.fixture
def tenant(
    node: FakeDaemon, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> SampledTenant:
    monkeypatch.setattr(processes, "may_map", lambda pid, _inode: pid == program.pid)
    entry = replace(fakes.entry(), state="bound", pid=program.pid, starttime=program.starttime)
    node.ledger.add(entry)
    directory = node.mounts.make(entry.key, size_bytes=1 << 20)
    pages = Pages.make(directory, entry.key, [CardGrant(CARD, 4 * GIB, 0, 0)])
    node.tenants.add(entry.key, pages)
    made = SampledTenant(node, pages, program.pid, program.starttime)
    made.claim(GIB)
    return made


def test_overhead_is_the_drivers_use_above_the_claims(tenant: SampledTenant) -> None:
    """An earlier daemon's figure stands until there are enough samples."""
    tenant.pages.grant.set_measured(0, 500 * MIB, 0)
    tenant.uses(GIB + 600 * MIB)
    assert tenant.looks(4) == [500, 500, 500, 600]
    assert tenant.usage.utilization == {(KEY, CARD): 40}


def test_memory_allocated_during_a_sample_is_not_overhead(tenant: SampledTenant) -> None:
    sizes = iter(range(2, 100))

    def grow() -> None:
        used = next(sizes) * GIB
        tenant.uses(used + 500 * MIB)
        tenant.claim(used)

    tenant.node.driver.during = grow
    assert max(tenant.looks(8)) <= 500


def test_a_silent_card_reserves_no_contexts(tenant: SampledTenant) -> None:
    """Without an answer all stays: overhead, non-tenant use, and the attribution of processes."""
    tenant.uses(GIB + 500 * MIB, ProcessUse(os.getpid(), GIB))
    tenant.node.driver.busy = {CARD: 45}
    tenant.looks(4)
    assert next(card_rows(tenant.node))["utilization"] == 45
    (process,) = tenant.row["processes"]
    assert process["cards"] == [{"index": 0, "bytes": GIB + 500 * MIB, "utilization": 40}]
    tenant.node.driver.lost = frozenset({CARD})
    assert tenant.looks() == [500]
    assert tenant.usage.cards[CARD].non_tenant_bytes == GIB
    assert tenant.usage.cards[CARD].health == "GPU is lost"
    assert next(card_rows(tenant.node))["utilization"] is None
    tenant.node.driver.lost = frozenset()
    tenant.uses(None)  # no figure changes none
    assert tenant.looks() == [500]
    assert tenant.usage.cards[CARD].health == "ok"


def test_every_sample_is_a_heartbeat(tenant: SampledTenant, tmp_path: Path) -> None:
    grant = next(tmp_path.glob("run/tenants/*/pages/grant"))
    before = time.monotonic_ns()
    tenant.looks()
    at = abi.GRANT_HEADER_HEARTBEAT_NS
    assert before <= int.from_bytes(grant.read_bytes()[at : at + 8], "little")
    assert tenant.pages.grant.generation.value == 1


def test_refusals_of_a_process_are_counted_after_its_end(tenant: SampledTenant) -> None:
    def denied() -> int:
        return tenant.row["denied_allocations"]

    tenant.claim(GIB, pid=1, starttime=1, denied=3)  # dead, and the first look reaps it
    tenant.looks()
    assert (tenant.pages.claims(), denied()) == ((), 3)
    # The last but one is another program in the same process: from 0.
    for claimed, counted in ((2, 5), (0, 5), (1, 6)):
        tenant.claim(GIB, denied=claimed)
        assert denied() == counted


@pytest.mark.parametrize(
    ("ends", "fell", "counted"),
    [
        (True, 8, 0),  # it ended, and the driver has the memory again
        (True, 0, 4),  # ... and has not: something else of the process is there, for a while
        (True, 3, 2.5),
        (False, 8, 4),  # it may take it again
    ],
)
def test_memory_of_a_process_that_has_ended_is_free_when_the_driver_says_so(
    ends: bool, fell: int, counted: float
) -> None:
    program, non_tenants = FakeProcess(), NonTenantUse()
    there = (ProcessUse(program.pid, 8 * GIB),)
    for at in (0, 1):
        non_tenants.observe(at, CARD, there, first=True, used_bytes=20 * GIB)
    if ends:
        program.kill()
    usage = non_tenants.observe(61, CARD, (), first=False, used_bytes=(20 - fell) * GIB)
    assert usage.non_tenant_bytes == counted * GIB


def test_a_process_that_was_a_tenants_takes_its_time_to_leave() -> None:
    """Released, and still in the driver's list: no room may be lost over it."""
    non_tenants = NonTenantUse()
    leaving = (ProcessUse(99999, 4 * GIB),)
    non_tenants.excuse(99999, 0)
    for look in range(1, 30):
        assert non_tenants.observe(look / 4, CARD, leaving, first=False).non_tenant_bytes == 0
    non_tenants.observe(11, CARD, leaving, first=False)
    assert non_tenants.observe(12, CARD, leaving, first=False).non_tenant_bytes == 4 * GIB


def test_the_cgroup_identifies_the_tenant_of_a_process(
    monkeypatch: pytest.MonkeyPatch, node: FakeDaemon
) -> None:
    monkeypatch.setattr(PidResolver, "_open", lambda _, pid: processes.Process(pid, 1, 1, pid))
    paths = {7: {"": "/x/a/nested"}, 8: {"": "/x/ab"}, 9: {"devices": "/x/a"}}
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: paths.get(pid, {}))
    monkeypatch.setattr(processes, "find_process", lambda pid: None)  # noqa: ARG005
    entry = replace(fakes.entry(), state="bound", pid=4, cgroup=":/x/a")
    node.ledger.add(entry)
    node.driver.uses = {CARD: tuple(ProcessUse(pid, GIB) for pid in paths)}
    node.sampler.look()
    owned = [use.pid for _, use in node.observed.usage.processes[entry.key]]
    assert owned == [7]
    assert {one.pid for one in node.observed.usage.cards[CARD].non_tenants} == {8, 9}


def test_a_failed_sample_is_followed_by_another(
    tenant: SampledTenant, capfd: pytest.CaptureFixture[str]
) -> None:
    """Until then the last figures are shown, as stale."""

    def fail() -> None:
        raise RuntimeError("what nobody thought of")

    tenant.uses(2 * GIB)
    tenant.looks(4)
    for during, fault, why in ((fail, "", "RuntimeError"), (lambda: None, "hangs", "hangs")):
        tenant.node.driver.during, tenant.node.driver.fault = during, fault
        assert tenant.looks(2) == [1024, 1024]
        assert why in tenant.usage.stale
        assert KEY in tenant.usage.processes
    assert capfd.readouterr().err.count("driver-sample-failed") == 1
    tenant.node.driver.fault = ""
    tenant.looks()
    assert not tenant.usage.stale


KEYS = frozenset({"a" * 16})


NOBODYS = 4194305  # above PID_MAX_LIMIT


@pytest.fixture
def sightings() -> Iterator[PidResolver]:
    made = PidResolver()
    yield made
    made.close()


def keys(_: int) -> frozenset[str]:
    return KEYS


def end(program: FakeProcess | subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


def test_an_exited_process_is_a_ghost_while_it_is_listed(
    sightings: PidResolver, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has its PID now: this test itself."""
    before = sightings.look([program.pid], keys, 1)[program.pid]
    end(program)
    me = processes.find_process(os.getpid())
    assert me is not None
    monkeypatch.setattr(processes, "find_process", lambda _: replace(me, pid=program.pid))
    for _ in range(3):
        found = sightings.look([program.pid], keys, 1)[program.pid]
        assert (found.process, found.ended) == (None, before.process)


def test_a_process_dead_at_first_sight_is_a_ghost_while_it_is_listed(
    sightings: PidResolver,
    program: FakeProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = processes.find_process
    monkeypatch.setattr(processes, "find_process", lambda _: None)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    monkeypatch.setattr(processes, "find_process", looked)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    assert sightings.look([], keys, 1) == {}
    assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16


def test_without_a_descriptor_no_process_is_identified(
    sightings: PidResolver, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", none_left)
        assert sightings.look([program.pid], keys, 1) == {}
    assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16


def test_a_process_without_driver_descriptors_is_no_client(
    program: FakeProcess,
) -> None:
    holding: list[int] = []
    sightings = PidResolver(holding.__contains__)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    holding.append(program.pid)
    assert sightings.look([program.pid], keys, 2)[program.pid].key == "a" * 16
    holding.clear()  # a client ends with its descriptor: it is not looked for again
    assert sightings.look([program.pid], keys, 3)[program.pid].key == "a" * 16
    sightings.close()


@pytest.mark.parametrize(
    ("others", "paths", "owners"),
    [
        ("pids:/x/b", {"devices": "/x/a", "pids": "/x/b/inner"}, {"a", "b"}),  # is neither's
        ("devices:/x/a/docker/b", {"devices": "/x/a/docker/b/init"}, {"b"}),
    ],
    ids=["two cgroups", "a nested one"],
)
def test_a_process_belongs_to_the_inner_of_two_tenants_or_to_both(
    monkeypatch: pytest.MonkeyPatch, others: str, paths: dict[str, str], owners: set[str]
) -> None:
    one = replace(fakes.entry(), key="a", state="bound", cgroup="devices:/x/a")
    other = replace(fakes.entry(), key="b", state="bound", cgroup=others)
    monkeypatch.setattr(processes, "cgroups_of", lambda _: paths)
    assert ProcessOwners({"a": one, "b": other}).all_of(7) == owners


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at all descriptors of this process, which earlier tests may have given many threads."""
    monkeypatch.setattr(pid_resolver, "_OPEN_SECONDS", 60.0)


@pytest.mark.usefixtures("unhurried")
def test_a_client_has_a_node_of_the_driver_open(tmp_path: Path) -> None:
    # /dev/null is of the major 1, as nvidia's would be here
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 nvidia-uvm\n  4 tty\n\n")
    real = device_clients(tmp_path)
    with Path("/dev/null").open("rb"):
        assert real(os.getpid())
    (tmp_path / "proc/devices").write_text("Character devices:\n 195 nvidia\n\nBlock devices:\n")
    assert not real(os.getpid())
    (tmp_path / "proc/devices").write_text("Character devices:\n  4 tty\n\nBlock devices:\n")
    assert real(os.getpid())  # no such driver is loaded: nothing can be told


@pytest.mark.usefixtures("unhurried")
def test_an_unreadable_process_counts_as_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not pid_resolver.has_open(NOBODYS, {195})
    assert not pid_resolver.has_open(os.getpid(), {195})
    for code in (errno.EACCES, errno.EMFILE, errno.EIO):

        def refused(_: str, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as broken:
            broken.setattr(os, "scandir", refused)
            assert pid_resolver.has_open(os.getpid(), {195})
