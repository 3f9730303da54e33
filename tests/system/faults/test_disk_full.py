# SPDX-License-Identifier: Apache-2.0
"""A full disk: new requests are refused with the reason, and running tenants stay limited."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import client
from tests.stack import Stack
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .conftest import events, kill
from .neighbour import QUOTA_BYTES, working

_SIZE = "4m"
_NO_SPACE = "no reservation can be recorded there; running containers keep theirs"


@pytest.fixture
def place() -> Iterator[RuntimeNamespace]:
    """A daemon whose two folders are small file systems of their own."""
    with Stack() as stack:
        for name in ("run", "state"):
            folder = stack.root / name
            folder.mkdir()
            options = ("-o", f"size={_SIZE},mode=755")
            subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=True)
        made = RuntimeNamespace(stack, bind_timeout_seconds=600)
        stack.start_daemon()
        yield made
        made.close()


def fill(folder: Path) -> Path:
    """Leave no byte free; return what takes the room."""
    filler = folder / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(fd, bytes(size))
            except OSError:
                continue
    finally:
        os.close(fd)
    return filler


def is_refused(container: RuntimeContainer) -> bool:
    said = container.try_to_run()
    return _NO_SPACE in said and str(container.stack.root / "run") in said


@pytest.mark.gate
def test_with_run_dir_full_running_tenants_stay_limited_and_new_ones_are_refused(
    place: RuntimeNamespace,
) -> None:
    """Also by a daemon that is started there. What exits meanwhile is released later."""
    asking = RuntimeContainer(place, "runc", quota={"memory": "1GiB"})
    plain = RuntimeContainer(place, "runc", quota={}, args=("/bin/busybox", "true"))
    exits = RuntimeContainer(place, "runc", args=("/bin/busybox", "sleep", "1000"))
    with working(place) as neighbour:
        assert exits.create() == 0
        filler = fill(place.stack.root / "run")
        for _ in range(2):
            assert is_refused(asking)
            assert plain.try_to_run() == ""
            assert place.allocated() == QUOTA_BYTES + GIB
            neighbour.assert_undisturbed()
            kill(place)
            place.stack.start_daemon()
        exits.remove()
        filler.unlink()
        wait_until(lambda: place.allocated() == QUOTA_BYTES)
        assert [row["id"] for row in place.rows()] == [neighbour.container.id]
        wait_until(lambda: place.client.status()["warnings"] == [])
        assert asking.create() == 0
        assert place.allocated() == QUOTA_BYTES + GIB
        asking.remove()
        neighbour.assert_undisturbed()
    plain.remove()
    place.assert_empty()


def frozen_by(place: RuntimeNamespace) -> list[str]:
    [row] = place.rows()
    return [one["by"] for one in row["interventions"]]


def test_with_both_disks_full_nothing_is_set_and_a_container_is_frozen_and_stays_so(
    place: RuntimeNamespace,
) -> None:
    """The cgroup is the truth; what froze it is written where there is room for it."""
    with working(place) as neighbour:
        place.client.set(neighbour.container.id, memory="41GiB")
        fillers = [fill(place.stack.root / name) for name in ("run", "state")]
        with pytest.raises(client.DaemonError, match="No space left"):
            place.client.set(neighbour.container.id, memory="45GiB")
        place.client.pause(neighbour.container.id)
        assert frozen_by(place) == ["operator"]
        rounds = neighbour.rounds
        assert events(place, "freeze-record-failed")
        kill(place)
        place.stack.start_daemon()
        assert frozen_by(place) == ["unknown"]
        assert events(place, "tenant-found-frozen")
        assert neighbour.rounds <= rounds + 1
        [row] = place.rows()
        assert row["quota"]["memory"] == "41GiB operator"
        place.client.resume(neighbour.container.id)
        assert frozen_by(place) == []
        neighbour.assert_undisturbed()
        for filler in fillers:
            filler.unlink()
        place.client.set(neighbour.container.id, memory="45GiB")
        assert not events(place, "overrides-damaged")
    place.assert_empty()
