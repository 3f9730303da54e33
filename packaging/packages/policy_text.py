# SPDX-License-Identifier: Apache-2.0
"""Texts of a generated policy: literals of CEL, and refusals of gpushare.quota without a value."""

from __future__ import annotations

import json
from typing import Final

from gpushare.quota.errors import BadValue
from gpushare.quota.keys import (
    BAD_CAPABILITY,
    BAD_CARD,
    CAPABILITY,
    CARD,
    parse_duration,
    parse_name,
    parse_oversubscription,
)

#: The form of a text, or of each item of a list, and what is wrong with any other.
FORMS: Final = {
    "devices": (CARD, BAD_CARD),
    "compute-capability": (CAPABILITY, BAD_CAPABILITY),
    "profile": (parse_name.pattern, parse_name.error),
    "remote": (parse_name.pattern, parse_name.error),
    "idle-after": (parse_duration.pattern, parse_duration.error),
    "time-limit": (parse_duration.pattern, parse_duration.error),
    "oversubscribe": (parse_oversubscription.pattern, parse_oversubscription.error),
}


def advice(bad: BadValue) -> str:
    """Return what follows the key and its value in a refusal (gpushare.quota.errors.refusal)."""
    stop = "" if bad.fix.endswith(("?", ".")) else "."
    return f": {bad.rule.removeprefix('is ')}. {bad.fix[0].upper()}{bad.fix[1:]}{stop}"


def text(value: object) -> str:
    """Return the literal of CEL: that of JSON is one."""
    return json.dumps(value, ensure_ascii=False)


def refusal(rule: str, fix: str) -> str:
    """Return the literal of what follows the key and its value in a refusal."""
    return text(advice(BadValue(rule, fix)))


def quantity(size: str) -> str:
    """Return the expression of a size as a quantity of Kubernetes, if it can be read as one."""
    letters = "".join(f'.replace("{letter}", "{letter.upper()}i")' for letter in "kmgt")
    plain = '.replace("ib", "").replace("i", "").replace("b", "")'
    return f'{size}.lowerAscii().replace(" ", ""){plain}{letters}'
