# SPDX-License-Identifier: Apache-2.0
"""Freezing and ending by the kernel itself, under each hierarchy that this machine has."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.freezer import FREEZER, UNIFIED, cgroup_freezer
from gpushare.daemon.identity.processes import Cgroups
from gpushare.host import cgroups
from gpushare.host.cgroups import CgroupFreezer, CgroupV2Freezer, pids
from tests.system.waiting import wait_until

#: Forks without end: whoever kills one process after another never gets them all.
FORKS = ["sh", "-c", 'while :; do sh -c "exec sleep 100" & done']


@pytest.fixture(params=[UNIFIED, FREEZER, "no cgroup.kill"])
def group(request: pytest.FixtureRequest) -> Iterator[CgroupFreezer]:
    hierarchy = FREEZER if request.param == FREEZER else UNIFIED
    cgroup = f"{hierarchy}:/gpushare-test-{secrets.token_hex(4)}"
    directory = Cgroups.mounted().directory(cgroup)
    if directory is None:
        pytest.skip(f"kernel: no cgroup hierarchy {hierarchy or 'v2'} is mounted")
    directory.mkdir()
    made = cgroup_freezer(cgroup, Cgroups.mounted())
    if isinstance(made, CgroupV2Freezer) and request.param != UNIFIED:
        made = Older(directory)
    assert made is not None
    try:
        yield made
    finally:
        made.kill(5)
        for folder, _, _ in os.walk(directory, topdown=False):
            Path(folder).rmdir()


class Older(CgroupV2Freezer):
    """Linux before 5.14."""

    @property
    def has_kill(self) -> bool:
        return False


def inside(group: CgroupFreezer, argv: list[str], beneath: str = "") -> subprocess.Popen[bytes]:
    folder = group.directory / beneath
    folder.mkdir(exist_ok=True)

    def join() -> None:
        (folder / "cgroup.procs").write_text("0")

    return subprocess.Popen(argv, preexec_fn=join)  # noqa: PLW1509 - no other thread runs


def counts(process: subprocess.Popen[bytes]) -> Callable[[], int]:
    """Return how much processor time it has had, in ticks."""

    def ticks() -> int:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    return ticks


SPINS = ["sh", "-c", "while :; do :; done"]


@pytest.mark.parametrize("beneath", ["", "nested"])
def test_a_frozen_process_does_nothing_until_it_is_thawed(
    group: CgroupFreezer, beneath: str
) -> None:
    with inside(group, SPINS, beneath) as process:
        had = counts(process)
        wait_until(lambda: had() > 0)
        assert group.freeze()
        assert group.is_set()
        assert group.is_frozen()
        # What it had been given is accounted at the next tick; from then on nothing comes to it.
        settled = [had()]
        subprocess.run(
            ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"], check=True
        )
        settled.append(had())
        assert settled[1] - settled[0] <= 1
        group.thaw()
        assert not group.is_set()
        wait_until(lambda: not group.is_frozen())
        wait_until(lambda: had() > settled[1] + 1)
        process.kill()


@pytest.mark.parametrize("frozen", [False, True])
def test_all_are_ended_and_none_forks_away(group: CgroupFreezer, frozen: bool) -> None:
    with inside(group, FORKS) as process:
        wait_until(lambda: len(list(pids(group.directory))) > 50)
        if frozen:
            group.freeze()
        assert group.kill(20)
        process.wait()
    assert list(pids(group.directory)) == []
    assert not group.is_set()


@pytest.mark.parametrize("group", [UNIFIED], indirect=True)
@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_nobody_sees_a_process_that_has_ended_in_a_frozen_group(
    group: CgroupFreezer, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """An engine that asks then is told "paused", and never removes its container."""
    write, written = cgroups._write, list[tuple[str, str]]()

    def noted(file: Path, text: str) -> None:
        written.append((file.name, text))
        write(file, text)

    with inside(group, ["sleep", "100"]) as process:
        group.freeze()
        monkeypatch.setattr(cgroups, "_write", noted)
        group.kill(seconds)
        process.wait()
    assert written == [("cgroup.freeze", "0"), ("cgroup.kill", "1")]
