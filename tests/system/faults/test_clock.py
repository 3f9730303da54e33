# SPDX-License-Identifier: Apache-2.0
"""The time of day jumps beneath gpushared and the process that asks NVML."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.stack.program import find
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .conftest import events, kill
from .neighbour import QUOTA_BYTES, working

SOURCE = Path(__file__).with_name("jump.c")
IDLE = ("/bin/busybox", "sleep", "1000")
YEAR = 365 * 86400


class DaemonClock:
    """What a daemon that is started under `wrapper` takes for the time of day."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "seconds"
        library = folder / "jump.so"
        strict = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
        subprocess.run([find("gcc"), *strict, str(SOURCE), "-o", str(library)], check=True)
        self.wrapper = (find("env"), f"LD_PRELOAD={library}", f"JUMP_FILE={self._file}")
        self.jump(0)

    def jump(self, years: int) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(years * YEAR))
        draft.rename(self._file)


@pytest.fixture
def clock(tmp_path: Path, place: RuntimeNamespace) -> DaemonClock:
    """The clock of the place's daemon, which is started anew under it."""
    made = DaemonClock(tmp_path)
    kill(place)
    place.stack.start_daemon(made.wrapper)
    return made


def year(line: dict[str, object]) -> int:
    return datetime.fromisoformat(str(line["time"]).replace("Z", "+00:00")).year


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_jump_disturbs_no_tenant(
    place: RuntimeNamespace, clock: DaemonClock, years: int
) -> None:
    """Running tenants keep their quotas, new ones get one, and so it is for the next daemon."""
    today = year(events(place, "daemon-ready")[-1])
    idle = RuntimeContainer(place, "runc", quota={"memory": "4GiB"}, args=IDLE)
    with working(place) as neighbour:
        assert idle.create() == 0
        clock.jump(years)
        place.client.set(idle.id, memory="5GiB")
        after = RuntimeContainer(place, "runc", quota={"memory": "2GiB"}, args=IDLE)
        assert after.create() == 0
        wait_until(lambda: len(events(place, "tenant-bound")) == 3)
        # The daemon itself took it for another day.
        assert abs(year(events(place, "tenant-bound")[-1]) - today - years) <= 1
        assert place.allocated() == QUOTA_BYTES + 7 * GIB
        neighbour.assert_undisturbed()
        kill(place)
        place.stack.start_daemon(clock.wrapper)
        assert place.allocated() == QUOTA_BYTES + 7 * GIB
        clock.jump(0)
        after.remove()
        idle.remove()
        wait_until(lambda: place.allocated() == QUOTA_BYTES)
        neighbour.assert_undisturbed()
    place.assert_empty()
