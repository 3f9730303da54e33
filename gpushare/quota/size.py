# SPDX-License-Identifier: Apache-2.0
"""Memory sizes: text to bytes and back. All units are binary.

`4GiB`, `4Gi` and docker's `4g` are 4 x 2^30 bytes. `4G` and `4GB` are powers of ten to Kubernetes
and of two to docker: `parse_size` refuses them, and where only docker's users write, `dockers_size`
is before it. `4` is bytes to docker and GiB to some schedulers, and is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpushare.quota.errors import BadValue

if TYPE_CHECKING:
    from fractions import Fraction

MAX_BYTES: Final = 2**63 - 1
_SHIFTS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
_DOCKERS: Final = re.compile(
    r"((?:host:)?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s?([KMGT]|[kmgt](?=[bB]))[bB]?", re.ASCII
)
_SIZE: Final = re.compile(r"([0-9]{1,20})(\.[0-9]{1,20})?\s?([A-Za-z]{0,3})", re.ASCII)


def dockers_size(text: str) -> str:
    """Return `text` with a unit that is certain: `4GiB` for `4G`, `4GB` and `4gb`.

    `docker run -m` takes all of them for powers of two (docker/go-units, RAMInBytes).
    """
    match = _DOCKERS.fullmatch(text.strip())
    return text if match is None else f"{match[1]}{match[2].upper()}iB"


def parse_size(text: str) -> int:
    """Return the number of bytes in `text`, at least 1; BadValue if it is not a valid size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadValue("is not a size", "write e.g. 4GiB")
    from fractions import Fraction  # noqa: PLC0415 - what is only shown needs none

    whole, decimals, unit = match.groups()
    amount = Fraction(whole + (decimals or ""))
    if not amount:
        raise BadValue(
            "must be greater than zero", "write e.g. 4GiB, or omit the key to request no GPU"
        )
    size = amount * _unit_bytes(whole + (decimals or ""), amount, unit)
    if size.denominator != 1:
        near = int(size) >> 20 << 20 or int(size) or 1  # whole MiB are easier to read
        raise BadValue("is not a whole number of bytes", f"write e.g. {exact_size(near)}")
    if size > MAX_BYTES:
        raise BadValue("exceeds the memory of any card", "write e.g. 4GiB")
    return int(size)


def _unit_bytes(number: str, amount: Fraction, unit: str) -> int:
    lower = unit.lower()
    if lower == "b":
        return 1
    if not unit:
        fix = f"write {number}GiB, or {number}B for bytes"
        raise BadValue(f"has no unit: {number} bytes or {number} GiB", fix)
    shift = _SHIFTS.get(lower[0])
    if shift is None or lower[1:] not in ("", "b", "i", "ib"):
        raise BadValue("is not a size", "write e.g. 4GiB")
    if lower[1:] in ("i", "ib") or unit in _SHIFTS:
        return 1 << shift
    raise _two_readings(number, amount, lower[0], shift)


def _two_readings(number: str, amount: Fraction, letter: str, shift: int) -> BadValue:
    binary, decimal = int(amount * (1 << shift)), int(amount * 1000 ** (shift // 10))
    prefix = letter.upper()
    return BadValue(
        f"is ambiguous: {number} {prefix}iB = {binary} bytes, or {decimal} bytes",
        f"write {number}{prefix}iB or {decimal}B",
    )


def exact_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as exactly `size` bytes, e.g. `4GiB`."""
    for letter, shift in reversed(_SHIFTS.items()):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{letter.upper()}iB"
    return f"{size}B"


def format_size(size: int) -> str:
    """Return `size` bytes for a table: `126 GiB`, `1.1 GiB`, `512 MiB`.

    Rounded down, so that the amount shown as available can be requested.
    """
    shift, unit = _shown_unit(size)
    tenths = size * 10 >> shift
    if tenths >= 100 or tenths % 10 == 0:
        return f"{tenths // 10} {unit}"
    return f"{tenths // 10}.{tenths % 10} {unit}"


def format_use(used: int, quota: int, limit: int = 0) -> str:
    """Return `3.9/4.0 GiB`: both rounded down, in the unit of the quota.

    If `limit` is above the quota, the burst is added: `5.0/4.0+2.0 GiB`.
    """
    shift, unit = _shown_unit(quota)
    burst = f"+{_tenths(limit - quota, shift)}" if limit > quota else ""
    return f"{_tenths(used, shift)}/{_tenths(quota, shift)}{burst} {unit}"


def _tenths(size: int, shift: int) -> str:
    tenths = size * 10 >> shift
    return f"{tenths // 10}.{tenths % 10}"


def _shown_unit(size: int) -> tuple[int, str]:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return shift, unit
    return 0, "B"
