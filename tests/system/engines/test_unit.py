# SPDX-License-Identifier: Apache-2.0
"""gpushared's unit under systemd: what it lets the scheduler do, and that it lets it live."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.system.waiting import wait_until

UNITS = Path(__file__).parents[3] / "packaging/systemd"
NAME = "gpushared.service"
SOCKET = "gpushared.socket"
DAC_OVERRIDE = 1 << 1  # capabilities(7)
COMM = "gpushare-schedu\n"  # cut to TASK_COMM_LEN
PROGRAM = "/usr/local/bin/gpushare-scheduler"  # the unit has a /var/tmp of its own
#: In gpushared's place, which needs the Python of this machine: it starts the scheduler, and waits.
MAIN = f"{PROGRAM} --socket /run/gpushare/scheduler.sock & exec sleep 1000"


def inside(stage: Stack, script: str) -> str:
    """Return what a shell says in the place."""
    return subprocess.run(
        stage.argv("sh", "-c", script), check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def unit(booted: Stack) -> Iterator[str]:
    """The unit as it is shipped, but for the program and how that says that it is ready."""
    text = (
        (UNITS / NAME)
        .read_text()
        .replace("Type=notify", "Type=exec")
        .replace("WatchdogSec=60\n", "")
    )
    lines = [
        f"ExecStart=/bin/sh -c '{MAIN}'" if line.startswith("ExecStart=") else line
        for line in text.splitlines()
        if not line.startswith("ExecStartPre=")
    ]
    written = booted.root / NAME
    written.write_text("\n".join(lines) + "\n")
    socket = booted.root / SOCKET
    socket.write_bytes((UNITS / SOCKET).read_bytes())
    inside(booted, f"cp {booted.installation.scheduler} {PROGRAM}")
    inside(booted, f"cp {written} {socket} /etc/systemd/system/ && systemctl daemon-reload")
    inside(booted, f"systemctl start {NAME}")
    yield NAME
    inside(booted, f"systemctl stop {SOCKET} {NAME}")
    for pid in schedulers(booted):
        inside(booted, f"kill {pid}")


def schedulers(stage: Stack) -> list[str]:
    """Return those in the unit's cgroup, by the place's numbers: the stack has one beside it."""
    found = inside(stage, f"cat /sys/fs/cgroup/system.slice/{NAME}/cgroup.procs || true").split()
    return [pid for pid in found if inside(stage, f"cat /proc/{pid}/comm || true") == COMM]


def test_the_scheduler_outlives_a_stop_and_a_restart_of_the_unit(booted: Stack, unit: str) -> None:
    wait_until(lambda: len(schedulers(booted)) == 1)
    [pid] = schedulers(booted)
    # It may have its priority, and gives up afterwards what allows that.
    assert "SCHED_FIFO" in inside(booted, f"chrt --pid {pid}")
    assert f"{DAC_OVERRIDE:016x}" in inside(booted, f"grep CapEff /proc/{pid}/status")
    inside(booted, f"systemctl stop {unit}")
    assert inside(booted, f"systemctl is-active {unit} || true").strip() == "inactive"
    assert schedulers(booted) == [pid]
    # Started again, it finds the other at work, and its own gives way.
    inside(booted, f"systemctl start {unit}")
    wait_until(lambda: schedulers(booted) == [pid])
    assert inside(booted, "ls /run/gpushare").split().count("scheduler.sock") == 1
