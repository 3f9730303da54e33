# SPDX-License-Identifier: Apache-2.0
"""A driver that goes wrong beneath tenants: two simulated cards, a tenant at work on each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare import simulator
from gpushare.client import Client
from gpushare.verify import ProbeTenant, image
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
QUOTA_BYTES = 10 * GIB
CARDS = 2
#: Of a question to the driver: a test of one that hangs waits for it.
DEADLINE_SECONDS = 1


@dataclass
class MachineWithFaults:
    """The stack, its simulated device, and a client of its daemon."""

    stack: Stack

    @property
    def device(self) -> Path:
        return Path(self.stack.env["GPUSHARE_SIM_DEVICE"])

    @property
    def client(self) -> Client:
        return Client(self.stack.socket)

    @property
    def daemon_pid(self) -> int:
        assert self.stack.daemon is not None
        return self.stack.daemon.process.pid

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return what gpushared logged under these names."""
        lines = (self.stack.root / "gpushared.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry["event"] in names]

    def warnings(self) -> str:
        return "; ".join(self.client.status()["warnings"])

    def health(self, index: int) -> str:
        return self.client.cards()[index]["health"]

    def is_well(self) -> bool:
        """Whether the daemon sees nothing wrong."""
        return not self.warnings() and all(card["health"] == "ok" for card in self.client.cards())

    def worker(self) -> int:
        """Return the pid of the process that asks NVML; 0 where there is none."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                ours = b"gpushare.daemon.cards" in (entry / "cmdline").read_bytes()
                if ours and int(parent) == self.daemon_pid:
                    return int(entry.name)
        return 0

    def allocated(self) -> list[int]:
        return [card["allocated_bytes"] for card in self.client.cards()]

    def bundle(self, card: int, memory: str = "10GiB") -> Bundle:
        """Return a container on a card, of which its program sees no other."""
        quota = {"memory": memory, "devices": str(card)}
        return Bundle(self.stack, quota=quota, args=(image.PROGRAM,))

    def refusal(self, card: int, memory: str = "10GiB") -> str:
        """Return why a container does not start on a card; "" where it does."""
        bundle = self.bundle(card, memory)
        with bundle.run() as tenant:
            with suppress(Exception):  # it ends before its first word
                if tenant.start()["code"] == 0:
                    return ""
            assert tenant.wait() != 0
            return tenant.errors

    def can_start(self, card: int) -> bool:
        started = self.refusal(card) == ""
        wait_until(lambda: len(self.client.tenants()) == CARDS)
        return started


def work(tenant: ProbeTenant) -> None:
    """Have a tenant fill its quota, launch, meet its limit, and free: as if nothing was wrong."""
    assert tenant.ask(f"alloc {QUOTA_BYTES - 2 * GIB}")["code"] == 0
    assert tenant.ask("spin 100000 5")["code"] == 0
    assert tenant.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert tenant.ask("free")["code"] == 0


@contextmanager
def machine() -> Iterator[MachineWithFaults]:
    """Run a daemon on two cards."""
    with Stack(cards=CARDS) as stack:
        settings = yaml.safe_load(stack.config.read_text())
        settings["timing"] = {
            "driver_timeout_seconds": DEADLINE_SECONDS,
            "reconcile_interval_seconds": 1,
        }
        stack.config.write_text(yaml.safe_dump(settings))
        stack.start_daemon()
        yield MachineWithFaults(stack)


@contextmanager
def tenants(machine: MachineWithFaults) -> Iterator[list[ProbeTenant]]:
    """Run a tenant on each card; in the end nothing is lost and no tenant was killed."""
    for card in range(CARDS):
        simulator.fail(machine.device, card)
    wait_until(machine.is_well)
    bundles = [machine.bundle(card) for card in range(CARDS)]
    with bundles[0].run() as first, bundles[1].run() as second:
        for tenant in (first, second):
            assert tenant.start()["code"] == 0
            work(tenant)
        assert machine.allocated() == [QUOTA_BYTES] * CARDS
        yield [first, second]
        wait_until(machine.is_well)
        assert sorted(machine.allocated()) == [QUOTA_BYTES] * CARDS
        for tenant in (first, second):
            work(tenant)
        acted = ("tenant-frozen", "tenant-killed", "tenant-released", "tenant-warned")
        ours = {bundle.id for bundle in bundles}
        assert [line for line in machine.events(*acted) if line.get("id") in ours] == []
        assert machine.stack.daemon is not None
        assert machine.stack.daemon.process.poll() is None
    wait_until(lambda: machine.client.tenants() == [])
    assert machine.allocated() == [0] * CARDS
