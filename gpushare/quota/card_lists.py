# SPDX-License-Identifier: Apache-2.0
"""Lists in a request that say which cards: by index or UUID, and by compute capability."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpushare.quota.errors import BadValue

MAX_CARDS: Final = 16  # GPUSHARE_MAX_CARDS of gpushare_abi.h
#: An item of each list that has a form, and what is wrong with any other text.
CARD: Final = "[0-9]{1,3}(:[0-9]{1,3})?|(GPU|MIG)-[0-9A-Za-z-]{1,64}"
BAD_CARD: Final = BadValue(
    "is not a list of cards", "write indices or UUIDs, e.g. 0,2 or GPU-4f1c..."
)
CAPABILITY: Final = "(>=|<=|=|>|<) ?[0-9]{1,2}[.][0-9]{1,2}|[0-9]{1,2}[.][0-9]{1,2}[+]"
BAD_CAPABILITY: Final = BadValue(
    "does not compare compute capabilities", "write e.g. >=8.0, or >=8.0,<10.0"
)

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def parse_list(text: str) -> tuple[str, ...]:
    """Return the items of a list that is separated by commas; BadValue."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise BadValue("has an empty item in its list", "separate the names with single commas")
    if len(set(items)) != len(items):
        raise BadValue("lists a name twice", "write each name once")
    return items


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the cards that are named, an index without leading zeros; BadValue."""
    items = parse_list(text)
    if len(items) > MAX_CARDS:
        raise BadValue("names too many cards", f"write at most {MAX_CARDS}")
    if not all(re.fullmatch(CARD, item, re.ASCII) for item in items):
        raise BAD_CARD
    return tuple(str(int(item)) if item.isdigit() else item for item in items)


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Return the comparisons that all have to hold, each as `>=8.0`; `8.0+` is one; BadValue."""
    items = parse_list(text)
    if not all(re.fullmatch(CAPABILITY, item, re.ASCII) for item in items):
        raise BAD_CAPABILITY
    return tuple(
        dict.fromkeys(
            f">={item[:-1]}" if item.endswith("+") else item.replace(" ", "") for item in items
        )
    )


def accepts_capability(comparisons: Sequence[str], capability: tuple[int, int] | None) -> bool:
    """Whether a card of this compute capability may be used; None: it is not known."""
    if capability is None:
        return not comparisons
    for text in comparisons:
        sign = text.rstrip("0123456789.")
        major, minor = text[len(sign) :].split(".")
        if not _COMPARISONS[sign](capability, (int(major), int(minor))):
            return False
    return True
