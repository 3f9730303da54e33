# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them: `20Gi`, `40`, `500m`, `1e3`.

Source: k8s.io/apimachinery/pkg/api/resource, "Quantity".
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,3})?",
    re.ASCII,
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class BadQuantity(ValueError):
    """Not a quantity."""


def parse_quantity(text: str) -> int:
    """Return a quantity as a whole number, rounded away from zero as Kubernetes does."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise BadQuantity(f'"{text}" is not a quantity such as 20Gi or 40')
    sign, number, suffix = found.groups()
    amount = Fraction(f"0{number}" if number.startswith(".") else number.rstrip("."))
    if suffix in _BINARY:
        amount *= 1 << _BINARY[suffix]
    elif suffix:
        amount *= Fraction(10) ** (_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))
    whole = -(-amount.numerator // amount.denominator)
    return -whole if sign == "-" else whole


def format_quantity(amount: int) -> str:
    """Return a number of bytes in the largest binary unit that is exact, as the server does."""
    for suffix, shift in reversed(_BINARY.items()):
        if amount and amount % (1 << shift) == 0:
            return f"{amount >> shift}{suffix}"
    return str(amount)
