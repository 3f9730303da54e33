# SPDX-License-Identifier: Apache-2.0
"""From policies, percents and weights to parts of a card's time.

| policy | part | more, while others leave it |
|---|---|---|
| fixed-share | its cores | no |
| burst-share | its cores | yes |
| best-effort | of what nobody is guaranteed, by weight; its weight is 1 | yes |
| native-burst-share | the same; its weight, its cores, or 1 | yes |

Class online never waits, and so it is never held to a cap. Of the others priority 0 comes first;
before them comes who is online under fixed-share, and is held to its cores.

Who is guaranteed nothing gets 1 % of the card at least, all of them together, or nobody would hear
of them again where guarantees fill it; those are then that much smaller, each by the same part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.daemon.policy.reservation import FIXED, policy_on, reserved_cores
from gpushare.daemon.policy.share import Claim, Share

_WHOLE: Final = 1000  # permille
_LEAST: Final = 10  # of those without a guarantee
_FIRST: Final = 0  # priority of who is online and has to wait for its cap


def shares(claims: Sequence[Claim], card_policy: str = "") -> dict[str, Share]:
    """Return what each of `claims`, all of one card, is to get of it, by key.

    `card_policy` is what the operator set for the card, "" where he did not. All parts together
    are 1000 permille at most, and each is 1 at least: there may be as many claims as that.
    """
    policies = {
        claim.key: policy_on(claim.policy, claim.cores, card_policy, is_set=claim.policy_is_set)
        for claim in claims
    }
    guaranteed, weights = _guarantees_and_weights(claims, policies)
    least = max(_LEAST, len(weights)) if weights else 0
    if sum(guaranteed.values()) > _WHOLE - least:
        guaranteed = divided(_WHOLE - least, guaranteed)
    parts = guaranteed | divided(_WHOLE - sum(guaranteed.values()), weights)
    return {
        claim.key: _share(claim, parts[claim.key], capped=policies[claim.key] == FIXED)
        for claim in claims
    }


def _share(claim: Claim, permille: int, *, capped: bool) -> Share:
    online = claim.class_ == "online"
    priority = _FIRST if online else _FIRST + 1 + claim.priority
    return Share(permille, capped=capped, online=online and not capped, priority=priority)


def divided(whole: int, weights: Mapping[str, int]) -> dict[str, int]:
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
    claims: Sequence[Claim], policies: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return permille by key of who is guaranteed some, and the weights of the others."""
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
