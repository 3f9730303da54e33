# SPDX-License-Identifier: Apache-2.0
"""The memory scenario: two tenants share a card, each within its quota and isolated from the other.

The demo, `gpushare verify --memory` and the engine tests run the same steps with different engines
and daemons. Every figure is read from a tenant or the daemon, none is assumed of the card, so the
scenario runs on any card with enough memory.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from gpushare.quota.size import exact_size, format_size
from gpushare.verify import (
    GIB,
    GRANULE,
    OUT_OF_MEMORY,
    ScenarioSteps,
    wait_until,
)
from gpushare.verify.runners import ProbeFailed, ProbeTenant, environment

PLAIN: Final = "cuMemAlloc"
#: The driver functions that allocate memory, with the kind that `gpushare why` shows.
PARTS: Final[Mapping[str, str]] = {
    PLAIN: "buffers",
    "cuMemAllocPitch": "buffers",
    "cuMemAllocManaged": "managed",
    "cuMemAllocAsync": "pools",
    "cuMemAllocFromPoolAsync": "pools",
    "cuMemCreate": "physical",
    "cuArrayCreate": "arrays",
    "cuGraphLaunch": "graphs",
    "cuModuleLoadData": "modules",
}
_MPS: Final = "mps"
_CHUNK_BYTES: Final = 64 << 20
# The probe's least array: eight rows, the height of a tile, of 512 KiB (libhook/probe).
_LEAST_ARRAY_BYTES: Final = 4 << 20
# Pools and graphs allocate in chunks, and a module has code in addition to its variables.
_SLACK: Final[Mapping[str, int]] = {
    "cuArrayCreate": _LEAST_ARRAY_BYTES,
    "cuMemAllocAsync": _CHUNK_BYTES,
    "cuMemAllocFromPoolAsync": _CHUNK_BYTES,
    "cuGraphLaunch": _CHUNK_BYTES,
    "cuModuleLoadData": _CHUNK_BYTES,
}


class MemoryScenario(ScenarioSteps):
    """Runs all steps, in the order in which they are printed."""

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        try:
            with ExitStack() as stack:
                train, serve = self._start_both(stack)
                self._listed()
                self._too_much_refused()
                self._without_gpu()
                self._filled(train, self.sizes.small, other=serve)
                self._filled(serve, self.sizes.large, other=train)
                check_limits(self, train)
                check_breakdown(self, train)
                if self.backend != _MPS:  # the server's limits hold from the start of a process on
                    self._grown(train)
                    self._shrunk(train)
                card = self._killed(serve)
                if (
                    card["tenants"] == 1
                ):  # otherwise containers of others would be refused meanwhile
                    check_burst(self, card["index"])
        except ProbeFailed as error:
            self.report.check("every tenant responds", False, error)
        return self.report.passed

    def _start_both(self, stack: ExitStack) -> tuple[ProbeTenant, ProbeTenant]:
        sizes = self.sizes
        self.report.title("Two containers request shares of one card")
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

    def _started(self, stack: ExitStack, name: str, memory: int, cores: int) -> ProbeTenant:
        quota = {"memory": exact_size(memory)} | ({"cores": str(cores)} if cores else {})
        return self.started(stack, name, quota)

    def _listed(self) -> None:
        self.report.title("The host lists both")
        self.show("ls")
        self.show("ps")
        rows = self.tenants()
        requested = {
            self.full_name("train"): (self.sizes.small, self.sizes.small_cores),
            self.full_name("serve"): (self.sizes.large, self.sizes.large_cores),
        }
        listed = {
            name: (rows[name]["cards"][0]["quota_bytes"], rows[name]["cards"][0]["cores"])
            for name in requested
            if name in rows
        }
        self.report.check("ps shows both with their quotas", listed == requested, listed)
        if self.backend == _MPS:
            self._are_clients([*requested])

    def _are_clients(self, names: list[str]) -> None:
        """Check that MPS is in force: the driver does without a server, and says nothing."""

        def servers() -> dict[str, str]:
            rows = self.tenants()
            servers_by_name = {name: rows[name].get("mps") or {} for name in names if name in rows}
            return {name: mps.get("server_state", "") for name, mps in servers_by_name.items()}

        self.report.check(
            "both are clients of the card's MPS server, which is active",
            wait_until(lambda: list(servers().values()) == ["ACTIVE", "ACTIVE"]),
            servers(),
        )
        warned = [text for row in self.tenants().values() for text in row["warnings"]]
        self.report.check("no process uses the card without the server", not warned, warned)

    def _too_much_refused(self) -> None:
        self.report.title("A third container that does not fit is refused, with the reason")
        size = f"{max(card['memory_bytes'] for card in self.cards()) // GIB + 1}GiB"
        with self.spawned("third", {"memory": size}) as third:
            status = third.wait()
        self.report.output(third.errors)
        self.report.check(
            "it did not start, and the message names the available memory and the other containers",
            status != 0 and "no card has room" in third.errors and "available" in third.errors,
            f"exit status {status}: {third.errors}",
        )

    def _without_gpu(self) -> None:
        if self.engine.name == "host":
            return
        self.report.title("A container that requests no GPU starts as under runc")
        with self.spawned("plain", {}) as plain:
            status = plain.wait()
        self.report.check(
            "it ran, without a CUDA driver",
            status == 3 and "libcuda.so.1" in plain.errors,
            f"exit status {status}: {plain.errors}",
        )

    def _filled(self, tenant: ProbeTenant, quota: int, other: ProbeTenant) -> None:
        self.report.title(f"{tenant.name} allocates all of its free memory")
        before, neighbour = tenant.ask("info"), other.ask("info")
        fill = self.fill(tenant, PLAIN, before["free"])
        after = tenant.ask("info")
        self.report.check(
            f"{format_size(fill['bytes'])} of {format_size(before['free'])} free allocated, to the "
            f"last granule of {format_size(fill['granule'])}",
            0 <= before["free"] - fill["bytes"] < fill["granule"],
            f"free {before['free']}, allocated {fill}",
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
        allocated = other.ask(f"alloc {fill['granule']}")
        self.report.check(
            f"{other.name} still has its memory and can allocate, unless it is full itself",
            now == neighbour and (allocated["code"] == 0) == (neighbour["free"] >= fill["granule"]),
            f"{neighbour} became {now}, {allocated}",
        )
        if allocated["code"] == 0:
            other.ask("free")

    def _grown(self, tenant: ProbeTenant) -> None:
        self.report.title(f"The quota of {tenant.name} is increased while it runs")
        more = self.sizes.resized - self.sizes.small
        tenant.ask("free")
        tenant.ask("fill")
        denied = tenant.ask(f"alloc {more}")
        self.show("set", self.full_name("train"), "--memory", exact_size(self.sizes.resized))
        allowed = tenant.ask(f"alloc {more}")
        info = tenant.ask("info")
        self.report.check(
            f"denied before, allowed after, and it sees {format_size(self.sizes.resized)}",
            denied["result"] == OUT_OF_MEMORY
            and allowed["code"] == 0
            and info["total"] == self.sizes.resized,
            f"{denied}, then {allowed}, {info}",
        )

    def _shrunk(self, tenant: ProbeTenant) -> None:
        self.report.title(f"The quota of {tenant.name} is reduced below its usage")
        self.show("set", self.full_name("train"), "--memory", exact_size(self.sizes.small))
        denied = tenant.ask("alloc 1")
        info = tenant.ask("info")
        self.report.check(
            f"it keeps its memory and cannot allocate more; it sees "
            f"{format_size(self.sizes.small)}, all of it used",
            denied["result"] == OUT_OF_MEMORY
            and (info["total"], info["free"]) == (self.sizes.small, 0),
            f"{denied}, {info}",
        )
        tenant.ask("free")
        allowed = tenant.ask(f"alloc {self.sizes.small // 2 - GIB // 4}")
        fits = "once it is within its quota, it can allocate again"
        self.report.check(fits, allowed["code"] == 0, allowed)

    def _killed(self, tenant: ProbeTenant) -> dict[str, Any]:
        """Kill `tenant`; return the row of its card after that."""
        self.report.title(f"{tenant.name} is killed while all its memory is in use")
        index = self.tenants()[tenant.name]["cards"][0]["index"]
        card = self.card(index)
        wanted = card["available_bytes"] + self.sizes.large
        kill = self.engine.kill(tenant.name)
        self.report.command(kill)
        subprocess.run(kill, check=True, capture_output=True, env=environment(self.engine))
        tenant.wait()

        def is_back() -> bool:
            card.update(self.card(index))
            return bool(card["available_bytes"] >= wanted)

        back = wait_until(is_back)
        self.show("ls")
        self.report.check(
            f"its {format_size(self.sizes.large)} are available to others again",
            back and tenant.name not in self.tenants(),
            f"{wanted} should be available, {card['available_bytes']} are",
        )
        return card


_MIB = 1 << 20


def check_burst(steps: ScenarioSteps, index: int) -> None:
    """Let one tenant burst on card `index` while another reserves and releases the rest of it."""
    sizes = steps.sizes
    steps.report.title(
        "A container can burst into unreserved memory, and is denied first once it is reserved"
    )
    quota = {
        "memory": exact_size(sizes.small),
        "memory-limit": exact_size(sizes.resized),
        "devices": str(index),
    }
    with ExitStack() as stack:
        burst = steps.started(stack, "burst", quota)
        burst.ask("context")
        before = burst.ask("info")
        allowed = burst.ask(f"alloc {sizes.small}")
        steps.show("ps")
        steps.report.check(
            f"with a quota of {format_size(sizes.small)}, it sees {format_size(sizes.resized)} and "
            "can use more than its quota",
            before["total"] == sizes.resized and allowed["code"] == 0,
            f"{before}, {allowed}",
        )
        rest = steps.card(index)["available_bytes"] // _MIB * _MIB
        with ExitStack() as other:
            steps.started(other, "rest", {"memory": exact_size(rest), "devices": str(index)})
            denied = burst.ask(f"alloc {GRANULE}")
            now = burst.ask("info")
            steps.report.check(
                "when another container reserves the rest of the card, it keeps its memory and "
                "cannot allocate more",
                denied["result"] == OUT_OF_MEMORY and now["total"] < sizes.resized,
                f"{denied}, {now}",
            )
        again = wait_until(lambda: burst.ask("info")["total"] == sizes.resized)
        steps.report.check(
            "when that container exits, it can burst again", again, burst.ask("info")
        )


def slack_bytes(api: str, granule: int) -> int:
    """Return how much free memory `api` may leave when it is denied one more granule."""
    return _SLACK.get(api, granule)


def check_limits(steps: ScenarioSteps, tenant: ProbeTenant) -> None:
    """Allocate all free memory through each path: up to the quota and not beyond it."""
    steps.report.title(f"Every allocation path of {tenant.name} has the same limit")
    for api in PARTS:
        tenant.ask("free")
        free = tenant.ask("info")["free"]
        fill = steps.fill(tenant, api, free)
        slack = slack_bytes(api, fill["granule"])
        steps.report.check(
            f"{api}: {format_size(fill['bytes'])}, then {OUT_OF_MEMORY}",
            0 <= free - fill["bytes"] < slack and fill["result"] == OUT_OF_MEMORY,
            f"free {free}, {fill}",
        )


def check_breakdown(steps: ScenarioSteps, tenant: ProbeTenant) -> None:
    """Allocate some memory through each path and check its line in the breakdown."""
    steps.report.title(f"Where is the memory of {tenant.name}?")
    chunk = steps.sizes.small // 32
    tenant.ask("free")
    for api in PARTS:
        tenant.ask(f"alloc {api} {chunk}")
    denied = tenant.ask(f"alloc {steps.sizes.small}")
    breakdown: dict[str, Any] = {}

    def is_explained() -> bool:
        breakdown.update(json.loads(steps.cli_output("why", tenant.name, "--json")))
        return _explained(breakdown["cards"][0])

    explained = wait_until(is_explained)
    steps.show("why", tenant.name)
    card = breakdown["cards"][0]
    steps.report.check(
        "the lines add up to its used memory, which is its quota less its free memory",
        sum(card["kinds"].values()) == card["used_bytes"]
        and card["used_bytes"] == card["quota_bytes"] - tenant.ask("info")["free"],
        card,
    )
    taken = {part: chunk * list(PARTS.values()).count(part) for part in PARTS.values()}
    steps.report.check(
        f"each path has its line, with the {format_size(chunk)} allocated through it",
        all(card["kinds"][part] >= size for part, size in taken.items()),
        card["kinds"],
    )
    steps.report.check("no memory that the driver reports is missing from the sum", explained, card)
    last = breakdown["last_denied_allocation"]
    steps.report.check(
        f"the denied allocation is reported: {format_size(steps.sizes.small)}",
        denied["result"] == OUT_OF_MEMORY
        and last is not None
        and last["bytes"] >= steps.sizes.small,
        f"{denied}, {last}",
    )


def _explained(card: Mapping[str, Any]) -> bool:
    """Whether the driver reports no more than the account and the unaccounted memory."""
    reported: int | None = card["driver_bytes"]
    return reported is not None and reported <= card["used_bytes"] - card["kinds"]["managed"]


# --- the eviction scenario: a sleeping container lends its memory, and gets it back ---
#
# Both request most of what a card has available, so only one of them has room at a time. What the
# first one has written is compared after its restore, which its own call of the driver asks for.

#: The bytes that the sleeping container writes: more is only slower.
CONTENT_BYTES: Final = 256 << 20
LEAST_BYTES: Final = GIB  # of a quota: a context, and the content
_SEED: Final = 20


@dataclass
class EvictionScenario(ScenarioSteps):
    """Runs all steps on the card with the most available memory."""

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        self.report.title("A sleeping container gives its GPU memory to another one")
        roomiest = max(self.cards(), key=lambda card: int(card["available_bytes"]))
        memory = int(roomiest["available_bytes"]) * 3 // 5 // GIB * GIB
        if memory < LEAST_BYTES:
            self.report.check(
                f"a card has {format_size(2 * LEAST_BYTES)} available", False, roomiest
            )
            return self.report.passed
        quota = {"memory": exact_size(memory), "devices": str(roomiest["index"])}
        try:
            with ExitStack() as stack:
                sleeper = self.started(stack, "sleeper", quota)
                self._written(sleeper)
                self._full(quota)
                evicted_bytes = self._evicted(sleeper)
                with ExitStack() as guests:
                    self._used(self.started(guests, "guest", quota), memory)
                self._continued(sleeper, evicted_bytes)
        except ProbeFailed as error:
            self.report.check("every tenant responds", False, error)
        return self.report.passed

    def _written(self, sleeper: ProbeTenant) -> None:
        sleeper.ask(f"alloc cuMemAlloc {CONTENT_BYTES}")
        written = sleeper.ask(f"write {_SEED}")
        self.report.check(
            f"{sleeper.name} has written {format_size(CONTENT_BYTES)}, and sleeps",
            written["code"] == 0 and written["bytes"] == CONTENT_BYTES,
            written,
        )

    def _full(self, quota: dict[str, str]) -> None:
        with self.spawned("guest", quota) as guest:
            status = guest.wait()
        self.report.check("a second container of this size has no room", status != 0, guest.errors)

    def _evicted(self, sleeper: ProbeTenant) -> int:
        self.show("evict", sleeper.name)
        self.show("ps")
        evicted = self._eviction(sleeper)
        evicted_bytes = 0 if evicted is None else int(evicted["bytes"])
        self.report.check(
            "its memory is in host memory, and the card has room",
            evicted is not None
            and evicted["state"] == "evicted"
            and evicted_bytes >= CONTENT_BYTES,
            evicted,
        )
        return evicted_bytes

    def _used(self, guest: ProbeTenant, memory: int) -> None:
        info = guest.ask("info")
        filled = guest.ask(f"alloc cuMemAlloc {int(info['free']) // 2}")
        self.report.check(
            f"{guest.name} starts in its place, and uses its {format_size(memory)}",
            info["total"] == memory and filled["code"] == 0,
            (info, filled),
        )

    def _continued(self, sleeper: ProbeTenant, evicted_bytes: int) -> None:
        # The guest's end is known to gpushared a moment later: the call waits for the room.
        checked = sleeper.ask(f"check {_SEED}")
        self.report.check(
            f"{sleeper.name} continues at its next CUDA call, and finds its data as it left it",
            checked["code"] == 0
            and checked["bytes"] == CONTENT_BYTES <= evicted_bytes
            and checked["different"] == 0,
            checked,
        )
        self.report.check(
            "its memory is on the card again",
            wait_until(lambda: self._eviction(sleeper) is None),
            self._eviction(sleeper),
        )

    def _eviction(self, sleeper: ProbeTenant) -> dict[str, Any] | None:
        eviction: dict[str, Any] | None = self.tenants()[sleeper.name].get("eviction")
        return eviction
