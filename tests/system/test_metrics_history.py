# SPDX-License-Identifier: Apache-2.0
"""The metrics history beside a real gpushared: what arrives in it, who reads it, and what ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare.history.reader import ContainerSubject, HistoryReader, HistoryUnreadable
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
NOBODY = 65534
#: Reads the history in `argv[1]` as a user and group that may only read it.
READ = """
import os, sys
from pathlib import Path
from gpushare.history.reader import HistoryReader
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(65534)
with HistoryReader(Path(sys.argv[1])) as reader:
    print(len(reader.containers(0, 1e12)))
"""


@pytest.fixture
def own() -> Iterator[Stack]:
    """A stack whose daemon may be killed, and whose history the group of nobody reads."""
    with Stack() as made:
        with made.config.open("a") as settings:
            settings.write("read_group: nogroup\n")
        made.root.chmod(0o755)
        made.start_daemon()
        yield made


def folder(stack: Stack) -> Path:
    return stack.root / "state" / "metrics-history"


def process(stack: Stack) -> int:
    """Return the process that writes, 0 if none does."""
    for running in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(folder(stack)) in (running / "cmdline").read_bytes().split(b"\0"):
                return int(running.name)
    return 0


def samples(stack: Stack, bundle: Bundle) -> int:
    """Return how many samples the history has of a container."""
    found = subject(stack, bundle)
    if found is None:
        return 0
    with HistoryReader(folder(stack)) as reader:
        return len(reader.series(found, "used_bytes", 0, time.time() + 60))


def subject(stack: Stack, bundle: Bundle) -> ContainerSubject | None:
    try:
        with HistoryReader(folder(stack)) as reader:
            found = reader.containers(0, time.time() + 60)
    except HistoryUnreadable:
        return None
    return next((one for one in found if one.id == bundle.id), None)


def read_as_nobody(stack: Stack, group: int = NOBODY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", READ, str(folder(stack)), str(group)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.gate
def test_what_a_container_has_is_in_the_history_after_kills_and_the_end(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB", "cores": "30"})
    try:
        with bundle.started() as tenant:
            assert tenant.ask(f"alloc {GIB}")["code"] == 0
            wait_until(lambda: samples(own, bundle) > 0)
            first = process(own)
            os.kill(first, signal.SIGKILL)
            seen = samples(own, bundle)
            assert int(read_as_nobody(own).stdout) == 1  # nothing writes at the moment
            wait_until(lambda: process(own) not in {0, first})
            wait_until(lambda: samples(own, bundle) > seen)
            second = process(own)
            own.end_daemon()
            wait_until(lambda: process(own) != second)
            own.start_daemon()
            wait_until(lambda: process(own) not in {0, second})
            seen = samples(own, bundle)
            wait_until(lambda: samples(own, bundle) > seen)
            status = own.client.tenant(bundle.id)
            assert int(read_as_nobody(own).stdout) == 1
    finally:
        bundle.remove()
    found = subject(own, bundle)
    assert found is not None
    assert (found.name, found.mode, found.policy) == (status["name"], "shared", status["policy"])
    with HistoryReader(folder(own)) as reader:
        range_ = (0, time.time() + 60)
        used = reader.series(found, "used_bytes", *range_)
        assert max(step.most for step in used) == status["cards"][0]["used_bytes"] > GIB
        assert {step.most for step in reader.series(found, "quota_bytes", *range_)} == {4 * GIB}
        assert {step.most for step in reader.series(found, "cores", *range_)} == {30}
        [card] = reader.cards(*range_)
        assert card.uuid == status["cards"][0]["uuid"]
        assert max(step.most for step in reader.series(card, "used_bytes", *range_)) > GIB
        assert max(step.most for step in reader.series(card, "power", *range_)) > 0
