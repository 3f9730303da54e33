# SPDX-License-Identifier: Apache-2.0
"""The scenario: two tenants share a card, each held to its quota, neither noticing the other.

The same steps are the demo, `gpushare verify --memory` and the engine tests; only the engine and
the daemon behind them differ. Every figure is read from a tenant or from the daemon; none is
assumed of the card, so it runs on any card with room.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gpushare.quota.size import format_size

from .engine import Engine, environment, spawn
from .report import Report
from .tenant import ProbeFailed, Tenant

GIB = 1 << 30
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
APIS = ("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemCreate")
GRANULE = 2 << 20  # the largest that a driver gives device memory in
SETTLE_SECONDS = 15.0  # the daemon looks every 250 ms; a killed container takes its engine a second


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
class Scenario:
    """Two tenants of `engine`, looked at with the `cli`; `prefix` begins their names."""

    engine: Engine
    cli: list[str]
    report: Report
    prefix: str = ""
    sizes: Sizes = Sizes()

    def run(self) -> bool:
        """Go through every step; whether all that was claimed held."""
        try:
            with ExitStack() as stack:
                train, serve = self._start_both(stack)
                self._listed()
                self._too_much_refused()
                self._without_gpu()
                self._filled(train, self.sizes.small, other=serve)
                self._filled(serve, self.sizes.large, other=train)
                self._every_api(train)
                self._resized(train)
                self._killed(serve)
        except ProbeFailed as error:
            self.report.check("every tenant answers", False, error)
        return self.report.held

    # The steps, in the order in which a reader sees them.

    def _start_both(self, stack: ExitStack) -> tuple[Tenant, Tenant]:
        sizes = self.sizes
        self.report.title("Two containers ask for parts of one card")
        train = self._started(stack, "train", sizes.small, sizes.small_cores)
        serve = self._started(stack, "serve", sizes.large, sizes.large_cores)
        for tenant, quota in ((train, sizes.small), (serve, sizes.large)):
            info = tenant.ask("info")
            self.report.check(
                f"{tenant.name} sees a card of {format_size(quota)}",
                info["total"] == info["device_total"] == quota and info["free"] <= quota,
                info,
            )
        return train, serve

    def _listed(self) -> None:
        self.report.title("The host sees both")
        self._show("ls")
        self._show("ps")
        rows = self._tenants()
        asked = {
            self._name("train"): (self.sizes.small, self.sizes.small_cores),
            self._name("serve"): (self.sizes.large, self.sizes.large_cores),
        }
        seen = {
            name: (rows[name]["cards"][0]["memory_bytes"], rows[name]["cards"][0]["cores"])
            for name in asked
            if name in rows
        }
        self.report.check("ps shows both with their quotas", seen == asked, seen)

    def _too_much_refused(self) -> None:
        self.report.title("A third that does not fit is refused, and told why")
        size = f"{max(card['memory_bytes'] for card in self._cards()) // GIB + 1}GiB"
        with self._spawned("third", {"memory": size}) as third:
            status = third.wait()
        self.report.output(third.errors)
        self.report.check(
            "it did not start, and the message says what is free and who has the rest",
            status != 0 and "no card has room" in third.errors and "free" in third.errors,
            f"exit status {status}: {third.errors}",
        )

    def _without_gpu(self) -> None:
        if self.engine.name == "host":
            return
        self.report.title("A container that asks for no GPU starts as under runc")
        with self._spawned("plain", {}) as plain:
            status = plain.wait()
        self.report.check(
            "it ran, and found no CUDA driver in it",
            status == 3 and "libcuda.so.1" in plain.errors,
            f"exit status {status}: {plain.errors}",
        )

    def _filled(self, tenant: Tenant, quota: int, other: Tenant) -> None:
        self.report.title(f"{tenant.name} takes all that it was told is free")
        before, neighbour = tenant.ask("info"), other.ask("info")
        fill = self._fill(tenant, APIS[0], before["free"])
        after = tenant.ask("info")
        self.report.check(
            f"{format_size(fill['bytes'])} of {format_size(before['free'])} free taken, to the "
            f"last granule of {format_size(fill['granule'])}",
            0 <= before["free"] - fill["bytes"] < fill["granule"],
            f"free {before['free']}, taken {fill}",
        )
        self.report.check(
            f"one step more is {OUT_OF_MEMORY}", fill["result"] == OUT_OF_MEMORY, fill
        )
        self.report.check(
            f"{tenant.name} never held more than its quota",
            after["total"] == quota and 0 <= after["free"] < fill["granule"],
            after,
        )
        now = other.ask("info")
        one = other.ask(f"alloc {fill['granule']}")
        self.report.check(
            f"{other.name} still has what it had and can allocate, unless it is full itself",
            now == neighbour and (one["code"] == 0) == (neighbour["free"] >= fill["granule"]),
            f"{neighbour} became {now}, {one}",
        )
        if one["code"] == 0:
            other.ask("free")

    def _every_api(self, tenant: Tenant) -> None:
        self.report.title(f"The same limit through every way {tenant.name} may allocate")
        for api in APIS:
            tenant.ask("free")
            free = tenant.ask("info")["free"]
            fill = self._fill(tenant, api, free)
            self.report.check(
                f"{api}: {format_size(fill['bytes'])}, then {OUT_OF_MEMORY}",
                0 <= free - fill["bytes"] < fill["granule"] and fill["result"] == OUT_OF_MEMORY,
                f"free {free}, {fill}",
            )

    def _resized(self, tenant: Tenant) -> None:
        size = format_size(self.sizes.resized).replace(" ", "")
        self.report.title(f"{tenant.name} is given more while it runs")
        more = self.sizes.resized - self.sizes.small
        refused = tenant.ask(f"alloc {more}")
        self._show("set", self._name("train"), "--memory", size)
        given = tenant.ask(f"alloc {more}")
        info = tenant.ask("info")
        self.report.check(
            f"refused before, given after, and it sees {format_size(self.sizes.resized)} now",
            refused["result"] == OUT_OF_MEMORY
            and given["code"] == 0
            and info["total"] == self.sizes.resized,
            f"{refused}, then {given}, {info}",
        )

    def _killed(self, tenant: Tenant) -> None:
        self.report.title(f"{tenant.name} is killed with all its memory in use")
        index = self._tenants()[tenant.name]["cards"][0]["index"]
        before = self._free(index)
        kill = self.engine.kill(tenant.name)
        self.report.command(kill)
        subprocess.run(kill, check=True, capture_output=True, env=environment(self.engine))
        tenant.wait()
        back = _soon(lambda: self._free(index) >= before + self.sizes.large)
        self._show("ls")
        self.report.check(
            f"its {format_size(self.sizes.large)} are free for others again",
            back and tenant.name not in self._tenants(),
            f"free before {before}, now {self._free(index)}",
        )

    # What the steps are made of.

    def _fill(self, tenant: Tenant, api: str, free: int) -> dict[str, Any]:
        """Fill what is free through `api`; a limit that does not hold is not tried to the end.

        On a real card that would take the memory of everybody else on it.
        """
        beyond = tenant.ask(f"alloc {api} {free + GRANULE}")
        if beyond["code"] == 0:
            tenant.ask("free")
            raise ProbeFailed(f"{tenant.name} got {beyond} with {free} bytes free")
        return tenant.ask(f"fill {api}")

    def _name(self, name: str) -> str:
        return self.prefix + name

    def _started(self, stack: ExitStack, name: str, memory: int, cores: int) -> Tenant:
        size = format_size(memory).replace(" ", "")
        quota = {"memory": size} | ({"cores": str(cores)} if cores else {})
        tenant = stack.enter_context(self._spawned(name, quota))
        tenant.start()
        return tenant

    @contextmanager
    def _spawned(self, name: str, quota: Mapping[str, str]) -> Iterator[Tenant]:
        full = self._name(name)
        self.report.command(self.engine.run(full, quota))
        try:
            with spawn(self.engine, full, quota) as tenant:
                yield tenant
        finally:
            self.engine.remove(full)

    def _show(self, *words: str) -> None:
        self.report.command(["gpushare", *words])
        self.report.output(self._cli(*words))

    def _cli(self, *words: str) -> str:
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

    def _tenants(self) -> dict[str, dict[str, Any]]:
        # containerd's names are namespace/id.
        rows = json.loads(self._cli("ps", "--json"))
        return {row["name"].rpartition("/")[2]: row for row in rows}

    def _cards(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._cli("ls", "--json"))
        return found

    def _free(self, index: int) -> int:
        return int(next(card["free_bytes"] for card in self._cards() if card["index"] == index))


def _soon(holds: Callable[[], bool]) -> bool:
    """Whether `holds` comes true within SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
