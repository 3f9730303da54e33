# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own enforces them, and a tenant that it cannot limit gets a note."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpushare.config import Config, HostMemory
from gpushare.daemon.cards.driver_client import (
    DriverError,
    ProcessUse,
)
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import bind as binding
from gpushare.daemon.lifecycle import driver_loader
from gpushare.daemon.lifecycle.bind import BackendFailed
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from gpushare.daemon.lifecycle.release import adopt_tenants, reconcile_tenants, release_tenant
from gpushare.daemon.node import LoadedDriver, NoDriver
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.daemon_status import status_row
from gpushare.host import driver
from gpushare.quota.errors import QuotaError
from tests.unit.host.layouts import DEBIAN, Host, ubuntu_server

from . import fakes
from .bundles import BundleToCreate
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver
from .operations import bound, opened

CGROUP = ":/tenant"


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program measures a context."""
    monkeypatch.setattr(DriverLoader, "_measure_contexts", lambda *_: None)


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cgroup in which every tenant of a test is."""
    line = f"30 1 0:30 / {tmp_path} rw - cgroup2 cgroup2 rw"
    cgroups = processes.Cgroups(line)
    monkeypatch.setattr(processes.Cgroups, "mounted", lambda: cgroups)
    monkeypatch.setattr(binding, "_cgroup", lambda *_: CGROUP)
    directory = tmp_path / "tenant"
    directory.mkdir()
    return directory


