# SPDX-License-Identifier: Apache-2.0
"""A tenant's processes: what they launch, and how the interposer counts and gates it.

The interposer knows no budgets: through an open window it passes work up to a bound in flight, at a
closed gate it waits, and it rings when the scheduler should look.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tools.model.clock import MS, US, Clock
from tools.model.hardware import CardContext, CardHardware, Meeting, WorkGroup
from tools.model.policy import CLOSED, METERED, OPEN, SeenStruct, ShareStruct

LAUNCH_NS = 5 * US
SEEN_NS = 20 * US  # from a timing event on the card to the process that reads it
QUEUE = 1024  # of the driver: a launch beyond it waits
AT_ONCE = 16  # launches in one step of the model


class KernelSequence:
    """Durations to launch one after the other, over and over, and what each is taken for."""

    __slots__ = ("at", "estimates", "ns")

    def __init__(self, ns: list[int], estimates: list[int]) -> None:
        self.ns = ns
        self.estimates = estimates
        self.at = 0


@dataclass(slots=True)
class Launch:
    """So many of `kernels`, on the tenant's card `card`."""

    kernels: KernelSequence
    count: int
    card: int = 0
    meeting: Meeting | None = None


class Sync:
    """Wait for what was launched."""


@dataclass(slots=True)
class Sleep:
    """Do nothing."""

    ns: int


@dataclass(slots=True)
class Note:
    """Report the time to the measurement."""

    call: Callable[[int], None]


Step = Launch | Sync | Sleep | Note
Program = Callable[["Thread"], Iterator[Step]]


@dataclass(eq=False)
class TenantSlot:
    """A tenant on a card: its gate, and what all its processes have there."""

    clock: Clock
    wake: Callable[["TenantSlot"], None]
    number: int = -1
    mode: int = OPEN
    in_flight_max: int = 0
    timing_interval_ns: int = 500 * US
    pieces_min: int = 1
    wait_max: int = 5000 * MS
    pending: int = 0
    pieces: int = 0
    works: list["ProcessWork"] = field(default_factory=list)
    waiting: list["Thread"] = field(default_factory=list)
    forced: int = 0
    changed: bool = True
    lie: Callable[[SeenStruct], None] | None = None

    def passes(self, pending: int, pieces: int, estimate: int) -> bool:
        """Whether one more piece passes a gate that does not let everything through."""
        return self.mode != CLOSED and (
            pieces < self.pieces_min or pending + estimate <= self.in_flight_max
        )

    def see(self, seen: SeenStruct) -> None:
        """What the pages say, as the scheduler adds it up."""
        now = self.clock.now
        busy = pending = progress = idle = submitted = contexts = waiting = 0
        for work in self.works:
            busy += work.busy
            submitted += work.submitted
            if work.submitted != work.ended:
                busy += now - work.since
                pending += work.pending
                progress = max(progress, work.since)
                contexts += 1
            else:
                idle = max(idle, work.since)
        for thread in self.waiting:
            waiting += thread.counted
        seen.at_ns, seen.busy_ns, seen.pending_ns = now, busy, pending
        seen.progress_ns, seen.submitted = progress, submitted
        seen.contexts, seen.waiting = contexts, waiting
        seen.idle_ns = 0 if contexts else idle
        self.changed = contexts > 0
        if self.lie:
            self.lie(seen)


class ProcessWork:
    """One process on one card: struct gpushare_work, and the driver's queue."""

    __slots__ = (
        "busy", "context", "ended", "pending", "place", "queued", "since", "submitted", "thread",
    )  # fmt: skip

    def __init__(self, thread: "Thread", place: TenantSlot, context: CardContext) -> None:
        self.thread = thread
        self.place = place
        self.context = context
        self.queued = 0
        self.busy = self.since = self.pending = self.submitted = self.ended = 0
        place.works.append(self)

    def submit(self, ns: int, estimate: int, pieces: int, meeting: Meeting | None) -> None:
        """`pieces` at once, followed by a timing event."""
        place = self.place
        counted = place.mode != OPEN
        self.queued += pieces
        if counted:
            now = place.clock.now
            if self.submitted == self.ended:
                self.since = now
                if place.mode == METERED:
                    place.wake(place)
            self.submitted += pieces
            self.pending += estimate
            place.pending += estimate
            place.pieces += pieces
            place.changed = True

        def done(end: int) -> None:
            self.queued -= pieces
            if counted:
                place.clock.at(end + SEEN_NS, self._ended, end, estimate, pieces)
            self.thread.progress(self.queued)

        group = WorkGroup(ns, done)
        group.meets = meeting
        self.context.card.submit(self.context, group)

    def _ended(self, end: int, estimate: int, pieces: int) -> None:
        if self.thread.stopped:
            self.thread.later.append(lambda: self._ended(end, estimate, pieces))
            return
        place = self.place
        if end > self.since:
            self.busy += end - self.since
            self.since = end
        self.ended += pieces
        self.pending -= estimate
        place.pending -= estimate
        place.pieces -= pieces
        place.changed = True
        if self.submitted == self.ended:
            place.wake(place)
        if place.waiting and place.mode != CLOSED:
            for thread in list(place.waiting):
                thread.resume()


