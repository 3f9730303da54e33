# SPDX-License-Identifier: Apache-2.0
"""The scheduler and containers: they can wake it, and it can be replaced while they run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from tests.stack.bundle import Bundle
from tests.stack.program import find
from tests.system.waiting import wait_until

from .tenants import SharedCardStack, scheduler

WAKEUP = f"{abi.TENANT_DIR}/{abi.WAKEUP_NAME}"
#: Opens it like the library does, for reading too: that never waits for another process.
WAKE = (
    f"exec 3<>{WAKEUP} && printf x >&3 && echo woken; touch {abi.TENANT_DIR}/new || echo read-only"
)


class Waking(Bundle):
    """A container that wakes the scheduler, and exits."""

    def __init__(self, place: SharedCardStack) -> None:
        super().__init__(
            place.stack,
            quota={"memory": "4GiB", "cores": "10"},
            args=["/bin/busybox", "sh", "-c", WAKE],
            files={"/bin/busybox": Path(find("busybox")).read_bytes()},
        )
        self.config["process"]["user"] = {"uid": 4711, "gid": 4711}
        self.config["process"] |= {"capabilities": {}, "noNewPrivileges": True}
        self.save()


@pytest.fixture
def waking(place: SharedCardStack) -> Iterator[Waking]:
    made = Waking(place)
    yield made
    made.remove()


def test_the_scheduler_can_be_woken_from_a_folder_that_is_read_only(waking: Waking) -> None:
    """By another user, without capabilities."""
    done = waking.call("run", "--bundle", str(waking.path))
    assert done.stdout.split() == ["woken", "read-only"], done.stderr


def test_one_that_is_exchanged_opens_no_gate(place: SharedCardStack) -> None:
    """As at an upgrade: another file by the same name, and the daemon started again."""
    tenant = place.start({"cores": "30", "policy": "fixed-share", "devices": "0"})
    wait_until(lambda: tenant.gate().is_kept)
    before, modes = scheduler(place.stack), set[int]()
    exchanged = place.stack.installation.scheduler
    newer = exchanged.with_suffix(".new")
    shutil.copy(exchanged, newer)
    newer.replace(exchanged)
    assert place.stack.daemon is not None
    place.stack.daemon.stop()
    assert scheduler(place.stack) == before
    place.stack.start_daemon()

    def is_another() -> bool:
        modes.add(tenant.gate().mode)
        return scheduler(place.stack) not in {0, before} and tenant.gate().is_kept

    wait_until(is_another)
    place.assert_parts({tenant: 30})
    assert modes <= {abi.GATE_WINDOW, abi.GATE_CLOSED}


def test_it_exits_with_the_daemon_where_no_tenant_needs_it(place: SharedCardStack) -> None:
    stack = place.stack
    wait_until(lambda: not place.ps())
    assert stack.daemon is not None
    stack.daemon.stop()
    wait_until(lambda: not scheduler(stack))
    stack.start_daemon()
    wait_until(lambda: scheduler(stack) != 0)