@dataclass
class LimitedNode:
    """A node whose driver has limits of its own."""

    node: FakeDaemon
    cgroup: Path

    @property
    def driver(self) -> FakeDriver:
        return self.node.driver

    def bound(self, **quota: str) -> str:
        return bound(self.node, FakeProcess(), **quota)["key"]

    @property
    def loader(self) -> DriverLoader:
        made = DriverLoader(self.node)
        made.sampler = self.node.sampler
        return made

    def isolation(self, key: str) -> str:
        return self.node.ledger.entries[key].isolation

    def set(self, key: str, quota: dict[str, str]) -> None:
        set_quota(self.node.ledger.entries[key], quota, self.node)

    def reconcile(self) -> None:
        reconcile_tenants(self.node, self.node.freezer)

    def held(self) -> tuple[int, int] | None:
        """Return the soft and the hard limit on card 0 in GiB; None: there is none."""
        found = self.driver.held.get((CARD.uuid, self.cgroup))
        return None if found is None else (found.soft_bytes // GIB, found.hard_bytes // GIB)


def limited_driver() -> FakeDriver:
    made = FakeDriver(fakes.card(0), fakes.card(1))
    made.has_limits = True
    return made


@pytest.fixture
def limited(tmp_path: Path, cgroup: Path) -> Iterator[LimitedNode]:
    with fakes.node(tmp_path, limited_driver()) as made:
        yield LimitedNode(made, cgroup)


def test_only_a_context_that_was_not_measured_is_measured_again(
    limited: LimitedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its measurement has lost the driver, which is back."""
    asked: list[LoadedDriver] = []
    monkeypatch.setattr(DriverLoader, "_measure_contexts", lambda _, driver: asked.append(driver))
    loader, driver = limited.loader, limited.node.node.loaded()
    loader.measure_missing()
    limited.node.decide.run(lambda: loader.take_over(limited.driver.generation))
    assert asked == [driver, limited.node.node.loaded()]
    driver.contexts.keep(fakes.card(0), 500 * MIB)
    loader.measure_missing()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("driver_has", "quota", "isolation", "reported"),
    [
        ({"rounds_to": 2 * MIB}, {"memory": "1000001KiB"}, "driver", 0),
        ({"rounds_to": GIB}, {"memory": "3500MiB"}, "interposer", 1),
        ({"refusal": "NVML: Insufficient Permissions"}, {"memory": "4GiB"}, "interposer", 1),
        ({"has_limits": False}, {"memory": "4GiB"}, "interposer", 0),
        ({}, {"memory": "4GiB", "backend": "interposer"}, "interposer", 0),
    ],
)
def test_without_limits_of_the_driver_the_interposer_holds_and_nothing_is_left(
    limited: LimitedNode,
    capfd: pytest.CaptureFixture[str],
    driver_has: dict[str, object],
    quota: dict[str, str],
    isolation: str,
    reported: int,
) -> None:
    """A driver may round a limit, but not change it."""
    advice = TenantRecord("0" * 16, "bound", "x", isolation="advisory", cgroup=CGROUP)
    assert limited.node.limits.set_in_driver(advice) == "advisory"
    vars(limited.driver).update(driver_has)
    assert limited.isolation(limited.bound(**quota)) == isolation
    assert (limited.held() is None) == (isolation == "interposer")
    assert capfd.readouterr().err.count('"event":"driver-limit-set-failed"') == reported


def test_a_request_for_the_driver_backend_fails_without_it(limited: LimitedNode) -> None:
    limited.driver.refusal = "no"
    with pytest.raises(BackendFailed, match="backend driver, and the driver does not enforce"):
        limited.bound(memory="4GiB", backend="driver")
    limited.driver.has_limits = False
    with pytest.raises(QuotaError, match=r"backend=driver: needs memory limits, which driver 580"):
        opened(limited.node, memory="4GiB", backend="driver")


def test_quota_changes_and_burst_limits_reach_the_driver(limited: LimitedNode) -> None:
    key = limited.bound(memory="10GiB", memory_limit="200GiB", devices="0")
    assert limited.held() == (10, 140)
    other = opened(limited.node, memory="100GiB", devices="0")
    assert limited.held() == (10, 40)
    limited.set(key, {"memory": "20GiB", "memory-limit": "30GiB"})
    assert limited.held() == (20, 30)
    limited.set(key, {"memory-limit": "200GiB"})
    release_tenant(other["key"], limited.node, "it has ended")
    limited.node.limits.update()
    assert limited.held() == (20, 140)


def test_managed_memory_beyond_the_quota_is_within_the_drivers_limit(limited: LimitedNode) -> None:
    """The driver counts it while it is in system memory."""
    node = limited.node.node
    node.config = replace(node.config, oversubscribe=HostMemory(32 * GIB))
    limited.bound(memory="4GiB", oversubscribe="host:8GiB")
    assert limited.held() == (4, 12)


def test_the_limits_end_with_the_tenant(limited: LimitedNode) -> None:
    release_tenant(limited.bound(memory="4GiB"), limited.node, "it has ended")
    assert limited.driver.held == {}
    key = limited.bound(memory="4GiB")
    limited.cgroup.rmdir()  # and the driver's limits with it
    release_tenant(key, limited.node, "it has ended")
    assert len(limited.driver.held) == 1


def test_a_daemon_that_starts_again_sets_them_again(tmp_path: Path, cgroup: Path) -> None:
    driver = limited_driver()
    with fakes.node(tmp_path, driver) as before:
        key = LimitedNode(before, cgroup).bound(memory="4GiB", devices="0")
    driver.held.clear()
    for has_limits, held, isolation in ((True, (4, 4), "driver"), (False, None, "interposer")):
        driver.has_limits = has_limits
        with fakes.node(tmp_path, driver) as after:
            adopt_tenants(after, after.freezer)
            limited = LimitedNode(after, cgroup)
            assert (limited.held(), limited.isolation(key)) == (held, isolation)
        driver.held.clear()


def test_a_new_driver_gets_all_limits_again(limited: LimitedNode) -> None:
    key = limited.bound(memory="10GiB", devices="0")
    loader = limited.loader
    for has_limits, version, isolation in (
        (True, "620.10", "driver"),
        (False, "580.1", "interposer"),
    ):
        limited.driver.held.clear()
        limited.driver.has_limits, limited.driver.driver_version = has_limits, version
        limited.node.decide.run(lambda: loader.take_over(limited.driver.generation))
        assert limited.held() == ((10, 10) if has_limits else None)
        assert limited.isolation(key) == isolation


def silent(*_: object) -> None:
    raise DriverError("the NVIDIA driver is not responding")


def test_limits_of_a_silent_driver_are_corrected_when_it_answers(
    limited: LimitedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was configured for more than the driver would allocate."""
    key = limited.bound(memory="10GiB", devices="0")
    with monkeypatch.context() as patched:
        patched.setattr(limited.driver, "set_limits", silent)
        limited.set(key, {"memory": "20GiB"})
        limited.reconcile()
        assert (limited.held(), limited.isolation(key)) == ((10, 10), "interposer")
    limited.reconcile()
    assert (limited.held(), limited.isolation(key)) == ((20, 20), "driver")
    limited.driver.held.clear()
    limited.reconcile()
    assert limited.driver.held == {}, "once is enough"


CARD, OTHER = fakes.card(0), fakes.card(1)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(CARD, OTHER)) as made:
        loader = DriverLoader(made)
        loader.sampler = made.sampler
        made.sampler._changed = lambda now: made.decide.submit(lambda: loader.take_over(now))
        made.sampler.look()
        yield made


def changed(changing: FakeDaemon) -> None:
    """Look, have the change understood, and look again."""
    changing.sampler.look()
    changing.decide.run(lambda: None)
    changing.sampler.look()


def health(changing: FakeDaemon) -> str:
    return changing.observed.usage.cards[CARD.uuid].health


def test_a_card_under_mig_keeps_its_reservations_and_takes_no_new_ones(
    changing: FakeDaemon,
) -> None:
    opened(changing, memory="4GiB", devices="0")
    changing.driver.parts = {CARD.uuid: ()}
    changed(changing)
    with pytest.raises(NoRoom, match="MIG is enabled"):
        opened(changing, memory="4GiB", devices="0")
    assert len(changing.ledger.entries) == 1
    [warning] = [text for text in status_row(changing)["warnings"] if "MIG" in text]
    assert "card 0" in warning
    changing.driver.parts = {}
    changed(changing)
    opened(changing, memory="4GiB", devices="0")


def test_reservations_follow_the_uuid_when_indices_change(changing: FakeDaemon) -> None:
    opened(changing, memory="4GiB", devices="0")
    changing.driver._cards = (replace(OTHER, index=0), replace(CARD, index=1))
    changed(changing)
    allocated = {room.card.index: room.allocated_bytes for room in changing.accounts.capacities()}
    assert allocated == {0: 0, 1: 4 * GIB}


def test_an_xid_that_makes_a_card_unfit_lasts_until_it_was_reset(changing: FakeDaemon) -> None:
    changing.driver.xids = ((CARD.uuid, 95),)
    changing.sampler.look()
    changing.sampler.look()
    assert health(changing).startswith("XID 95")
    changing.driver.lost = frozenset({CARD.uuid})
    changing.sampler.look()
    changing.driver.lost = frozenset()
    changing.sampler.look()
    assert health(changing) == "ok"


@pytest.mark.parametrize("number", [13, 31, 43, 45, 94, 12345])
def test_an_xid_of_a_program_is_counted_and_no_fault_of_the_card(
    changing: FakeDaemon,
    capfd: pytest.CaptureFixture[str],
    number: int,
) -> None:
    changing.driver.uses = {CARD.uuid: (ProcessUse(4242, GIB),)}
    changing.driver.xids = ((CARD.uuid, number), (CARD.uuid, number))
    changing.sampler.look()
    assert health(changing) == "ok"
    assert changing.sampler.health.xids == {(CARD.uuid, number): 2}
    said = [line for line in capfd.readouterr().err.splitlines() if "card-xid-reported" in line]
    assert [(json.loads(one)["xid"], json.loads(one)["processes"]) for one in said] == [
        (number, [4242])
    ] * 2


NEWER = "590.10.01"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with the driver that the node's NVML is of."""
    made = ubuntu_server(tmp_path / "host")
    upgrade(made, FakeDriver.driver_version)
    monkeypatch.setattr(driver_loader, "ROOT", made.root)
    return made


@pytest.fixture
def upgraded(tmp_path: Path, host: Host) -> Iterator[FakeDaemon]:
    """A node whose spec is its own, of that driver."""
    del host
    config = Config(cdi=tmp_path / "state/driver.json")
    with fakes.node(tmp_path, config=config) as made:
        find_files(made)
        yield made


def find_files(made: FakeDaemon) -> None:
    """Have the node know the driver's files that its configuration names."""
    files = driver_loader.load_driver_files(made.node.config)
    made.node.driver = replace(made.node.loaded(), files=files)
    made.node.fingerprint = driver_loader.driver_fingerprint(files, simulated=False)


def install(host: Host, version: str) -> None:
    """Put the files of another version in place, as a package manager does."""
    shutil.rmtree(host.root / DEBIAN.lstrip("/"))
    host.version = version
    host.write(f"{DEBIAN}/libc.so.6")
    host.libraries(DEBIAN, {"libcuda": "1", "libnvidia-ml": "1", "libnvidia-ptxjitcompiler": "1"})


def upgrade(host: Host, version: str) -> None:
    install(host, version)
    host.write("proc/driver/nvidia/version", f"NVRM version: x  Kernel Module  {version}  Wed\n")


def create(upgraded: FakeDaemon, folder: Path) -> str:
    """Create a container; return the real libcuda that it has."""
    container = BundleToCreate(folder, "GPUSHARE_MEMORY=4GiB", identity=folder.name)
    container.create(upgraded)
    mounts = {entry["destination"]: entry["source"] for entry in container.document()["mounts"]}
    return str(mounts["/.gpushare/driver/libcuda.so.1"])


def test_libraries_without_their_module_are_not_used(
    upgraded: FakeDaemon, host: Host, tmp_path: Path
) -> None:
    assert create(upgraded, tmp_path / "before").endswith(FakeDriver.driver_version)
    install(host, NEWER)
    with pytest.raises(NoDriver) as caught:
        create(upgraded, tmp_path / "meanwhile")
    text = str(caught.value)
    assert f"libraries are {NEWER}, and its kernel module is {FakeDriver.driver_version}" in text
    assert "reboot" in text
    assert len(upgraded.ledger.entries) == 1
    assert text in status_row(upgraded)["warnings"]


@pytest.mark.parametrize("node", ["", "dev/nvidiactl", "dev/dxg"])
def test_without_the_module_nvml_is_asked_only_where_it_makes_no_node(
    upgraded: FakeDaemon, host: Host, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, NVIDIA's NVML makes /dev/nvidiactl, which doctor would then warn of."""

    def loaded(*_: object) -> None:
        raise DriverError("was asked")

    monkeypatch.setattr(driver_loader, "Nvml", loaded)
    (host.root / "proc/driver/nvidia/version").unlink()
    if node:
        host.write(node)
    upgraded.node.driver = None
    DriverLoader(upgraded).load()
    why = "was asked" if node else "the kernel module nvidia is not loaded. Run modprobe nvidia"
    assert upgraded.node.no_driver_reason == f"no driver: {why}"


def test_a_new_driver_with_its_module_is_loaded_and_used(
    upgraded: FakeDaemon, host: Host, tmp_path: Path
) -> None:
    upgrade(host, NEWER)
    assert create(upgraded, tmp_path / "b").endswith(NEWER)
    assert upgraded.node.loaded().nvml.driver_version == NEWER
    assert not upgraded.node.driver_fault
    written = json.loads((upgraded.node.config.state_dir / "driver.json").read_text())
    assert any(NEWER in mount["hostPath"] for mount in written["containerEdits"]["mounts"])


def test_a_driver_whose_version_differs_from_its_files_is_not_used(
    upgraded: FakeDaemon, host: Host, tmp_path: Path
) -> None:
    upgraded.driver.version_of = lambda _: "585.1"
    upgrade(host, NEWER)
    with pytest.raises(NoDriver, match=f"libraries are {NEWER}, and the driver reports 585.1"):
        create(upgraded, tmp_path / "b")


def test_a_spec_of_another_program_is_never_overwritten(tmp_path: Path, host: Host) -> None:
    theirs = tmp_path / "nvidia.json"
    theirs.write_text(json.dumps(driver.find(host.root).cdi()))
    with fakes.node(tmp_path, config=Config(cdi=theirs)) as upgraded:
        find_files(upgraded)
        before = theirs.read_bytes()
        install(host, NEWER)
        with pytest.raises(NoDriver, match=f"nvidia-ctk cdi generate --output={theirs}"):
            create(upgraded, tmp_path / "b")
        assert theirs.read_bytes() == before
