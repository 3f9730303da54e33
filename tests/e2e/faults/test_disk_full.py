# SPDX-License-Identifier: Apache-2.0
"""A disk with no room left: who asks is refused and told why, who runs is held as before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import client
from tests.e2e.hostile.container import GIB, Container, Place
from tests.e2e.waiting import wait_until
from tests.stack import Stack

from .conftest import events, kill
from .neighbour import QUOTA_BYTES, working

_SIZE = "4m"
_NO_SPACE = "nothing new can be noted there; who runs keeps what it has"


@pytest.fixture
def place() -> Iterator[Place]:
    """A daemon whose two folders are each a small file system of their own."""
    with Stack() as stack:
        for name in ("run", "state"):
            folder = stack.root / name
            folder.mkdir()
            options = ("-o", f"size={_SIZE},mode=755")
            subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=True)
        made = Place(stack, bind=600)
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


def is_refused(container: Container) -> bool:
    said = container.try_to_run()
    return _NO_SPACE in said and str(container.stack.root / "run") in said


def test_with_run_dir_full_who_runs_is_held_and_who_asks_is_refused(place: Place) -> None:
    """Also by a daemon that is started there."""
    asking = Container(place, "runc", quota={"memory": "1GiB"})
    plain = Container(place, "runc", quota={}, args=("/bin/busybox", "true"))
    with working(place) as neighbour:
        filler = fill(place.stack.root / "run")
        for _ in range(2):
            assert is_refused(asking)
            assert plain.try_to_run() == ""
            assert place.promised() == QUOTA_BYTES
            assert [row["id"] for row in place.rows()] == [neighbour.container.id]
            neighbour.assert_undisturbed()
            kill(place)
            place.stack.start_daemon()
        filler.unlink()
        wait_until(lambda: place.client.status()["warnings"] == [])
        assert asking.create() == 0
        assert place.promised() == QUOTA_BYTES + GIB
        asking.remove()
        wait_until(lambda: place.promised() == QUOTA_BYTES)
        neighbour.assert_undisturbed()
    plain.remove()
    place.assert_empty()


def test_who_ends_while_run_dir_is_full_is_released_at_the_latest_when_there_is_room(
    place: Place,
) -> None:
    with working(place):
        filler = fill(place.stack.root / "run")
    filler.unlink()
    place.assert_empty()
    with working(place) as neighbour:
        assert place.promised() == QUOTA_BYTES
        neighbour.assert_undisturbed()
    place.assert_empty()


def test_with_state_dir_full_nothing_that_was_set_is_lost(place: Place) -> None:
    with working(place) as neighbour:
        place.client.set(neighbour.container.id, memory="41GiB")
        filler = fill(place.stack.root / "state")
        with pytest.raises(client.DaemonError, match="No space left"):
            place.client.set(neighbour.container.id, memory="45GiB")
        assert place.promised() == QUOTA_BYTES + GIB
        kill(place)
        place.stack.start_daemon()
        assert place.promised() == QUOTA_BYTES + GIB
        [row] = place.rows()
        assert row["quota"]["memory"] == "41GiB operator"
        neighbour.assert_undisturbed()
        filler.unlink()
        place.client.set(neighbour.container.id, memory="45GiB")
        assert not events(place, "overrides-damaged")
    place.assert_empty()
