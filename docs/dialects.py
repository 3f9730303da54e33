# SPDX-License-Identifier: Apache-2.0
"""The page of other systems' keys, from the tables of gpushare/quota/dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from gpushare.quota.dialects import DIALECTS, Dialect, Row
from gpushare.quota.dialects.units import TEXT

INTRO: Final = """\
What the keys of other systems mean here, a table for each. How they are put together, and what
becomes of two systems' keys on one container: [why and how](../explanation/dialects.md).

*asks*: alone a request for a GPU. *says*: how, or how many; it counts beside a request of the same
table. *kept*: the other system's own bookkeeping. *node*: an operator's setting.

A key that does not reach a runtime is one for the kubelet, a scheduler or a device plugin: an OCI
runtime hears of the environment and of annotations, of a pod's those that its engine hands on.
`gpushare convert` writes such.

`{card}`, `{container}`, `{model}` and `{any}` in a name stand for what differs."""


def dialects() -> Iterator[str]:
    """Yield the table of each dialect, and what its product would refuse."""
    yield from INTRO.splitlines()
    yield ""
    rows = [(f"`{one.name}`", f"[{one.title}](#{anchor(one)})") for one in DIALECTS.values()]
    yield from table(("name in `dialects.accept`", ""), rows)
    for one in DIALECTS.values():
        yield from described(one)


def anchor(one: Dialect) -> str:
    """Return what a link to the part of `one` ends with."""
    kept = (c for c in one.title.lower() if c.isalnum() or c in " -")
    return "".join(kept).replace(" ", "-")


def described(one: Dialect) -> Iterator[str]:
    """Yield a dialect's rows, its rules, and what its users should know."""
    yield from (f"## {one.title}", "")
    if any(row.where in {"limit", "label", "claim", "task"} for row in one.rows):
        yield f"What brings limits and labels to a runtime: {one.translation}."
        yield ""
    headings = ("key", "where", "", "unit", "meaning", "becomes", "reaches a runtime")
    yield from table(headings, (cells(row) for row in one.rows))
    said = [f"- {line}" for line in (*rules(one), *assumed(one), *one.notes)]
    if said:
        yield from (*said, "")


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the page."""
    unit = "" if row.use in {"kept", "node"} or row.unit is TEXT else row.unit.name
    reaches = "yes" if row.reaches else "no"
    return f"`{row.name}`", row.where, row.use, unit, row.meaning, becomes(row), reaches


def becomes(row: Row) -> str:
    """Return the canonical key that a row fills, and how; else what does the same."""
    if not row.gives:
        return row.instead or "-"
    how = ", divided by the cards" if row.total else ""
    how += f", as a part of `{row.over}`" if row.over else ""
    return f"`{row.gives}`{how}"


def rules(one: Dialect) -> Iterator[str]:
    """Yield what would be refused, in a sentence each."""
    for row in one.rows:
        for own in row.rules:
            yield f"`{row.name}`: {own}{' (strict)' if own.strict else ''}."
        if row.beside:
            yield f"`{row.name}`: `{row.beside}` beside it{' (strict)' if row.gives else ''}."
    for rule in one.rules:
        text = str(rule)
        yield f"{text[0].upper()}{text[1:]}{' (strict)' if rule.strict else ''}."
    if one.equal_requests:
        yield "Requests are the limits, or are left out (strict)."


def assumed(one: Dialect) -> Iterator[str]:
    """Yield what the vendor gives where less is said."""
    for given in one.assumed:
        value = f"`{given.key}={given.text}`" if given.text else f"`{given.key}`"
        like = f" as much as `{given.like}`" if given.like else ""
        beside = f" with `{given.beside}`" if given.beside else ""
        without = " or ".join(f"`{key}`" for key in given.without)
        yield f"{value}{like}{beside}{f' without {without}' if without else ''}: {given.why}."
