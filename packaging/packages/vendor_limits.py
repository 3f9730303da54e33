# SPDX-License-Identifier: Apache-2.0
"""The vendors' limits that a node accepts: tables and expressions for the validating policy.

gpushare.quota decides: each number that a limit may have is read with the vendor's table, alone and
beside each other limit of the vendor. The tables contain what is refused then, with its message.
Names that several vendors use are left to the node, as are names with a pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Final

from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.vendor_key import Dialect, VendorKey
from gpushare.quota.errors import BadValue
from gpushare.quota.parse import parse_manifest

from .policy_text import advice, text

#: A number above all that a limit of percent or of cards may be; limits of memory have no bound.
_MOST: Final = 1700
_MOST_PERCENT: Final = 1600
_UNBOUNDED: Final = 999_999_999
ANY_AMOUNT: Final = [[1, _UNBOUNDED, 1]]


@dataclass(frozen=True)
class VendorLimits:
    """Tables by the name of a limit.

    `accepted` are the numbers that it may be: first, last, step. If it requests part of a card, one
    of `needs` must be beside it; of those in `percent`, 100 or more is whole cards. The limit in
    `not_beside` must not request whole cards. The other tables have what follows the key and the
    value in a message.
    """

    accepted: dict[str, list[list[int]]] = field(default_factory=dict)
    accepted_advice: dict[str, str] = field(default_factory=dict)
    needs: dict[str, list[str]] = field(default_factory=dict)
    needs_advice: dict[str, str] = field(default_factory=dict)
    percent: list[str] = field(default_factory=list)
    not_beside: dict[str, str] = field(default_factory=dict)
    not_beside_advice: dict[str, str] = field(default_factory=dict)


@cache
def vendor_limits(*, strict: bool) -> VendorLimits:
    """Return the tables of a lenient node, or of a strict one."""
    limits = VendorLimits()
    names = Counter((row.where, row.name) for one in TABLES.dialects for row in one.rows)
    for dialect in TABLES.dialects:
        rows = {
            row.name: row
            for row in dialect.rows
            if (row.where, row.role) == ("limit", "request")
            and row.key
            and names[row.where, row.name] == 1
            if row.pattern is None and not isinstance(_read(row, 1, strict=strict), str)
        }
        for name, row in rows.items():
            _add_values(limits, dialect, row, rows, strict=strict)
            _add_rules(limits, rows, name, strict=strict)
    return limits


def _read(row: VendorKey, number: int, *, strict: bool) -> BadValue | str | None:
    """Return what is wrong with a number; text if the limit is none of numbers."""
    try:
        amount = row.read(str(number))
        if isinstance(amount, str):
            return amount
        for rule in row.rules:
            if amount is not None and (strict or not rule.strict):
                rule.check(amount)  # type: ignore[arg-type]
    except BadValue as bad:
        return bad
    return None


def _add_values(
    limits: VendorLimits,
    dialect: Dialect,
    row: VendorKey,
    others: Iterable[str],
    *,
    strict: bool,
) -> None:
    bad = {
        number: error
        for number in range(_MOST)
        if isinstance(error := _read(row, number, strict=strict), BadValue)
    }
    if not bad:
        return
    ranges = _ranges([number for number in range(_MOST) if number not in bad])
    if _read(row, _UNBOUNDED, strict=strict) is None:
        ranges[-1][1] = _UNBOUNDED
    elif ranges[-1][1] == _MOST_PERCENT and all(
        _refused({**beside, row.name: 150}, strict=strict)
        for beside in ({}, *({other: number} for other in others for number in (2, 200)))
    ):
        # Of several cards, whole ones only; what else is wrong with these is for gpushare.quota.
        bad |= {150: BadValue(f"is not {row.unit.name}", "")}
        ranges = [[ranges[0][0], 100, ranges[0][2]], [200, _MOST_PERCENT, 100]]
    messages = dict.fromkeys(str(error) for error in bad.values())
    shown = ", or ".join(map(_shown, ranges))
    error = (
        next(iter(bad.values()))
        if len(messages) == 1
        else BadValue(f"is not {row.unit.name}", f"write {shown}")
    )
    limits.accepted[row.name] = ranges
    limits.accepted_advice[row.name] = f" ({dialect.title})" + advice(error)


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Return the same as first, last and step."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and (ranges[-1][0] == ranges[-1][1] or number - ranges[-1][1] == ranges[-1][2]):
            ranges[-1][1:] = [number, number - ranges[-1][1]]
        else:
            ranges.append([number, number, 1])
    return ranges


def _shown(numbers: list[int]) -> str:
    first, last, step = numbers
    if last == _UNBOUNDED:
        return f"{first} or more"
    if first == last:
        return str(first)
    return f"{first} to {last}" + (f" in steps of {step}" if step > 1 else "")


def _add_rules(
    limits: VendorLimits, rows: Mapping[str, VendorKey], name: str, *, strict: bool
) -> None:
    part = _number(rows[name], strict=strict)
    alone = _refused({name: part}, strict=strict)
    if alone:
        beside = [
            other
            for other in rows
            if not _refused({name: part, other: _number(rows[other], strict=strict)}, strict=strict)
        ]
        if beside:
            if rows[name].key == "cores":
                limits.percent.append(name)
            limits.needs[name] = beside
            limits.needs_advice[name] = alone.removeprefix(f"limit {name}={part}")
    for other, row in rows.items():
        if name == other or row.key != "cores" or _refused({other: 100}, strict=strict):
            continue
        message = _refused({other: 100, name: part}, strict=strict)
        if message.startswith(f"limit {name}="):
            limits.not_beside[name] = other
            limits.not_beside_advice[name] = message.removeprefix(f"limit {name}={part}")


def _number(row: VendorKey, *, strict: bool) -> int:
    """Return a number that requests a part of a card."""
    tried = (30, 1, 1024)
    return next(amount for amount in tried if _read(row, amount, strict=strict) is None)


def _refused(limits: Mapping[str, int], *, strict: bool) -> str:
    """Return the message with which a container with these limits is refused; or nothing."""
    texts = {name: str(number) for name, number in limits.items()}
    parsed = parse_manifest({"limit": texts}, strict=strict, container="c", in_cluster=True)
    return str(parsed.diagnostics[0].error) if parsed.diagnostics else ""


def tables(*, strict: bool) -> dict[str, str]:
    """Return the tables of a lenient node, or of a strict one, as variables of the policy."""
    limits = asdict(vendor_limits(strict=strict))
    return {f"limit_{name}": text(table) for name, table in limits.items() if table}


def findings(*, strict: bool) -> dict[str, str]:
    """Return the messages of vendors' limits, by the names of variables."""
    known = tables(strict=strict)
    key, number = 'l.split("=")[0]', 'int(l.split("=")[1])'
    rules = {
        "accepted": f"""\
{key} in variables.limit_accepted && !variables.limit_accepted[{key}].exists(a,
    {number} >= a[0] && {number} <= a[1] && ({number} - a[0]) % a[2] == 0)""",
        "needs": f"""\
{key} in variables.limit_needs && {number} > 0 &&
    ({number} < 100 || !({key} in variables.limit_percent)) &&
    !limits.exists(o, o.split("=")[0] in variables.limit_needs[{key}])""",
        "not_beside": f"""\
{key} in variables.limit_not_beside && limits.exists(o,
    o.split("=")[0] == variables.limit_not_beside[{key}] && int(o.split("=")[1]) > 0 &&
    int(o.split("=")[1]) % 100 == 0)""",
    }
    return {
        f"vendor_{name}": f"""\
variables.vendorLimits.map(limits, limits.filter(l, {condition}).map(l,
  "limit " + l + variables.limit_{name}_advice[{key}]).join(" ")).filter(m, m != "")"""
        for name, condition in rules.items()
        if f"limit_{name}" in known
    }
