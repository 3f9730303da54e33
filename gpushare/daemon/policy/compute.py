# SPDX-License-Identifier: Apache-2.0
"""From policies, percents and weights to parts of a card's time.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
    """What one tenant asks of one card's compute, by the keys of a quota (gpushare/quota)."""

    key: str
    policy: str
    cores: int  # percent of the card, 1..100; 0: none asked
    weight: int  # 0: none asked
    class_: str  # online | offline
    priority: int
    policy_is_set: bool = False  # by the operator, for this tenant: it stands above the card's


@dataclass(frozen=True)
class Share:
    """A tenant's part of one card, as scheduler/card.h has it.

    `permille` (1..1000) is what it gets while all tenants want more than theirs; `capped`: and
    never more. `online`: it never waits, and while it works the others do; it is not capped then.
    `priority` is of those that are not online: 0 comes first, strictly. A claim's begins at 1 here.

    `measured`: the driver measures the card's tenants. `correction_permille` is what it measured of
    this one lately beyond what its gate counted; negative: what the gate counted although other
    tenants had it.
    """

    permille: int
    capped: bool
    online: bool
    priority: int
    measured: bool = False
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
    guaranteed, weights = _guarantees_and_weights(claims, policies)
    least = max(_LEAST, len(weights)) if weights else 0
    if sum(guaranteed.values()) > _WHOLE - least:
        guaranteed = divide(_WHOLE - least, guaranteed)
    parts = guaranteed | divide(_WHOLE - sum(guaranteed.values()), weights)
    return {
        claim.key: _share(claim, parts[claim.key], capped=policies[claim.key] == FIXED)
        for claim in claims
    }


def _share(claim: ShareRequest, permille: int, *, capped: bool) -> Share:
    online = claim.class_ == "online"
    priority = _FIRST if online else _FIRST + 1 + claim.priority
    return Share(permille, capped=capped, online=online and not capped, priority=priority)


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


def _guarantees_and_weights(
    claims: Sequence[ShareRequest], policies: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the guarantees in permille by key, and the weights of the others."""
    guaranteed: dict[str, int] = {}
    weights: dict[str, int] = {}
    for claim in claims:
        reserved = reserved_cores(policies[claim.key], claim.cores)
        if reserved:
            guaranteed[claim.key] = reserved * _WHOLE // 100
        elif policies[claim.key] == "native-burst-share":
            weights[claim.key] = claim.weight or claim.cores or 1
        else:
            weights[claim.key] = 1
    return guaranteed, weights


_CORRECTED_PERCENT: Final = 5.0  # of the card: less may be rounding, and sampling


def charge_corrections(figures: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return by how many percent of a card the charges are wrong, by key, where they are.

    `figures` are what the driver measured of each tenant of the card, and what it was charged. A
    tenant that got more than its charge owes the difference. What a tenant did not get although it
    was charged for it is only given back as far as other tenants owe it: the driver's figures do
    not contain everything that is charged, such as copies.
    """
    differences = {key: measured - charged for key, (measured, charged) in figures.items()}
    owed = {key: more for key, more in differences.items() if more > _CORRECTED_PERCENT}
    missed = {key: -more for key, more in differences.items() if more < -_CORRECTED_PERCENT}
    part = min(1.0, sum(owed.values()) / sum(missed.values())) if missed else 0.0
    return owed | {key: -more * part for key, more in missed.items() if part}
