# SPDX-License-Identifier: Apache-2.0
"""What is done about a container that has more of a card's memory than it may.

| step | when | what |
|---|---|---|
| seen | two samples in a row above | warn: its operator and its user are told; or observe |
| frozen | one more | freeze: its allocations fail, and it computes nothing |
| killed | more than a tenth above for two seconds, or while another has a shortfall | kill |
| killed | frozen while another cannot get its quota, for `kill_after_ns` | freeze |

Above is more than it may have and the slack, in what two samples agree on (audit/evidence.py). How
far it goes is the operator's choice. A frozen container keeps its memory. So with `freeze` the last
step is taken as well, but only when another container has a shortfall, and the driver's figures
have shown for `kill_after_ns` that the card cannot give that one its quota. When a
sample says nothing (the driver did not answer, or is another one now) counting restarts, and
what was done stays so. Four samples that are not above end it: thaw.

A tenant may have its limit, and what it took while that was higher. A limit falls when burst memory
goes to another tenant, and when an operator shrinks a quota. Nothing takes back what a program has
by then: it keeps it, gets nothing more, and is not over its quota because of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from gpushare.daemon.policy.compute import Share

Choice = Literal["observe", "warn", "freeze", "kill"]
EscalationLevel = Literal["quiet", "detected", "frozen", "killed"]
Action = Literal["observe", "warn", "freeze", "kill", "thaw", "calm"]

CHOICES: Final[tuple[Choice, ...]] = ("observe", "warn", "freeze", "kill")
SEEN_LOOKS: Final = 2
FROZEN_LOOKS: Final = 3
CALM_LOOKS: Final = 4  # one look that misses a process is two in which nothing is agreed on
KILLED_NS: Final = 2 * 10**9
SPARED_NS: Final = 60 * 10**9  # after an operator resumed it
AGAIN_NS: Final = 5 * 10**9


@dataclass(frozen=True)
class QuotaSample:
    """One container on one card at one look.

    `used_bytes` is the least that it surely has, `may_bytes` what it may have, and `slack_bytes`
    what is above that and still nothing. `has_shortfall`: another tenant of this card has a
    shortfall. `shortfall_bytes` is what the card has too little, by the driver's figures, for the
    quota of a tenant that has reported one.
    """

    used_bytes: int
    may_bytes: int
    slack_bytes: int = 0
    has_shortfall: bool = False
    shortfall_bytes: int = 0

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
class EscalationState:
    """How far it went with a container on one card. Times are of a monotonic clock."""

    level: EscalationLevel = "quiet"
    looks: int = 0  # above, in a row
    calm: int = 0  # looks not above, in a row
    grave_since_ns: int | None = None  # of those above by more than a tenth, in a row
    spared_until_ns: int = 0
    starving_since_ns: int | None = None  # frozen, while another tenant cannot get its quota


def next_step(
    now_ns: int,
    sample: QuotaSample | None,
    state: EscalationState,
    choice: Choice,
    kill_after_ns: int | None = None,
) -> tuple[EscalationState, tuple[Action, ...]]:
    """Return how far it is after a sample, and what is to be done; None is one without figures.

    `kill_after_ns` is how long a frozen tenant may keep another from its quota; None: for ever. Of
    several actions the first comes first. Nothing is done again that was done, but for `kill`:
    of a container that is still there two seconds later.
    """
    if sample is None:
        return replace(state, looks=0, calm=0, grave_since_ns=None), ()
    if not sample.over_bytes:
        return _calm(state)
    state = _counted(now_ns, sample, state)
    actions: list[Action] = []
    if state.level == "quiet" and state.looks >= SEEN_LOOKS:
        state = replace(state, level="detected")
        actions.append("observe" if choice == "observe" else "warn")
    if _is_to_freeze(now_ns, state, choice):
        state = replace(state, level="frozen")
        actions.append("freeze")
    state = replace(state, starving_since_ns=_starving_since(now_ns, sample, state))
    if _is_to_kill(now_ns, sample, state, choice) or _is_starving(
        now_ns, state, choice, kill_after_ns
    ):
        state = replace(state, level="killed", grave_since_ns=now_ns, starving_since_ns=None)
        actions.append("kill")
    if state.level == "frozen" and choice in {"observe", "warn"}:  # chosen meanwhile
        state = replace(state, level="detected")
        actions.append("thaw")
    return state, tuple(actions)


def after_resume(now_ns: int, state: EscalationState) -> EscalationState:
    """Return the state after an operator resumed the tenant: it has a minute to free memory."""
    return (
        EscalationState("detected", spared_until_ns=now_ns + SPARED_NS)
        if state.level == "frozen"
        else state
    )


def after_failure(now_ns: int, state: EscalationState) -> EscalationState:
    """Return how far it is after it could not be frozen: that is tried again, not at every look."""
    return (
        EscalationState("detected", spared_until_ns=now_ns + AGAIN_NS)
        if state.level == "frozen"
        else state
    )


def _counted(now_ns: int, sample: QuotaSample, state: EscalationState) -> EscalationState:
    since = now_ns if state.grave_since_ns is None else state.grave_since_ns
    return replace(
        state,
        looks=state.looks + 1,
        calm=0,
        grave_since_ns=since if sample.is_grave else None,
    )


def _is_to_freeze(now_ns: int, state: EscalationState, choice: Choice) -> bool:
    return (
        choice in {"freeze", "kill"}
        and state.level == "detected"
        and state.looks >= FROZEN_LOOKS
        and now_ns >= state.spared_until_ns
    )


def _is_to_kill(now_ns: int, sample: QuotaSample, state: EscalationState, choice: Choice) -> bool:
    if choice != "kill" or state.level not in {"frozen", "killed"}:
        return False
    since = state.grave_since_ns
    is_long = since is not None and now_ns - since >= KILLED_NS
    return is_long or (sample.has_shortfall and state.level == "frozen")


def _starving_since(now_ns: int, sample: QuotaSample, state: EscalationState) -> int | None:
    """Return since when the frozen tenant keeps another from its quota; None: it does not.

    It begins with a report of the other, which alone means nothing, and lasts as long as the
    driver's figures show it.
    """
    if state.level not in {"frozen", "killed"} or not sample.shortfall_bytes:
        return None
    if state.starving_since_ns is None and not sample.has_shortfall:
        return None
    return now_ns if state.starving_since_ns is None else state.starving_since_ns


def _is_starving(
    now_ns: int, state: EscalationState, choice: Choice, kill_after_ns: int | None
) -> bool:
    since = state.starving_since_ns
    if choice != "freeze" or since is None or kill_after_ns is None:
        return False
    return now_ns - since >= kill_after_ns


def _calm(state: EscalationState) -> tuple[EscalationState, tuple[Action, ...]]:
    state = replace(state, looks=0, calm=state.calm + 1, grave_since_ns=None)
    if state.level == "quiet" or state.calm < CALM_LOOKS:
        return state, ()
    done: Action = "thaw" if state.level == "frozen" else "calm"
    return EscalationState(spared_until_ns=state.spared_until_ns), (done,)


#: What was asked for when the limit fell may still be on its way; and a look may miss a process.
GRACE_NS: Final = 5 * 10**9


@dataclass(frozen=True)
class Entitlement:
    """`may_bytes` is the figure; the rest is the most that was used in the last two periods."""

    may_bytes: int
    since_ns: int  # of this period
    most_bytes: int = 0
    most_before_bytes: int = 0
    below_ns: int | None = None  # since when the limit is below `may_bytes`


def entitlement(  # noqa: PLR0913, PLR0917 - all that it depends on
    now_ns: int,
    limit_bytes: int,
    used_bytes: int,
    before: Entitlement | None,
    ever_bytes: int,
    kept_bytes: int | None = None,
) -> Entitlement:
    """Return what a tenant may have whose limit is `limit_bytes` now.

    `used_bytes` is the most that the driver's figures show at this look, `ever_bytes` the most that
    the tenant was ever allowed: what it has of that when it is seen first (`before` is None) it may
    have taken rightly. `kept_bytes` is what it was counted to use when its limit was lowered, or
    when memory of its card was last allocated to another: it may keep no more. None: not known.
    """
    if before is None:
        before = Entitlement(max(limit_bytes, ever_bytes), now_ns)
    since_ns, most, most_before = before.since_ns, before.most_bytes, before.most_before_bytes
    if now_ns - since_ns >= GRACE_NS:
        since_ns, most, most_before = now_ns, 0, most
    most = max(most, used_bytes)
    if limit_bytes >= before.may_bytes:
        return Entitlement(limit_bytes, since_ns, most, most_before)
    below_ns = now_ns if before.below_ns is None else before.below_ns
    may_bytes = before.may_bytes
    if kept_bytes is not None:
        may_bytes = min(may_bytes, max(limit_bytes, kept_bytes))
    if now_ns - below_ns >= GRACE_NS:
        may_bytes = max(limit_bytes, min(may_bytes, max(most, most_before)))
    return Entitlement(
        may_bytes,
        since_ns,
        most,
        most_before,
        None if may_bytes == limit_bytes else below_ns,
    )


LOOKS: Final = 4  # samples in a row that find a bypass of the launch gate, before a freeze
MORE_PERCENT: Final = 5.0  # of the card above its part: schedulers are that inexact


def allowed_percent(share: Share, others: Iterable[tuple[Share, bool]]) -> float | None:
    """Return the percent of a card that a tenant may have at most; None: whatever it can get.

    `others` are the other tenants of the card and whether they use it now. A tenant that is not
    capped may have all that is not theirs; an online container waits for no other, and none makes
    it wait.
    """
    if share.capped:
        return share.permille / 10
    theirs = sum(other.permille for other, active in others if active)
    if share.online or not theirs:
        return None
    return max(share.permille, 1000 - theirs) / 10
