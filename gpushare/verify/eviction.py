# SPDX-License-Identifier: Apache-2.0
"""The eviction scenario: a sleeping container gives its memory to another one, and gets it back.

Both request most of what a card has available, so only one of them has room at a time. What the
first one has written is compared after its restore, which its own call of the driver asks for.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from gpushare.quota.size import exact_size, format_size
from gpushare.verify.runners import ProbeFailed, ProbeTenant
from gpushare.verify.scenario import GIB, ScenarioSteps, wait_until

#: What the sleeping container writes: more is only slower.
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
        held = 0 if evicted is None else int(evicted["bytes"])
        self.report.check(
            "its memory is in host memory, and the card has room",
            evicted is not None and evicted["state"] == "evicted" and held >= CONTENT_BYTES,
            evicted,
        )
        return held

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
        evicted: dict[str, Any] | None = self.tenants()[sleeper.name].get("evicted")
        return evicted
