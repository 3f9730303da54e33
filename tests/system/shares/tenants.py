# SPDX-License-Identifier: Apache-2.0
"""Containers that keep a card busy, and what they get of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare import abi
from gpushare.protocol.rows import CardComputeUsage, TenantStatus
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox
from tests.system.waiting import wait_until

from .served import Truth, part

SLOW = 4  # windows of 20 ms become 80: a process may be late by a few ms and it shows little
#: Kernels of a millisecond (of a card that is not in slow motion), 50 before the host waits.
WORK = {"kernel-us": 1000, "spread": 0, "jitter": 0, "kernels": 50, "slow": SLOW}
SECONDS = 1.2  # some fifteen windows
TRIES = 8


class Busy(Bundle):
    """A container that works without end; `work` changes the options of its program."""

    def __init__(
        self,
        place: SharedCardStack,
        quota: Mapping[str, str],
        *,
        work: Mapping[str, float] | None = None,
        script: str = "work {options} & wait",
    ) -> None:
        options = " ".join(f"--{key} {value}" for key, value in {**WORK, **(work or {})}.items())
        super().__init__(
            place.stack,
            quota={"memory": "4GiB", **quota},
            args=["/bin/busybox", "sh", "-c", script.replace("{options}", options)],
            files={
                **busybox(),
                "/usr/bin/work": place.work.read_bytes(),
            },
        )
        self.place = place

    def start(self) -> Busy:
        """Run it, until every process works."""
        self.detach()
        self.place.running.append(self)
        wait_until(lambda: self.is_ready() or not self.pids)
        assert self.is_ready(), self.said()
        return self

    def is_ready(self) -> bool:
        return "ready\n" in self.said()

    def said(self) -> str:
        return (self.path / "output").read_text(errors="replace")

    @property
    def pids(self) -> list[int]:
        """Its processes, by the host's numbers."""
        group = next(Path("/sys/fs/cgroup").glob(f"*/{self.stack.cgroup}/{self.id}/cgroup.procs"))
        return [int(word) for word in group.read_text().split()]

    def row(self) -> TenantStatus:
        return next(row for row in self.place.ps() if row["id"] == self.id)

    def spent(self) -> CardComputeUsage:
        """Its compute, as gpushared tells it to `gpushare ps`."""
        return self.row()["cards"][0]["compute"]

    def is_kept(self) -> bool:
        """Whether a scheduler has lately been at its gate of its first card."""
        root = Path(f"/proc/{self.pids[0]}/root")
        page = (root / abi.TENANT_DIR.lstrip("/") / abi.GRANT_NAME).read_bytes()
        at = abi.grant_card_offset(0) + abi.GRANT_CARD_GATE + abi.GATE_HEARTBEAT_NS
        (beat,) = struct.unpack_from("<Q", page, at)
        return time.monotonic_ns() - int(beat) < abi.GATE_STALE_NS


class SharedCardStack:
    """A stack with a card in slow motion, the truth of it, and the containers that run there."""

    def __init__(self, stack: Stack, work: Path, truth: Truth) -> None:
        self.stack = stack
        self.work = work
        self.truth = truth
        self.running: list[Busy] = []

    def start(self, quota: Mapping[str, str], **more: Any) -> Busy:
        return Busy(self, quota, **more).start()

    def parts(self, *tenants: Busy, seconds: float = SECONDS) -> list[float]:
        """Return what each gets of the card from now on, in percent."""
        pids = [tenant.pids for tenant in tenants]
        before = self.truth.now()
        after = self.truth.later(before, seconds)
        return [part(before, after, each) for each in pids]

    def assert_parts(self, wanted: Mapping[Busy, float], *, band: float = 8) -> None:
        """Each gets what is wanted of the card, in percent, by one of a few measurements.

        One alone may be disturbed: other tests use the same processors.
        """
        seen = []
        for _ in range(TRIES):
            had = self.parts(*wanted)
            if all(
                abs(part - mean) <= band for part, mean in zip(had, wanted.values(), strict=True)
            ):
                return
            seen.append([round(part, 1) for part in had])
        raise AssertionError(f"wanted {[*wanted.values()]} of the card, and they had {seen}")

    def ps(self) -> list[TenantStatus]:
        return self.stack.client.tenants()

    def clear(self) -> None:
        for tenant in self.running:
            tenant.remove()
        self.running.clear()


def scheduler(stack: Stack) -> int:
    """Return the pid of the stack's scheduler, 0 where there is none."""
    socket = str(stack.root / "run" / "scheduler.sock")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # ended meanwhile
            if socket.encode() in words and words[0].endswith(b"gpushare-scheduler"):
                return int(entry.name)
    return 0
