# SPDX-License-Identifier: Apache-2.0
"""The scenario: two tenants share a card, each held to its quota, neither noticing the other.

The same steps are the demo, `gpushare verify --memory` and the engine tests; only the engine and
the daemon behind them differ. Every figure is read from a tenant or from the daemon; none is
assumed of the card, so it runs on any card with room.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import Any

from gpushare.quota.size import exact_size, format_size

from . import lending, ways
from .engine import environment
from .stage import GIB, OUT_OF_MEMORY, Stage, soon
from .tenant import ProbeFailed, Tenant


class Scenario(Stage):
    """Goes through every step, in the order in which a reader sees them."""

    def run(self) -> bool:
        """Return whether all that was claimed held."""
        try:
            with ExitStack() as stack:
                train, serve = self._start_both(stack)
                self._listed()
                self._too_much_refused()
                self._without_gpu()
                self._filled(train, self.sizes.small, other=serve)
                self._filled(serve, self.sizes.large, other=train)
                ways.every_way(self, train)
                ways.accounted(self, train)
                self._grown(train)
                self._shrunk(train)
                card = self._killed(serve)
                if card["tenants"] == 1:  # else strangers would be refused for as long
                    lending.lent_and_taken_back(self, card["index"])
        except ProbeFailed as error:
            self.report.check("every tenant answers", False, error)
        return self.report.held

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

    def _started(self, stack: ExitStack, name: str, memory: int, cores: int) -> Tenant:
        quota = {"memory": exact_size(memory)} | ({"cores": str(cores)} if cores else {})
        return self.started(stack, name, quota)

    def _listed(self) -> None:
        self.report.title("The host sees both")
        self.show("ls")
        self.show("ps")
        rows = self.tenants()
        asked = {
            self.full_name("train"): (self.sizes.small, self.sizes.small_cores),
            self.full_name("serve"): (self.sizes.large, self.sizes.large_cores),
        }
        seen = {
            name: (rows[name]["cards"][0]["memory_bytes"], rows[name]["cards"][0]["cores"])
            for name in asked
            if name in rows
        }
        self.report.check("ps shows both with their quotas", seen == asked, seen)

    def _too_much_refused(self) -> None:
        self.report.title("A third that does not fit is refused, and told why")
        size = f"{max(card['memory_bytes'] for card in self.cards()) // GIB + 1}GiB"
        with self.spawned("third", {"memory": size}) as third:
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
        with self.spawned("plain", {}) as plain:
            status = plain.wait()
        self.report.check(
            "it ran, and found no CUDA driver in it",
            status == 3 and "libcuda.so.1" in plain.errors,
            f"exit status {status}: {plain.errors}",
        )

    def _filled(self, tenant: Tenant, quota: int, other: Tenant) -> None:
        self.report.title(f"{tenant.name} takes all that it was told is free")
        before, neighbour = tenant.ask("info"), other.ask("info")
        fill = self.fill(tenant, ways.PLAIN, before["free"])
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

    def _grown(self, tenant: Tenant) -> None:
        self.report.title(f"{tenant.name} is given more while it runs")
        more = self.sizes.resized - self.sizes.small
        tenant.ask("free")
        tenant.ask("fill")
        refused = tenant.ask(f"alloc {more}")
        self.show("set", self.full_name("train"), "--memory", exact_size(self.sizes.resized))
        given = tenant.ask(f"alloc {more}")
        info = tenant.ask("info")
        self.report.check(
            f"refused before, given after, and it sees {format_size(self.sizes.resized)} now",
            refused["result"] == OUT_OF_MEMORY
            and given["code"] == 0
            and info["total"] == self.sizes.resized,
            f"{refused}, then {given}, {info}",
        )

    def _shrunk(self, tenant: Tenant) -> None:
        self.report.title(f"{tenant.name} is left less than it uses")
        self.show("set", self.full_name("train"), "--memory", exact_size(self.sizes.small))
        refused = tenant.ask("alloc 1")
        info = tenant.ask("info")
        self.report.check(
            f"it keeps what it has and gets not a byte more; it sees "
            f"{format_size(self.sizes.small)}, all of it used",
            refused["result"] == OUT_OF_MEMORY
            and (info["total"], info["free"]) == (self.sizes.small, 0),
            f"{refused}, {info}",
        )
        tenant.ask("free")
        given = tenant.ask(f"alloc {self.sizes.small // 2 - GIB // 4}")
        self.report.check("once it fits it is given memory again", given["code"] == 0, given)

    def _killed(self, tenant: Tenant) -> dict[str, Any]:
        """Kill `tenant`; return what is left of its card."""
        self.report.title(f"{tenant.name} is killed with all its memory in use")
        index = self.tenants()[tenant.name]["cards"][0]["index"]
        card = self.card(index)
        wanted = card["free_bytes"] + self.sizes.large
        kill = self.engine.kill(tenant.name)
        self.report.command(kill)
        subprocess.run(kill, check=True, capture_output=True, env=environment(self.engine))
        tenant.wait()

        def is_back() -> bool:
            card.update(self.card(index))
            return bool(card["free_bytes"] >= wanted)

        back = soon(is_back)
        self.show("ls")
        self.report.check(
            f"its {format_size(self.sizes.large)} are free for others again",
            back and tenant.name not in self.tenants(),
            f"{wanted} should be free, {card['free_bytes']} are",
        )
        return card
