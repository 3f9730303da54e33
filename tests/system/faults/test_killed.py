# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon at every write of it, and a new one beside tenants that go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import client
from gpushare.daemon.core.loop import boot_id
from gpushare.daemon.store.ledger import Ledger
from tests.system.hostile.container import (
    GIB,
    RuntimeContainer,
    RuntimeNamespace,
    no_service_manager,
)
from tests.system.hostile.cut import NOWHERE, sample, watched
from tests.system.waiting import wait_until

from .conftest import events
from .neighbour import QUOTA_BYTES, working

#: Of two that have it beside the neighbour, one was given what was allocated to the other.
MOST = "80GiB"
_STARTS = 6  # after how many writes of a start, evenly, a new daemon is really started
_ENDS = 3  # and of an end

Compiled = Callable[..., Path]


@pytest.fixture
def container(place: RuntimeNamespace) -> Iterator[RuntimeContainer]:
    made = RuntimeContainer(
        place, "runc", quota={"memory": MOST}, args=("/bin/busybox", "sleep", "1000")
    )
    yield made
    made.remove()


def pid_of_daemon(place: RuntimeNamespace) -> int:
    assert place.stack.daemon is not None
    return place.stack.daemon.process.pid


#: What a ledger may say of the container, by what it was told by then: state, GiB.
MAY_BE: dict[str, set[tuple[str, int]]] = {
    "making": {("none", 0), ("reserved", 80), ("bound", 80)},
    "runs": {("bound", 80)},
    "changing": {("bound", 80), ("bound", 60)},
    "changed": {("bound", 60)},
    "ending": {("bound", 60), ("none", 0)},
    "ended": {("none", 0)},
}


def say(run: Path, phase: str) -> None:
    """Keep what the container was answered so far, and not half of it."""
    draft = run.with_name("phase")
    draft.write_text(phase)
    draft.rename(run / "phase")


def said_by(folder: Path, identity: str) -> tuple[str, int]:
    """Return what a daemon that starts on `folder` has of the container."""
    ledger = Ledger(folder / "ledger", boot_id())
    try:
        assert not ledger.unknown
        found = [entry for entry in ledger.entries.values() if entry.id == identity]
    finally:
        ledger.close()
    if not found:
        return "none", 0
    [entry] = found
    return entry.state, sum(allocation.quota_bytes for allocation in entry.allocations) // GIB


@pytest.mark.gate
def test_at_every_write_the_disk_holds_every_reservation(
    container: RuntimeContainer, compiled: Compiled, tmp_path: Path
) -> None:
    """Of a start, a change and an end: as they are, and with the ledger or its copies lost."""
    place, run = container.place, container.stack.root / "run"
    options = ("--keep", str(run), str(tmp_path))
    place.client.seconds = 60.0  # the daemon is stopped and copied at each write
    say(run, "making")
    with watched(compiled("cut"), pid_of_daemon(place), NOWHERE, *options) as seen:
        assert container.create() == 0
        say(run, "runs")
        assert place.rows()
        say(run, "changing")
        place.client.set(container.id, memory="60GiB")
        say(run, "changed")
        say(run, "ending")
        container.remove()
        place.assert_empty()
        say(run, "ended")
    assert seen.steps > 60
    left = set()
    for number in range(1, seen.steps + 1):
        kept = tmp_path / str(number)
        may_be = MAY_BE[(kept / "phase").read_text()]
        for lost in ("nothing", "ledger", "copies"):
            again = tmp_path / "again"
            shutil.copytree(kept, again)
            if lost != "nothing":
                shutil.rmtree(again / lost)
            found = said_by(again, container.id)
            assert found in may_be, (number, lost)
            left.add(found)
            shutil.rmtree(again)
    assert left == {("none", 0), ("reserved", 80), ("bound", 80), ("bound", 60)}


@pytest.mark.gate
def test_a_daemon_killed_at_a_write_and_restarted_disturbs_no_tenant(
    container: RuntimeContainer, compiled: Compiled
) -> None:
    place, tool = container.place, compiled("cut")
    with working(place) as neighbour:
        with watched(tool, pid_of_daemon(place), NOWHERE) as start:
            assert container.create() == 0
        with watched(tool, pid_of_daemon(place), NOWHERE) as end:
            container.remove()
            wait_until(lambda: place.allocated() == QUOTA_BYTES)
        steps = [(step, True) for step in sample(start.steps, _STARTS)]
        steps += [(step, False) for step in sample(end.steps, _ENDS)]
        for step, is_start in steps:
            made = is_start or container.create() == 0
            with (
                no_service_manager(place),
                watched(tool, pid_of_daemon(place), step) as cut,
            ):
                if is_start:
                    made = container.create() == 0
                else:
                    container.remove()
            if cut.was_cut:
                assert place.stack.daemon is not None
                place.stack.daemon.process.wait()
                place.stack.start_daemon()
            assert place.allocated() in {QUOTA_BYTES, QUOTA_BYTES + 80 * GIB}
            if made and is_start:  # it was bound: no other container gets its part
                with pytest.raises(client.RequestRefused, match="no card has room"):
                    place.client.open({"memory": MOST}, name="other", rootless=False)
            container.remove()
            wait_until(lambda: place.allocated() == QUOTA_BYTES)
            neighbour.assert_undisturbed()
        assert events(place, "tenant-adopted")
    place.assert_empty()


@pytest.mark.gate
@pytest.mark.parametrize("binds", ["hook"])
def test_a_reservation_of_a_runtime_that_died_with_the_daemon_is_released_at_once(
    place: RuntimeNamespace,
) -> None:
    """It is never bound: the next daemon knows which runtime made it, and does not wait 600 s."""
    container = RuntimeContainer(place, "runc", quota={"memory": MOST})
    folder = place.stack.installation.libraries.resolve().parent / "bin"
    hook = folder / "gpushare-hook"
    hook.rename(folder / "gpushare-hook.whole")
    runs = place.stack.root / "hook-runs"
    hook.write_text(f"#!/bin/sh\n: >{runs}\nexec sleep 1000\n")
    hook.chmod(0o755)
    words = container.argv("create", "--bundle", str(container.path), container.id)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as maker:
        wait_until(runs.exists)
        assert [row["state"] for row in place.rows()] == ["reserved"]
        place.stack.end_daemon()
        os.killpg(maker.pid, signal.SIGKILL)
    place.stack.start_daemon()
    place.assert_empty()
    assert [line["reason"] for line in events(place, "tenant-released")] == [
        "its runtime has ended"
    ]
    container.remove()
