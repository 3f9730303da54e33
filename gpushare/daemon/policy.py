# SPDX-License-Identifier: Apache-2.0
"""Parts of a card's time for policies, percents and weights, and the steps against bypasses; pure.

| policy | part | more, while others leave it |
|---|---|---|
| fixed-share | its cores | no |
| burst-share | its cores | yes |
| best-effort | of what is not guaranteed, by weight; its weight is 1 | yes |
| native-burst-share | the same; its weight, its cores, or 1 | yes |

An online container never waits, and is therefore never capped. Of the others priority 0 comes
first; before them come online containers under fixed-share, which are capped at their cores.

Containers without a guarantee get at least 1 % of the card, all of them together, or they would
never run where guarantees fill it; the guarantees are then smaller, each by the same part.

The scheduler is told the result; it knows neither policies nor weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

FIXED: Final = "fixed-share"
_GUARANTEED: Final = frozenset({FIXED, "burst-share"})


def policy_on(own: str, cores: int, card_policy: str, *, is_set: bool) -> str:
    """Return the policy that holds for a tenant whose own is `own` on a card of `card_policy`.

    The operator's policy for the card ("" if none is set) stands above what a container requests,
    and the operator's setting for the container (`is_set`) above that. A guarantee is nothing for a
    tenant that asks for none: it keeps its own.
    """
    if is_set or not card_policy or (card_policy in _GUARANTEED and not cores):
        return own
    return card_policy


def reserved_cores(policy: str, cores: int) -> int:
    """Return the percent of a card that `policy` sets aside for a tenant that asks for `cores`.

    best-effort and native-burst-share guarantee none.
    """
    return cores if policy in _GUARANTEED else 0


@dataclass(frozen=True)
class ShareRequest:
    """A tenant's request for one card's compute, by the keys of a quota (gpushare/quota)."""

    key: str
    policy: str
    cores: int  # percent of the card, 1..100; 0: none asked
    weight: int  # 0: none asked
    class_: str  # online | offline
    priority: int
    policy_is_set: bool = False  # by the operator, for this tenant: it stands above the card's


@dataclass(frozen=True)
class Share:
    """A tenant's part of one card, as scheduler/card.h has it."""

    permille: int  # 1..1000: what it gets while all tenants want more than theirs
    capped: bool  # it never gets more
    online: bool  # it never waits, and while it works the others do; it is not capped then
    priority: int  # of those that are not online: 0 comes first, strictly; a claim's begins at 1
    measured: bool = False  # the driver measures the card's tenants
    # The driver's measure of this tenant lately beyond what its gate counted; negative: what the
    # gate counted although other tenants had it.
    correction_permille: int = 0


_WHOLE: Final = 1000  # permille
_LEAST: Final = 10  # of those without a guarantee
_FIRST: Final = 0  # priority of an online container that has to wait for its cap


def divide_compute(claims: Sequence[ShareRequest], card_policy: str = "") -> dict[str, Share]:
    """Return what each of `claims`, all of one card, is to get of it, by key.

    `card_policy` is what the operator set for the card, "" if nothing is set. All parts together
    are 1000 permille at most, and each is 1 at least: there may be as many claims as that.
    """
    policies = {
        claim.key: policy_on(claim.policy, claim.cores, card_policy, is_set=claim.policy_is_set)
        for claim in claims
    }
    guaranteed: dict[str, int] = {}  # permille
    weights: dict[str, int] = {}  # of the others
    for claim in claims:
        reserved = reserved_cores(policies[claim.key], claim.cores)
        if reserved:
            guaranteed[claim.key] = reserved * _WHOLE // 100
        elif policies[claim.key] == "native-burst-share":
            weights[claim.key] = claim.weight or claim.cores or 1
        else:
            weights[claim.key] = 1
    least = max(_LEAST, len(weights)) if weights else 0
    if sum(guaranteed.values()) > _WHOLE - least:
        guaranteed = divide(_WHOLE - least, guaranteed)
    parts = guaranteed | divide(_WHOLE - sum(guaranteed.values()), weights)
    shares = {}
    for claim in claims:
        capped, online = policies[claim.key] == FIXED, claim.class_ == "online"
        priority = _FIRST if online else _FIRST + 1 + claim.priority
        shares[claim.key] = Share(parts[claim.key], capped, online and not capped, priority)
    return shares


