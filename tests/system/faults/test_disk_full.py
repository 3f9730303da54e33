# SPDX-License-Identifier: Apache-2.0
"""A full disk: new requests are refused with the reason, and running tenants stay limited."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .neighbour import QUOTA_BYTES, working

_NO_SPACE = "no reservation can be recorded there; running containers keep theirs"


@pytest.fixture
def place() -> Iterator[RuntimeNamespace]:
    """A daemon whose run folder is a small file system of its own."""
    with Stack() as stack:
        folder = stack.root / "run"
        folder.mkdir()
        options = ("-o", "size=4m,mode=755")
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
            place.stack.end_daemon()
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
