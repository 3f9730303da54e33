# SPDX-License-Identifier: Apache-2.0
"""Which process a PID in the driver's list is: never the one that reuses it."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity import pid_resolver, processes
from gpushare.daemon.identity.pid_resolver import PidResolver, ProcessOwners, device_clients
from tests.descriptors import open_count

from . import fakes
from .fake_process import FakeProcess

KEY = frozenset({"a" * 16})
NOBODYS = 4194305  # above PID_MAX_LIMIT


@pytest.fixture
def sightings() -> Iterator[PidResolver]:
    made = PidResolver()
    yield made
    made.close()


def keys(_: int) -> frozenset[str]:
    return KEY


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
        assert not sightings.is_there(before, keys)
    assert sightings.descriptor(program.pid) is None


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
    "cgroup",
    [
        ":/docker/x",
        ":/system.slice/docker-x.scope",
        "devices:/kubepods/burstable/pod1/x",
        "devices:/kubepods.slice/kubepods-pod1.slice/cri-containerd-x.scope",
    ],
)
def test_a_process_of_a_tenants_cgroup_or_beneath_it_is_the_tenants(
    cgroup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under v1 and v2, with a cgroup driver of either kind."""
    hierarchy, _, path = cgroup.partition(":")
    owners = ProcessOwners({"k": replace(fakes.entry(), key="k", state="bound", cgroup=cgroup)})
    monkeypatch.setattr(processes, "find_process", lambda _: None)
    for inside, found in (
        (path, {"k"}),
        (f"{path}/init", {"k"}),
        (f"{path}/a/b/c", {"k"}),
        (f"{path}2", set()),
        (path.rpartition("/")[0], set()),
    ):
        monkeypatch.setattr(processes, "cgroups_of", lambda _, at=inside: {hierarchy: at, "x": "/"})
        assert owners.all_of(7) == found


def test_a_process_in_two_tenants_cgroups_belongs_to_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = replace(fakes.entry(), key="a", state="bound", cgroup="devices:/x/a")
    other = replace(fakes.entry(), key="b", state="bound", cgroup="pids:/x/b")
    monkeypatch.setattr(
        processes, "cgroups_of", lambda _: {"devices": "/x/a", "pids": "/x/b/inner"}
    )
    owners = ProcessOwners({"a": one, "b": other})
    assert owners.all_of(7) == {"a", "b"}
    assert owners.of(7) is None


def test_a_nested_tenants_process_belongs_to_the_inner_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer = replace(fakes.entry(), key="a", state="bound", cgroup=":/x/a")
    inner = replace(fakes.entry(), key="b", state="bound", cgroup=":/x/a/docker/b")
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {"": "/x/a/docker/b/init"})
    assert ProcessOwners({"a": outer, "b": inner}).of(7) == "b"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at all descriptors of this process, which earlier tests may have given many threads."""
    monkeypatch.setattr(pid_resolver, "_OPEN_SECONDS", 60.0)


@pytest.mark.usefixtures("unhurried")
def test_a_client_has_the_device_mapped_or_a_node_of_the_driver_open(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(bytes(4096))
    simulated = device_clients({"GPUSHARE_SIM_DEVICE": str(device)}, Path("/"))
    assert not simulated(os.getpid())
    with device.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert simulated(os.getpid())
    # /dev/null is of the major 1, as nvidia's would be here
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 nvidia-uvm\n  4 tty\n\n")
    real = device_clients({}, tmp_path)
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


def test_descriptors_are_looked_at_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may have millions of them: what was not looked at may be the driver's."""
    looked: list[str] = []
    monkeypatch.setattr(pid_resolver, "_OPEN_SECONDS", 0.0)
    monkeypatch.setattr(pid_resolver, "_is_device", lambda path, _: looked.append(path))
    assert pid_resolver.has_open(os.getpid(), {195})
    assert looked == []


def test_a_process_that_is_first_listed_while_it_runs_is_a_client(
    program: FakeProcess,
) -> None:
    """Though it has passed its descriptor on, and closed it."""
    sightings = PidResolver(lambda _: False)
    sightings.look([], keys, 1)
    assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16
    sightings.close()
    after_a_gap = PidResolver(lambda _: False)
    assert after_a_gap.look([program.pid], keys, 1)[program.pid].key is None
    after_a_gap.close()


def test_the_descriptor_of_an_unlisted_process_is_closed(
    sightings: PidResolver, program: FakeProcess
) -> None:
    before = open_count()
    sightings.look([program.pid], keys, 1)
    sightings.look([], keys, 1)
    assert open_count() == before


def test_processes_are_attributed_again_when_tenants_are_added(
    sightings: PidResolver, program: FakeProcess
) -> None:
    assert sightings.look([program.pid], lambda _: frozenset(), 1)[program.pid].key is None
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    assert sightings.look([program.pid], keys, 2)[program.pid].key == "a" * 16
