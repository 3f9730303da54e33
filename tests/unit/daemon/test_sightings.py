# SPDX-License-Identifier: Apache-2.0
"""Who a number in the driver's list is: never who has it after another."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.holders import holders
from gpushare.daemon.identity.owners import Owners
from gpushare.daemon.identity.sightings import Sightings

from . import fakes

KEY = frozenset({"a" * 16})
NOBODYS = 4194305  # above PID_MAX_LIMIT


@pytest.fixture
def sightings() -> Iterator[Sightings]:
    made = Sightings()
    yield made
    made.close()


def keys(_: int) -> frozenset[str]:
    return KEY


def end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


def test_a_process_is_who_its_cgroup_says(
    sightings: Sightings, program: subprocess.Popen[bytes]
) -> None:
    found = sightings.look([program.pid], keys, 1)[program.pid]
    assert found.process == processes.look(program.pid)
    assert found.key == "a" * 16
    assert sightings.is_there(found, keys)
    assert not sightings.is_there(found, lambda _: frozenset())


def test_who_has_ended_is_a_ghost_as_long_as_it_is_listed(
    sightings: Sightings, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has its number now: here, this test itself."""
    before = sightings.look([program.pid], keys, 1)[program.pid]
    end(program)
    me = processes.look(os.getpid())
    assert me is not None
    monkeypatch.setattr(processes, "look", lambda _: replace(me, pid=program.pid))
    for _ in range(3):
        found = sightings.look([program.pid], keys, 1)[program.pid]
        assert (found.process, found.key) == (None, None)
        assert not sightings.is_there(before, keys)
    assert sightings.descriptor(program.pid) is None


def test_who_was_dead_at_first_sight_is_a_ghost_until_it_is_listed_no_more(
    sightings: Sightings,
    program: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = processes.look
    monkeypatch.setattr(processes, "look", lambda _: None)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    monkeypatch.setattr(processes, "look", looked)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    assert sightings.look([], keys, 1) == {}
    assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16


def test_a_number_that_no_process_can_have_is_nobodys(sightings: Sightings) -> None:
    assert sightings.look([NOBODYS, 0], keys, 1)[NOBODYS].process is None


def test_without_a_descriptor_nothing_is_said_of_anybody(
    sightings: Sightings, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", none_left)
        assert sightings.look([program.pid], keys, 1) == {}
    assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16


def test_two_tenants_that_claim_a_process_have_none(
    sightings: Sightings, program: subprocess.Popen[bytes]
) -> None:
    both = frozenset({"a" * 16, "b" * 16})
    found = sightings.look([program.pid], lambda _: both, 1)[program.pid]
    assert found.is_ambiguous
    assert found.key is None


def test_who_has_nothing_of_the_driver_open_is_no_client_of_it(
    program: subprocess.Popen[bytes],
) -> None:
    holding: list[int] = []
    sightings = Sightings(holding.__contains__)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    holding.append(program.pid)
    assert sightings.look([program.pid], keys, 2)[program.pid].key == "a" * 16
    holding.clear()  # a client ends with its descriptor: nobody looks for it again
    assert sightings.look([program.pid], keys, 3)[program.pid].key == "a" * 16
    sightings.close()


def test_whose_a_process_is_is_asked_again_when_tenants_come(
    sightings: Sightings, program: subprocess.Popen[bytes]
) -> None:
    assert sightings.look([program.pid], lambda _: frozenset(), 1)[program.pid].key is None
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
    assert sightings.look([program.pid], keys, 2)[program.pid].key == "a" * 16


def test_no_descriptor_is_left_of_who_is_listed_no_more(
    sightings: Sightings, program: subprocess.Popen[bytes]
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    sightings.look([program.pid], keys, 1)
    sightings.look([], keys, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


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
    owners = Owners({"k": replace(fakes.entry(), key="k", state="bound", cgroup=cgroup)})
    monkeypatch.setattr(processes, "look", lambda _: None)
    for inside, found in (
        (path, {"k"}),
        (f"{path}/init", {"k"}),
        (f"{path}/a/b/c", {"k"}),
        (f"{path}2", set()),
        (path.rpartition("/")[0], set()),
    ):
        monkeypatch.setattr(processes, "cgroups_of", lambda _, at=inside: {hierarchy: at, "x": "/"})
        assert owners.all_of(7) == found


def test_who_is_in_the_cgroups_of_two_tenants_is_nobodys_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = replace(fakes.entry(), key="a", state="bound", cgroup="devices:/x/a")
    other = replace(fakes.entry(), key="b", state="bound", cgroup="pids:/x/b")
    monkeypatch.setattr(
        processes, "cgroups_of", lambda _: {"devices": "/x/a", "pids": "/x/b/inner"}
    )
    owners = Owners({"a": one, "b": other})
    assert owners.all_of(7) == {"a", "b"}
    assert owners.of(7) is None


def test_who_is_in_a_tenant_within_a_tenant_is_the_inner_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer = replace(fakes.entry(), key="a", state="bound", cgroup=":/x/a")
    inner = replace(fakes.entry(), key="b", state="bound", cgroup=":/x/a/docker/b")
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {"": "/x/a/docker/b/init"})
    assert Owners({"a": outer, "b": inner}).of(7) == "b"


def test_a_client_has_the_device_mapped_or_a_node_of_the_driver_open(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(bytes(4096))
    simulated = holders({"GPUSHARE_SIM_DEVICE": str(device)}, Path("/"))
    assert not simulated(os.getpid())
    with device.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert simulated(os.getpid())
    # /dev/null is of the major 1, as nvidia's would be here
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 nvidia-uvm\n  4 tty\n\n")
    real = holders({}, tmp_path)
    with Path("/dev/null").open("rb"):
        assert real(os.getpid())
    (tmp_path / "proc/devices").write_text("Character devices:\n 195 nvidia\n\nBlock devices:\n")
    assert not real(os.getpid())
    (tmp_path / "proc/devices").write_text("Character devices:\n  4 tty\n\nBlock devices:\n")
    assert real(os.getpid())  # no such driver is loaded: nothing can be told


def test_who_may_not_be_looked_into_is_taken_for_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError

    assert not processes.has_open(NOBODYS, {195})
    monkeypatch.setattr(Path, "iterdir", refused)
    assert processes.has_open(os.getpid(), {195})
