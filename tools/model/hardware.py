# SPDX-License-Identifier: Apache-2.0
"""A card: contexts take turns of one slice each, and a switch costs time.

The figures are those of an A100 on which two saturating tenants get 92 % of what one gets alone.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tools.model.clock import MS, US, Clock


@dataclass(frozen=True)
class CardTiming:
    """What the hardware takes; nanoseconds."""

    slice_ns: int = 2 * MS
    preempt_ns: int = 160 * US  # a switch away from work
    drained_ns: int = 30 * US  # a switch away from a context that has none left


class WorkGroup:
    """Units of work that one timing event covers."""

    __slots__ = ("done", "left", "meets", "started")

    def __init__(self, ns: int, done: Callable[[int], None]) -> None:
        self.left = ns
        self.done = done
        self.started = False
        self.meets: Meeting | None = None


class Meeting:
    """A collective: a piece on each of several cards, none ends before all have begun."""

    def __init__(self, count: int, ns: int) -> None:
        self.missing = count
        self.ns = ns
        self.parts: list[tuple[CardHardware, WorkGroup]] = []

    def begin(self, card: "CardHardware", group: WorkGroup) -> None:
        """The piece on `card` has the card: it spins until the others have theirs."""
        self.parts.append((card, group))
        self.missing -= 1
        if self.missing == 0:
            for part_card, part in self.parts:
                part_card.shorten(part, self.ns)


NEVER = 1 << 60


class CardContext:
    """A queue of work, and when it had the card."""

    __slots__ = ("card", "queue", "spans")

    def __init__(self, card: "CardHardware") -> None:
        self.card = card
        self.queue: deque[WorkGroup] = deque()
        self.spans: list[list[int]] = []  # [from, to] of its work on the card, in order

    def ran(self, start: int, end: int) -> None:
        """It had the card from `start` to `end`."""
        if self.spans and self.spans[-1][1] == start:
            self.spans[-1][1] = end
        else:
            self.spans.append([start, end])


class CardHardware:
    """One engine; compute is preempted anywhere."""

    def __init__(self, clock: Clock, timing: CardTiming | None = None) -> None:
        self.clock = clock
        self.timing = timing or CardTiming()
        self.contexts: list[CardContext] = []
        self._running: CardContext | None = None
        self._last: CardContext | None = None
        self._switching = False
        self._since = self._slice_end = 0
        self._plan = 0

    def context(self) -> CardContext:
        """One more context."""
        context = CardContext(self)
        self.contexts.append(context)
        return context

    def submit(self, context: CardContext, group: WorkGroup) -> None:
        """Queue `group`."""
        context.queue.append(group)
        if self._running is None:
            if not self._switching:
                dry = self._last is None or self._last is context
                self._switch(context, 0 if dry else self.timing.drained_ns)
        elif len(context.queue) == 1 and context is not self._running:
            self.settle()
            self._look()

    def shorten(self, group: WorkGroup, ns: int) -> None:
        """`group`, which had no end in sight, takes `ns` more."""
        if self._running is not None and self._running.queue[0] is group:
            self.settle()
            group.left = ns
            self._look()
        else:
            group.left = ns

    def _switch(self, context: CardContext, cost: int) -> None:
        if cost:
            self._switching = True
            self._running = None
            self.clock.at(self.clock.now + cost, self._switched, context)
        else:
            self._switched(context)

    def _switched(self, context: CardContext) -> None:
        self._switching = False
        self._running = self._last = context
        self._since = self.clock.now
        self._slice_end = self._since + self.timing.slice_ns
        self._look()

    def settle(self) -> None:
        """Account for the running context until now."""
        context, now = self._running, self.clock.now
        if context is not None and now > self._since:
            context.ran(self._since, now)
            context.queue[0].left -= now - self._since
            self._since = now

    def _look(self) -> None:
        """When does the running context end its group, or its slice?"""
        context, now = self._running, self.clock.now
        assert context is not None
        group = context.queue[0]
        if not group.started:
            group.started = True
            if group.meets is not None:
                group.left = NEVER
                group.meets.begin(self, group)
                if self._running is not context:
                    return
        self._plan += 1
        end = now + group.left
        for other in self.contexts:
            if other.queue and other is not context:
                length = self.timing.slice_ns
                if self._slice_end < now:
                    self._slice_end += -(-(now - self._slice_end) // length) * length
                end = min(end, self._slice_end)
                break
        if end < NEVER:
            self.clock.at(end, self._event, self._plan)

    def _event(self, plan: int) -> None:
        context = self._running
        if plan != self._plan or context is None:
            return
        self.settle()
        now = self.clock.now
        group = context.queue[0]
        if group.left <= 0:
            context.queue.popleft()
            group.done(now)
            if not context.queue:
                self._running = None
                self._next(context, self.timing.drained_ns)
                return
        if now >= self._slice_end:
            self._next(context, self.timing.preempt_ns)
        else:
            self._look()

    def _next(self, after: CardContext, cost: int) -> None:
        count = len(self.contexts)
        at = self.contexts.index(after)
        for step in range(1, count):
            other = self.contexts[(at + step) % count]
            if other.queue:
                self._switch(other, cost)
                return
        if after.queue:
            self._running = after
            self._since = self.clock.now
            self._slice_end = self._since + self.timing.slice_ns
            self._look()
