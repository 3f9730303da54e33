# SPDX-License-Identifier: Apache-2.0
"""How much of a card's compute each policy promises."""

from __future__ import annotations

from typing import Final

#: Whether anything holds a tenant to its share of compute.
HELD: Final = False

_GUARANTEED: Final = frozenset({"fixed-share", "burst-share"})


def reserved_cores(policy: str, cores: int) -> int:
    """Return the percent of a card that `policy` sets aside for a tenant that asks for `cores`.

    best-effort and native-burst-share guarantee none: cores is then a weight among the others.
    """
    return cores if policy in _GUARANTEED else 0