class Thread:
    """A process with one thread that launches, and a context on each of its tenant's cards."""

    def __init__(
        self, tenant: "ModelTenant", places: list[TenantSlot], contexts: list[CardContext]
    ) -> None:
        self.tenant = tenant
        self.clock = tenant.clock
        self.number = len(tenant.threads)
        self.works = [
            ProcessWork(self, place, context)
            for place, context in zip(places, contexts, strict=True)
        ]
        self.stopped = False
        self.later: list[Callable[[], None]] = []
        self.counted = 1  # in `waiting` of the page
        self._steps = tenant.program(self)
        self._step: Step | None = None
        self._left = 0
        self._at_gate: TenantSlot | None = None
        self._waits = 0
        self._for: str | None = None
        self._force = False

    def go(self) -> None:
        """Run until something is to be waited for."""
        while True:
            if self.stopped:
                self.later.append(self.go)
                return
            step = self._step
            if step is None:
                step = self._step = next(self._steps, None)
                if step is None:
                    return
                if type(step) is Launch:
                    self._left = step.count
            if type(step) is Launch:
                if not self._launch(step):
                    return
            elif type(step) is Sleep:
                self._step = None
                self.clock.at(self.clock.now + step.ns, self.go)
                return
            elif type(step) is Note:
                step.call(self.clock.now)
            elif any(work.queued for work in self.works):
                self._for = "end"
                return
            self._step = None

    def _launch(self, step: Launch) -> bool:
        """What the gate and the driver's queue let through now; True: all of it."""
        work = self.works[step.card]
        place, kernels = work.place, step.kernels
        gated = place.mode > METERED
        ns = estimate = count = 0
        blocked = False
        size = len(kernels.ns)
        room = min(AT_ONCE, self._left, QUEUE - work.queued)
        while count < room and estimate < place.timing_interval_ns:
            expected = kernels.estimates[kernels.at]
            if gated and not (
                self._force
                or place.passes(place.pending + estimate, place.pieces + count, expected)
            ):
                blocked = True
                break
            self._force = False
            ns += kernels.ns[kernels.at]
            estimate += expected
            kernels.at = kernels.at + 1 if kernels.at + 1 < size else 0
            count += 1
        if count:
            self._left -= count
            work.submit(ns, estimate, count, step.meeting)
        if blocked:
            self._wait(place)
            return False
        if not count:
            self._for = "room"
            return False
        if not self._left:
            self._step = None
        self.clock.at(self.clock.now + count * LAUNCH_NS, self.go)
        return False

    def _wait(self, place: TenantSlot) -> None:
        first = not place.waiting
        self._at_gate = place
        place.waiting.append(self)
        place.changed = True
        if place.mode == CLOSED:
            if first:
                place.wake(place)
            self._waits += 1
            self.clock.at(self.clock.now + place.wait_max, self._waited, self._waits)

    def _waited(self, wait: int) -> None:
        if self._at_gate is not None and wait == self._waits:
            self._at_gate.forced += 1
            self._force = True
            self.resume()

    def resume(self) -> None:
        """Look at the gate again."""
        if self.stopped:
            self.later.append(self.resume)
            return
        place = self._at_gate
        if place is None:
            return
        self._at_gate = None
        place.waiting.remove(self)
        place.changed = True
        self.go()

    def progress(self, queued: int) -> None:
        """Something ended; `queued` are left."""
        if self._for == "room" or (
            self._for == "end" and queued == 0 and not any(work.queued for work in self.works)
        ):
            self._for = None
            self.go()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume_process(self) -> None:
        """SIGCONT."""
        self.stopped = False
        later, self.later = self.later, []
        for call in later:
            call()


@dataclass(eq=False)
class ModelTenant:
    """A container."""

    clock: Clock
    name: str
    share: ShareStruct
    program: Program
    processes: int = 1
    places: list[TenantSlot] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    meetings: dict[int, Meeting] = field(default_factory=dict)

    def start(self, cards: list[CardHardware]) -> None:
        """Its processes, each with a context on each card."""
        for _ in range(self.processes):
            thread = Thread(self, self.places, [card.context() for card in cards])
            self.threads.append(thread)
            self.clock.at(self.clock.now, thread.go)

    def spans(self, card: int = 0) -> list[list[int]]:
        """When its contexts had its card `card`."""
        return [span for thread in self.threads for span in thread.works[card].context.spans]
