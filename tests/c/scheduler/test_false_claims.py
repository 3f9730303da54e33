# SPDX-License-Identifier: Apache-2.0
"""Tenants that write anything, and clients that send anything: the others' gates go on."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync as schedule_message
from gpushare.daemon.policy import Share
from gpushare.daemon.scheduler_sync import Scheduler, SchedulerCommand
from tests.system.waiting import wait_until

from .tenant import HALF, ScheduledTenant

Make = Callable[..., ScheduledTenant]


def added(scheduler: Scheduler, make: Make) -> ScheduledTenant:
    tenant = make()
    assert tenant.added_to(scheduler) == 0
    return tenant


liar, honest = pytest.fixture(added, name="liar"), pytest.fixture(added, name="honest")


@pytest.fixture(autouse=True)
def alive(scheduler: Scheduler) -> Iterator[None]:
    """Whatever a test did, the program answers afterwards: it is a sanitized one."""
    yield
    assert scheduler.send(schedule_message.message(schedule_message.REMOVE, "0" * 16)).error == 0


def descriptors(scheduler: Scheduler) -> int:
    return len(list(Path(f"/proc/{scheduler.pid}/fd").iterdir()))


def has_its_turn(tenant: ScheduledTenant) -> None:
    """Have `tenant` wait, and get a window."""
    tenant.say(waiting=1)
    wait_until(lambda: tenant.mode() == abi.GATE_WINDOW)


@pytest.mark.parametrize("size", [0, 1, abi.STATUS_WORK_OFFSET, abi.STATUS_WORK_OFFSET + 63])
def test_a_status_that_was_cut(liar: ScheduledTenant, honest: ScheduledTenant, size: int) -> None:
    liar.say(waiting=1)
    os.truncate(liar.place / abi.STATUS_NAME, size)
    liar.wake()
    has_its_turn(honest)


def test_a_status_that_says_anything(liar: ScheduledTenant, honest: ScheduledTenant) -> None:
    chance = random.Random(1)
    status = liar.pages.status.fd
    for _ in range(200):
        os.pwrite(status, chance.randbytes(4), abi.STATUS_HEADER_HIGH_WATER)
        os.pwrite(status, chance.randbytes(64 * 64), abi.status_work_offset(0))
        liar.wake()
    has_its_turn(honest)


def test_a_page_of_the_wrong_kind_is_refused(scheduler: Scheduler, make: Make) -> None:
    for name in (abi.GRANT_NAME, abi.WAKEUP_NAME):
        tenant = make()
        (tenant.place / name).unlink()
        (tenant.place / name).mkdir()
        assert tenant.added_to(scheduler) != 0
    for content in (b"", bytes(abi.GRANT_BYTES), b"x" * abi.GRANT_BYTES):
        tenant = make()
        (tenant.place / abi.GRANT_NAME).write_bytes(content)
        assert tenant.added_to(scheduler) != 0
    tenant = make()
    with (tenant.place / abi.GRANT_NAME).open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", abi.GRANT_HEADER_ABI_VERSION)
    assert tenant.added_to(scheduler) == errno.EPROTO
    tenant = make("GPU-a")
    tenant.uuids = ("GPU-another",)
    assert tenant.added_to(scheduler) != 0
    assert scheduler.send(schedule_message.message(schedule_message.REMOVE, "0" * 16)).tenants == 0


def test_messages_that_are_none(scheduler: Scheduler, command: SchedulerCommand) -> None:
    chance = random.Random(2)
    right = schedule_message.message(
        schedule_message.TENANT, "ab" * 8, [("GPU-a", HALF), ("GPU-b", HALF)]
    )
    for _ in range(300):
        message = bytearray(right)
        for _ in range(chance.randrange(4)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        cut = bytes(message[: chance.randrange(1, len(message) + 1)])
        assert scheduler.send(cut).error != 0  # no directory came along
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(command.socket))
        client.send(bytes(100_000))
        assert schedule_message.read_reply(client.recv(64)).error != 0


def test_descriptors_that_are_no_directory_or_too_many(
    scheduler: Scheduler, make: Make, tmp_path: Path
) -> None:
    tenant = make()
    parts = [("GPU-a", HALF)]
    before = descriptors(scheduler)
    message = schedule_message.message(schedule_message.TENANT, tenant.key, parts)
    with (tmp_path / "plain").open("w") as file:
        for fds in ([file.fileno()], [file.fileno()] * 100, []):
            assert scheduler.send(message, fds).error != 0
    assert (
        scheduler.send(
            schedule_message.message(schedule_message.HELLO), [tenant.pages.directory]
        ).error
        == 0
    )
    assert descriptors(scheduler) == before


def test_a_tenant_that_comes_and_goes_leaves_nothing(scheduler: Scheduler, make: Make) -> None:
    tenant = make("GPU-a", "GPU-b")
    before = descriptors(scheduler)
    maps = Path(f"/proc/{scheduler.pid}/maps")

    def mapped() -> int:
        return maps.read_text().count(abi.GRANT_NAME)

    assert mapped() == 0
    for _ in range(20):
        assert tenant.added_to(scheduler, Share(500, capped=True, online=False, priority=0)) == 0
        assert mapped() == 1
        scheduler.send(schedule_message.message(schedule_message.REMOVE, tenant.key))
    assert mapped() == 0
    assert descriptors(scheduler) == before


def test_nothing_is_no_answer() -> None:
    with pytest.raises(ValueError, match="an answer of 0 bytes, not 20"):
        schedule_message.read_reply(b"")
