# SPDX-License-Identifier: Apache-2.0
"""What is done about a container that has more of a card's memory than it may.

| step | when | what |
|---|---|---|
| seen | two looks in a row above | warn: its operator and its user are told; or observe |
| frozen | one more | freeze: it gets nothing more, and computes nothing |
| killed | more than a tenth above for two seconds, or while another lacks his promise | kill |

Above is more than it may have and the slack, in what two looks agree on (audit/evidence.py). How
far it goes is the operator's choice; the last step it never takes on its own (`kill` is asked for).
Where a look says nothing (the driver did not answer, or is another one now) counting begins anew,
and what was done stays so. Four looks that are not above end it: thaw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Choice = Literal["observe", "warn", "freeze", "kill"]
Level = Literal["quiet", "seen", "frozen", "killed"]
Action = Literal["observe", "warn", "freeze", "kill", "thaw", "calm"]

CHOICES: Final[tuple[Choice, ...]] = ("observe", "warn", "freeze", "kill")
SEEN_LOOKS: Final = 2
FROZEN_LOOKS: Final = 3
CALM_LOOKS: Final = 4  # one look that misses a process is two in which nothing is agreed on
KILLED_NS: Final = 2 * 10**9
SPARED_NS: Final = 60 * 10**9  # after an operator let it go on
AGAIN_NS: Final = 5 * 10**9
_SLACK_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Sample:
    """One container on one card at one look.

    `used_bytes` is the least that it surely has, `may_bytes` what it may have, and `slack_bytes`
    what is above that and still nothing. `lacks`: somebody was refused by the driver what he was
    promised of this card.
    """

    used_bytes: int
    may_bytes: int
    slack_bytes: int = 0
    lacks: bool = False

    @property
    def over_bytes(self) -> int:
        """What it has above all that it may; 0 within the slack."""
        over = self.used_bytes - self.may_bytes
        return over if over > self.slack_bytes else 0

    @property
    def is_grave(self) -> bool:
        """Whether it is above by more than a tenth, and by more than the slack."""
        return self.over_bytes * 10 > self.may_bytes


@dataclass(frozen=True)
class State:
    """How far it went with a container on one card. Times are of a monotonic clock."""

    level: Level = "quiet"
    looks: int = 0  # above, in a row
    calm: int = 0  # looks not above, in a row
    grave_since_ns: int | None = None  # of those above by more than a tenth, in a row
    spared_until_ns: int = 0


def slack(may_bytes: int, context_bytes: int, contexts: int) -> int:
    """Return the bytes above `may_bytes` that are nothing.

    A context takes what it takes before anybody could charge it, and modules, local memory and
    figures that are read one after another are never quite what an account says.
    """
    return context_bytes * contexts + max(_SLACK_BYTES, may_bytes // 100)


def decide(
    now_ns: int, sample: Sample | None, state: State, choice: Choice
) -> tuple[State, tuple[Action, ...]]:
    """Return how far it is after a look, and what is to be done; None is a look that says nothing.

    Of several actions the first comes first. Nothing is done again that was done, but for `kill`:
    of a container that is still there two seconds later.
    """
    if sample is None:
        return replace(state, looks=0, calm=0, grave_since_ns=None), ()
    if not sample.over_bytes:
        return _calm(state)
    state = _counted(now_ns, sample, state)
    actions: list[Action] = []
    if state.level == "quiet" and state.looks >= SEEN_LOOKS:
        state = replace(state, level="seen")
        actions.append("observe" if choice == "observe" else "warn")
    if _is_to_freeze(now_ns, state, choice):
        state = replace(state, level="frozen")
        actions.append("freeze")
    if _is_to_kill(now_ns, sample, state, choice):
        state = replace(state, level="killed", grave_since_ns=now_ns)
        actions.append("kill")
    if state.level == "frozen" and choice in {"observe", "warn"}:  # chosen meanwhile
        state = replace(state, level="seen")
        actions.append("thaw")
    return state, tuple(actions)


def resumed(now_ns: int, state: State) -> State:
    """Return how far it is after an operator let it go on: it has a minute to free something."""
    return State("seen", spared_until_ns=now_ns + SPARED_NS) if state.level == "frozen" else state


def undone(now_ns: int, state: State) -> State:
    """Return how far it is after it could not be frozen: that is tried again, not at every look."""
    return State("seen", spared_until_ns=now_ns + AGAIN_NS) if state.level == "frozen" else state


def _counted(now_ns: int, sample: Sample, state: State) -> State:
    since = now_ns if state.grave_since_ns is None else state.grave_since_ns
    return replace(
        state,
        looks=state.looks + 1,
        calm=0,
        grave_since_ns=since if sample.is_grave else None,
    )


def _is_to_freeze(now_ns: int, state: State, choice: Choice) -> bool:
    return (
        choice in {"freeze", "kill"}
        and state.level == "seen"
        and state.looks >= FROZEN_LOOKS
        and now_ns >= state.spared_until_ns
    )


def _is_to_kill(now_ns: int, sample: Sample, state: State, choice: Choice) -> bool:
    if choice != "kill" or state.level not in {"frozen", "killed"}:
        return False
    since = state.grave_since_ns
    is_long = since is not None and now_ns - since >= KILLED_NS
    return is_long or (sample.lacks and state.level == "frozen")


def _calm(state: State) -> tuple[State, tuple[Action, ...]]:
    state = replace(state, looks=0, calm=state.calm + 1, grave_since_ns=None)
    if state.level == "quiet" or state.calm < CALM_LOOKS:
        return state, ()
    done: Action = "thaw" if state.level == "frozen" else "calm"
    return State(spared_until_ns=state.spared_until_ns), (done,)
