# SPDX-License-Identifier: Apache-2.0
"""What the steps of a scenario are made of: tenants, commands, and what they said."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from .engine import Engine, environment, spawn
from .report import Report
from .tenant import ProbeFailed, Tenant

GIB: Final = 1 << 30
OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"
GRANULE: Final = 2 << 20  # the largest that a driver gives device memory in
# The daemon looks every 250 ms; a killed container takes its engine a second.
SETTLE_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Sizes:
    """What the scenario asks for, in bytes and percent; `small` + `large` fit the card.

    Where its compute is promised to others already the cores are 0: none are asked.
    """

    small: int = 4 * GIB
    large: int = 8 * GIB
    resized: int = 6 * GIB
    small_cores: int = 30
    large_cores: int = 60


@dataclass
class Stage:
    """Tenants of `engine`, looked at with the `cli`; `prefix` begins their names."""

    engine: Engine
    cli: list[str]
    report: Report
    prefix: str = ""
    sizes: Sizes = Sizes()

    def fill(self, tenant: Tenant, api: str, free: int) -> dict[str, Any]:
        """Fill what is free through `api`; a limit that does not hold is not tried to the end.

        On a real card that would take the memory of everybody else on it.
        """
        beyond = tenant.ask(f"alloc {api} {free + GRANULE}")
        if beyond["code"] != 0:
            return tenant.ask(f"fill {api}")
        tenant.ask("free")
        return beyond | {"granule": GRANULE}

    def full_name(self, name: str) -> str:
        """Return what tenant `name` is called with the engine."""
        return self.prefix + name

    def started(self, stack: ExitStack, name: str, quota: Mapping[str, str]) -> Tenant:
        """Start tenant `name` until `stack` is left."""
        tenant = stack.enter_context(self.spawned(name, quota))
        tenant.start()
        return tenant

    @contextmanager
    def spawned(self, name: str, quota: Mapping[str, str]) -> Iterator[Tenant]:
        """Run the probe as tenant `name`, whether it starts or not; remove what is left of it."""
        full = self.full_name(name)
        self.report.command(self.engine.run(full, quota))
        try:
            with spawn(self.engine, full, quota) as tenant:
                yield tenant
        finally:
            self.engine.remove(full)

    def show(self, *words: str) -> None:
        """Show a command of `gpushare` and what it said."""
        self.report.command(["gpushare", *words])
        self.report.output(self.cli_said(*words))

    def cli_said(self, *words: str) -> str:
        """Return what a command of `gpushare` prints; ProbeFailed where it fails."""
        done = subprocess.run(
            [*self.cli, *words],
            check=False,
            capture_output=True,
            text=True,
            env=environment(self.engine),
        )
        if done.returncode:
            raise ProbeFailed(f"gpushare {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def tenants(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `gpushare ps` by name."""
        # containerd's names are namespace/id.
        rows = json.loads(self.cli_said("ps", "--json"))
        return {row["name"].rpartition("/")[2]: row for row in rows}

    def cards(self) -> list[dict[str, Any]]:
        """Return the rows of `gpushare ls`."""
        found: list[dict[str, Any]] = json.loads(self.cli_said("ls", "--json"))
        return found

    def card(self, index: int) -> dict[str, Any]:
        """Return the row of card `index`."""
        return next(card for card in self.cards() if card["index"] == index)


def soon(holds: Callable[[], bool]) -> bool:
    """Whether `holds` comes true within SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
