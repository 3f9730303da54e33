# SPDX-License-Identifier: Apache-2.0
"""The program: its messages, the gates that it writes, and what it leaves behind."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import resource
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync as schedule_message
from gpushare.daemon.policy import Share
from gpushare.daemon.scheduler_sync import Scheduler, SchedulerCommand
from tests.c.interposer.gate import wait
from tests.system.waiting import wait_until

from .tenant import ScheduledTenant, now

Make = Callable[..., ScheduledTenant]
CAP_DAC_OVERRIDE: Final = 1  # linux/capability.h
CAPPED: Final = Share(300, capped=True, online=False, priority=0)


def cpu_ticks(pid: int) -> int:
    """Return the processor time of process `pid` (proc(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def switches(pid: int) -> int:
    """Return how often process `pid` has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_a_gate_that_opens_wakes_its_waiters(scheduler: Scheduler, make: Make) -> None:
    tenant = make()
    tenant.added_to(scheduler, CAPPED)
    wait_until(lambda: tenant.mode() == abi.GATE_CLOSED)
    epoch = tenant.gate(abi.GATE_EPOCH, wide=False)
    with (tenant.place / abi.GRANT_NAME).open("r+b") as file:
        page = mmap.mmap(file.fileno(), abi.GRANT_BYTES)
    word = ctypes.c_uint32.from_buffer(page, abi.gate_offset(0) + abi.GATE_EPOCH)
    woken: list[int] = []
    waiter = threading.Thread(target=lambda: woken.append(wait(word, epoch)), daemon=True)
    waiter.start()
    wait_until(lambda: "futex" in Path(f"/proc/self/task/{waiter.native_id}/wchan").read_text())
    tenant.say(waiting=1)
    waiter.join(30)
    assert woken == [0]
    assert tenant.gate(abi.GATE_EPOCH, wide=False) != epoch


def test_a_closed_gate_gets_a_heartbeat_before_the_scheduler_counts_as_dead(
    scheduler: Scheduler, make: Make
) -> None:
    tenant = make()
    tenant.added_to(scheduler, CAPPED)
    tenant.say(busy_ns=7, since_ns=now(), submitted=2, ended=1)
    seen: set[int] = set()

    def beaten() -> bool:
        beat = tenant.gate(abi.GATE_HEARTBEAT_NS)
        seen.add(beat)
        return len(seen) > 10

    wait_until(beaten)
    assert tenant.gate(abi.GATE_BUSY_NS) == 7


def test_an_idle_tenant_costs_nothing(scheduler: Scheduler, make: Make) -> None:
    """Twenty closed idle gates: what is decided of them holds for longer."""
    tenants = [make() for _ in range(20)]
    for tenant in tenants:
        assert tenant.added_to(scheduler, Share(50, capped=True, online=False, priority=0)) == 0
    wait_until(lambda: all(tenant.gate(abi.GATE_HEARTBEAT_NS) > now() for tenant in tenants))
    begun, before = now(), switches(scheduler.pid)
    beat = tenants[0].gate(abi.GATE_HEARTBEAT_NS)
    wait_until(lambda: tenants[0].gate(abi.GATE_HEARTBEAT_NS) != beat)
    wait_until(lambda: tenants[0].gate(abi.GATE_HEARTBEAT_NS) != beat)
    seconds = (now() - begun) / 1e9
    assert switches(scheduler.pid) - before <= 3 + 2 * seconds


def test_a_tenant_that_rings_without_end_takes_no_core(scheduler: Scheduler, make: Make) -> None:
    quiet, noisy = make(), make()
    for tenant in (quiet, noisy):
        assert tenant.added_to(scheduler) == 0
    fd = os.open(noisy.place / abi.WAKEUP_NAME, os.O_RDWR | os.O_NONBLOCK)
    flood = subprocess.Popen(
        ["python3", "-c", f"import os\nwhile True:\n os.write({fd}, b'1')"], pass_fds=[fd]
    )
    os.close(fd)
    try:
        before, begun = cpu_ticks(scheduler.pid), now()
        quiet.say(waiting=1)
        wait_until(lambda: quiet.mode() == abi.GATE_WINDOW)
        wait_until(lambda: now() - begun > 2_000_000_000)
        spent = (cpu_ticks(scheduler.pid) - before) / os.sysconf("SC_CLK_TCK")
        assert spent < 0.5 * (now() - begun) / 1e9  # a sanitized build: ten times what it costs
    finally:
        flood.kill()
        flood.wait()


def test_charges_continue_after_a_crash(
    scheduler: Scheduler, make: Make, command: SchedulerCommand
) -> None:
    tenant, other = make(), make()
    pieces = itertools.count(1)

    def is_charged(more_than: int) -> bool:
        done = next(pieces)
        tenant.say(busy_ns=done * 1_000_000, since_ns=now(), submitted=done, ended=done, waiting=1)
        return tenant.gate(abi.GATE_CHARGED_NS) > more_than

    for each in (tenant, other):
        each.added_to(scheduler)
    wait_until(lambda: is_charged(0))
    os.kill(scheduler.pid, signal.SIGKILL)
    select.select([scheduler.pidfd], [], [])
    charged = tenant.gate(abi.GATE_CHARGED_NS)
    again = Scheduler.start(command)
    try:
        assert tenant.gate(abi.GATE_CHARGED_NS) == charged
        for each in (tenant, other):
            each.added_to(again)
        wait_until(lambda: is_charged(charged))
    finally:
        again.end()
        again.close()


def test_without_tenants_it_ends_with_its_last_client(
    scheduler: Scheduler, make: Make, command: SchedulerCommand
) -> None:
    tenant = make()
    tenant.added_to(scheduler)
    scheduler.send(schedule_message.message(schedule_message.REMOVE, tenant.key))
    scheduler._socket.close()
    assert select.select([scheduler.pidfd], [], [], 20)[0]
    assert not command.socket.exists()


def test_a_tenant_that_is_not_named_again_is_forgotten(scheduler: Scheduler, make: Make) -> None:
    stays, goes = make(), make()
    for tenant in (stays, goes):
        assert tenant.added_to(scheduler) == 0
    scheduler.send(schedule_message.message(schedule_message.HELLO))
    assert stays.added_to(scheduler) == 0
    assert scheduler.send(schedule_message.message(schedule_message.COMPLETE)).tenants == 1
    wait_until(lambda: stays.mode() == abi.GATE_OPEN)  # alone now


def test_nothing_is_decided_before_all_have_been_named(scheduler: Scheduler, make: Make) -> None:
    """The first tenant is not alone: an open gate would let a whole queue through."""
    first, second = make(), make()
    scheduler.send(schedule_message.message(schedule_message.HELLO))
    for tenant in (first, second):
        assert tenant.added_to(scheduler) == 0  # answered after what came of the message before
    assert first.gate(abi.GATE_HEARTBEAT_NS) == 0
    scheduler.send(schedule_message.message(schedule_message.COMPLETE))
    for tenant in (first, second):
        wait_until(lambda: tenant.gate(abi.GATE_HEARTBEAT_NS) > 0)  # noqa: B023 - called at once
        assert tenant.mode() == abi.GATE_CLOSED


def test_a_second_scheduler_does_not_write_the_same_gates(
    scheduler: Scheduler, command: SchedulerCommand
) -> None:
    done = subprocess.run(command.argv, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "another gpushare-scheduler uses it" in done.stderr
    assert scheduler.send(schedule_message.message(schedule_message.HELLO)).error == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_users_messages_are_ignored(
    scheduler: Scheduler, command: SchedulerCommand
) -> None:
    command.socket.chmod(0o777)
    for folder in command.socket.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    said = (
        "import os, socket, sys\n"
        "os.setuid(4711)\n"
        "client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "client.connect(sys.argv[1])\n"
        "print(client.recv(1))\n"
    )
    done = subprocess.run(
        ["python3", "-c", said, str(command.socket)], check=False, capture_output=True, text=True
    )
    assert done.stdout == "b''\n", done.stderr
    assert scheduler.send(schedule_message.message(schedule_message.HELLO)).error == 0


@pytest.mark.parametrize(
    ("permille", "answer"), [(1, 0), (1000, 0), (0, errno.EINVAL), (1001, errno.EINVAL)]
)
def test_a_share_is_a_part_of_the_card(
    scheduler: Scheduler, make: Make, permille: int, answer: int
) -> None:
    share = Share(permille, capped=False, online=False, priority=0)
    assert make().added_to(scheduler, share) == answer


@pytest.mark.parametrize("name", [abi.GRANT_NAME, abi.STATUS_NAME, abi.WAKEUP_NAME])
def test_a_link_in_the_place_of_a_file_is_not_followed(
    scheduler: Scheduler, make: Make, name: str
) -> None:
    tenant = make()
    (tenant.place / name).rename(tenant.place / "elsewhere")
    (tenant.place / name).symlink_to("elsewhere")
    assert tenant.added_to(scheduler) == errno.ELOOP


def test_more_tenants_than_a_card_has_room_for_are_refused(
    scheduler: Scheduler, make: Make
) -> None:
    answers = [make().added_to(scheduler) for _ in range(65)]
    assert answers == [0] * 64 + [errno.EUSERS]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it has nothing to give up otherwise")
def test_the_scheduler_keeps_only_the_capability_that_it_needs(scheduler: Scheduler) -> None:
    status = Path(f"/proc/{scheduler.pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in status)
    assert int(found["CapEff"], 16) == int(found["CapPrm"], 16) == 1 << CAP_DAC_OVERRIDE
    assert found["NoNewPrivs"] == "1"
    assert os.getsid(scheduler.pid) == scheduler.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a priority")
def test_it_goes_before_other_programs_and_is_ended_where_it_loops(scheduler: Scheduler) -> None:
    assert os.sched_getscheduler(scheduler.pid) == os.SCHED_FIFO
    assert resource.prlimit(scheduler.pid, resource.RLIMIT_RTTIME) == (200_000, 200_000)
