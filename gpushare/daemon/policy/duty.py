# SPDX-License-Identifier: Apache-2.0
"""For how much of the time a container that goes round the gate runs, so that it has its part.

What goes round the gate asks nobody. So its processes are frozen for a part of each `PERIOD_NS`,
and the part is found by what comes of it: every few seconds it becomes as much smaller or larger
as what the driver saw since is too much or too little. It never runs for less than `LEAST` of the
time, so that it can hear, answer and end.

One look is no reason. Four in a row are, on top of the ten seconds after which compute/spent.py
says that work goes round the gate; and it ends when it runs all the time and has no more than it
may. A look that says nothing lets it go at once: nobody is held on figures that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpushare.daemon.policy.share import Share

PERIOD_NS: Final = 100 * 10**6
LEAST: Final = 0.05
LOOKS: Final = 4  # in a row that find it, before anything is done
CALM_STEPS: Final = 3  # in a row in which it may run all the time, before it is let go
STEP_NS: Final = 3 * 10**9  # what was changed has to be in the figure, which is of two seconds
_MORE_PERCENT: Final = 5.0  # of the card above its part: less is how schedulers are
_NEAR_PERCENT: Final = 1.0
_GAIN: Final = 0.7  # of the way to where a figure says that it should be
_SMALLEST: Final = 0.25  # what one step may make of it: a figure may be of a bad moment
_LARGEST: Final = 1.5
_GROWTH: Final = 1.25  # at each step of who passes the gate again, which holds it to its part


@dataclass(frozen=True)
class Sample:
    """One container on one card, lately: percent of the card, by the driver, and what it may have.

    `goes_round`: the driver saw clearly more of it than its gate counted.
    """

    got_percent: float
    may_percent: float
    goes_round: bool


@dataclass(frozen=True)
class State:
    """What is done to a container on one card: it `runs` for that part of the time, 1: all of it.

    `since_ns` is when that was changed, of a monotonic clock.
    """

    runs: float = 1.0
    engaged: bool = False
    looks: int = 0
    calm: int = 0
    since_ns: int = 0


def may(share: Share, others: Iterable[tuple[Share, bool]]) -> float | None:
    """Return the percent of a card that a tenant may have at most; None: whatever it can get.

    `others` are the other tenants of the card and whether they use it now. Who is not capped may
    have all that is not theirs; who is online waits for nobody, and nobody makes it wait.
    """
    if share.capped:
        return share.permille / 10
    theirs = sum(other.permille for other, active in others if active)
    if share.online or not theirs:
        return None
    return max(share.permille, 1000 - theirs) / 10


def decide(now_ns: int, sample: Sample | None, state: State) -> State:
    """Return for how much of the time it runs after a look; None is a look that says nothing."""
    if sample is None:
        return State()
    if not state.engaged:
        over = sample.goes_round and sample.got_percent > sample.may_percent + _MORE_PERCENT
        looks = state.looks + 1 if over else 0
        if looks < LOOKS:
            return State(looks=looks)
        return State(_next(sample, 1.0), engaged=True, since_ns=now_ns)
    if now_ns - state.since_ns < STEP_NS:
        return state
    runs = _next(sample, state.runs)
    calm = state.calm + 1 if runs >= 1.0 else 0
    if calm >= CALM_STEPS:
        return State()
    return replace(state, runs=runs, calm=calm, since_ns=now_ns)


def _next(sample: Sample, runs: float) -> float:
    """Return `runs` after what came of it: as if what it gets were in proportion."""
    got, wanted = sample.got_percent, sample.may_percent
    factor = 1.0
    if abs(got - wanted) > _NEAR_PERCENT:
        factor = min(_LARGEST, max(_SMALLEST, wanted / got)) if got > 0 else _LARGEST
    if not sample.goes_round:
        factor = max(factor, _GROWTH)
        return min(1.0, runs * factor)
    return min(1.0, max(LEAST, runs + _GAIN * (runs * factor - runs)))