def divide(whole: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide `whole` by `weights`, all of them above 0: in whole numbers, each 1 at least.

    By the largest remainder, so that equal weights differ by 1 at most; of equals the one whose key
    comes first has more.
    """
    assert whole >= len(weights)
    total = sum(weights.values())
    keys = sorted(weights)
    parts = {key: whole * weights[key] // total for key in keys}
    keys.sort(key=lambda key: -(whole * weights[key] % total))
    for key in keys[: whole - sum(parts.values()) if keys else 0]:
        parts[key] += 1
    for key in (key for key in keys if not parts[key]):
        largest = max(parts, key=lambda other: parts[other])
        parts[largest] -= 1
        parts[key] = 1
    return parts


CORRECTED_PERCENT: Final = 5.0  # of the card: less may be rounding


def charge_corrections(figures: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return by how many percent of a card the charges are wrong, by key, where they are.

    `figures` are of each tenant of the card what it surely got beyond its charge, and the driver's
    figure less the charge. A tenant owes the former. What a tenant did not get although it was
    charged for it is only given back as far as other tenants owe it: the driver's figures do not
    contain everything that is charged, such as copies.
    """
    owed = {key: surely for key, (surely, _) in figures.items() if surely > 0}
    missed = {
        key: -more
        for key, (_, more) in figures.items()
        if key not in owed and more < -CORRECTED_PERCENT
    }
    part = min(1.0, sum(owed.values()) / sum(missed.values())) if missed else 0.0
    return owed | {key: -more * part for key, more in missed.items() if part}


# The action against a container that has more of a card's memory than it may.

Choice = Literal["observe", "warn", "freeze", "kill"]
EscalationLevel = Literal["quiet", "detected", "frozen", "killed"]
Action = Literal["observe", "warn", "freeze", "kill", "thaw", "calm"]

CHOICES: Final[tuple[Choice, ...]] = ("observe", "warn", "freeze", "kill")
SEEN_LOOKS: Final = 2
FROZEN_LOOKS: Final = 3
CALM_LOOKS: Final = 4  # one look that misses a process is two in which nothing is agreed on
KILLED_NS: Final = 2 * 10**9
SPARED_NS: Final = 60 * 10**9  # after an operator resumed it


@dataclass(frozen=True)
class QuotaSample:
    """One container on one card at one look."""

    used_bytes: int  # the least that it surely has
    may_bytes: int
    slack_bytes: int = 0  # above `may_bytes` and still nothing
    has_shortfall: bool = False  # another tenant of this card has one
    # By the driver's figures, what the card lacks for the quota of a tenant that has reported one.
    shortfall_bytes: int = 0

    @property
    def over_bytes(self) -> int:
        """The memory above all that it may have; 0 within the slack."""
        over = self.used_bytes - self.may_bytes
        return over if over > self.slack_bytes else 0

    @property
    def is_grave(self) -> bool:
        """Whether it is above by more than a tenth, and by more than the slack."""
        return self.over_bytes * 10 > self.may_bytes


@dataclass(frozen=True)
class EscalationState:
    """The steps taken against a container on one card. Times are of a monotonic clock."""

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

    | step | when | choice |
    |---|---|---|
    | seen | two samples in a row above | warn: its operator and its user are told; or observe |
    | frozen | one more | freeze: its allocations fail, and it computes nothing |
    | killed | more than a tenth above for two seconds, or while another has a shortfall | kill |
    | killed | frozen while another cannot get its quota, for `kill_after_ns` | freeze |

    Above is more than it may have and the slack, in what two samples agree on. A frozen container
    keeps its memory: so with `freeze` the last step is taken as well, but only when another has a
    shortfall, and the driver's figures have shown for `kill_after_ns` that the card cannot give
    that one its quota. A sample that says nothing (the driver did not answer, or is another one
    now) restarts the counting, and what was done stays so. Four samples that are not above end it.

    `kill_after_ns` is how long a frozen tenant may keep another from its quota; None: for ever. Of
    several actions the first comes first. Nothing is done again that was done, but for `kill`:
    of a container that is still there two seconds later.
    """
    if sample is None:
        return replace(state, looks=0, calm=0, grave_since_ns=None), ()
    if not sample.over_bytes:
        return _calm(state)
    grave_since_ns = now_ns if state.grave_since_ns is None else state.grave_since_ns
    state = replace(
        state,
        looks=state.looks + 1,
        calm=0,
        grave_since_ns=grave_since_ns if sample.is_grave else None,
    )
    actions: list[Action] = []
    if state.level == "quiet" and state.looks >= SEEN_LOOKS:
        state = replace(state, level="detected")
        actions.append("observe" if choice == "observe" else "warn")
    is_due = state.looks >= FROZEN_LOOKS and now_ns >= state.spared_until_ns
    if state.level == "detected" and is_due and choice in {"freeze", "kill"}:
        state = replace(state, level="frozen")
        actions.append("freeze")
    state = replace(state, starving_since_ns=_starving_since(now_ns, sample, state))
    if _is_to_kill(now_ns, sample, state, choice, kill_after_ns):
        state = replace(state, level="killed", grave_since_ns=now_ns, starving_since_ns=None)
        actions.append("kill")
    if state.level == "frozen" and choice in {"observe", "warn"}:  # chosen meanwhile
        state = replace(state, level="detected")
        actions.append("thaw")
    return state, tuple(actions)


def spared(state: EscalationState, until_ns: int) -> EscalationState:
    """Return the state of a frozen tenant that runs again, and is not frozen before `until_ns`."""
    if state.level != "frozen":
        return state
    return EscalationState("detected", spared_until_ns=until_ns)


def _is_to_kill(
    now_ns: int,
    sample: QuotaSample,
    state: EscalationState,
    choice: Choice,
    kill_after_ns: int | None,
) -> bool:
    if choice == "freeze":
        since_ns, least_ns = state.starving_since_ns, kill_after_ns
    elif choice == "kill" and state.level in {"frozen", "killed"}:
        if sample.has_shortfall and state.level == "frozen":
            return True
        since_ns, least_ns = state.grave_since_ns, KILLED_NS
    else:
        return False
    return since_ns is not None and least_ns is not None and now_ns - since_ns >= least_ns


def _starving_since(now_ns: int, sample: QuotaSample, state: EscalationState) -> int | None:
    """Return since when the frozen tenant keeps another from its quota; None: it does not.

    It begins with a report of the other, which alone means nothing, and lasts as long as the
    driver's figures show it.
    """
    if state.level not in {"frozen", "killed"} or not sample.shortfall_bytes:
        return None
    if state.starving_since_ns is not None:
        return state.starving_since_ns
    return now_ns if sample.has_shortfall else None


def _calm(state: EscalationState) -> tuple[EscalationState, tuple[Action, ...]]:
    state = replace(state, looks=0, calm=state.calm + 1, grave_since_ns=None)
    if state.level == "quiet" or state.calm < CALM_LOOKS:
        return state, ()
    done: Action = "thaw" if state.level == "frozen" else "calm"
    return EscalationState(spared_until_ns=state.spared_until_ns), (done,)


#: Memory requested when the limit fell may still be on its way; and a look may miss a process.
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

    It may have its limit, and what it took while that was higher. A limit falls when burst memory
    goes to another tenant, and when an operator shrinks a quota. Nothing takes back what a program
    has by then: it keeps it, gets nothing more, and is not over its quota because of it.

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


BYPASS_LOOKS: Final = 4  # samples in a row that find a bypass of the launch gate, before a freeze
BYPASS_MARGIN_PERCENT: Final = 5.0  # of the card above its part: schedulers are that inexact


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
