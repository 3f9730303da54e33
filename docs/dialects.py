# SPDX-License-Identifier: Apache-2.0
"""The page of other systems' keys, from the tables of gpushare/quota/dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.units import TEXT
from gpushare.quota.dialects.vendor_key import Dialect, VendorKey

INTRO: Final = """\
The meaning of other systems' keys in gpushare, with one table per system. For the way in which
keys are combined, and for containers with the keys of two systems, see
[other systems' manifests](../explanation/dialects.md).

- *request*: requests a GPU, even without other keys.
- *option*: modifies a request; counts only with a request of the same table.
- *record*: the other system's own bookkeeping.
- *setting*: a setting of the operator.

Some keys do not reach the runtime, because they are for the kubelet, a scheduler or a device
plugin. An OCI runtime receives the environment and the annotations that the engine passes on. In
Kubernetes, [an admission policy](../how-to/admission-policies.md) records the others in an
annotation, and `gpushare convert` rewrites a manifest ([results](vendors.md)).

`{card}`, `{container}`, `{model}` and `{any}` in a name are placeholders."""


def dialects() -> Iterator[str]:
    """Yield the table of each dialect, and what its product refuses."""
    yield from INTRO.splitlines()
    yield ""
    rows = [
        (f"`{one.name}`", f"[{one.title}](#{anchor(one)})")
        for one in DIALECTS.values()
        if not one.other_cards
    ]
    yield from table(("name in `dialects.accept`", ""), rows)
    for one in DIALECTS.values():
        if not one.other_cards:
            yield from described(one)
    yield from others()


def anchor(one: Dialect) -> str:
    """Return the anchor of the section of `one`."""
    kept = (c for c in one.title.lower() if c.isalnum() or c in " -")
    return "".join(kept).replace(" ", "-")


def described(one: Dialect) -> Iterator[str]:
    """Yield a dialect's rows, its rules, and notes for its users."""
    yield from (f"## {one.title}", "")
    if any(row.where in {"limit", "label", "claim", "task"} for row in one.rows):
        yield f"Limits and labels reach the runtime through: {one.translation}."
        yield ""
    headings = ("key", "location", "role", "unit", "meaning", "becomes", "reaches the runtime")
    yield from table(headings, (cells(row) for row in one.rows))
    said = [f"- {line}" for line in (*rules(one), *assumed(one), *one.notes)]
    if said:
        yield from (*said, "")


def others() -> Iterator[str]:
    """Yield the names for cards of other vendors."""
    yield from ("## Cards of other vendors", "")
    yield "HAMi shares these cards too. `explain` and `validate` know the names, and a node with"
    yield from ("NVIDIA cards ignores them: select nodes with those cards.", "")
    rows = (
        (one.other_cards, ", ".join(f"`{row.name}`" for row in one.rows))
        for one in DIALECTS.values()
        if one.other_cards
    )
    yield from table(("cards", "keys"), rows)


def cells(row: VendorKey) -> tuple[str, ...]:
    """Return a row of the page."""
    read = row.setting or row.role not in {"record", "setting"}
    unit = row.unit.name if read and row.unit is not TEXT else ""
    reaches = "yes" if row.is_visible else "no"
    return f"`{row.name}`", row.where, row.role, unit, row.meaning, becomes(row), reaches


def becomes(row: VendorKey) -> str:
    """Return the canonical key that a row sets, and how; otherwise the alternative."""
    if not row.key:
        return row.instead or "-"
    how = ", divided by the number of cards" if row.summed else ""
    how += f", as a part of `{row.fraction_of}`" if row.fraction_of else ""
    return f"`{row.key}`{how}"


def rules(one: Dialect) -> Iterator[str]:
    """Yield a sentence for each rule."""
    for row in one.rows:
        for own in row.rules:
            yield f"`{row.name}`: {own.text}{' (strict)' if own.strict else ''}."
        if row.requires:
            yield f"`{row.name}`: requires `{row.requires}`{' (strict)' if row.key else ''}."
    for rule in one.rules:
        text = rule.text
        yield f"{text[0].upper()}{text[1:]}{' (strict)' if rule.strict else ''}."
    if one.equal_requests:
        yield "Requests must equal the limits, or be omitted (strict)."


def assumed(one: Dialect) -> Iterator[str]:
    """Yield the values that the vendor implies for incomplete requests."""
    for implied in one.assumed:
        value = f"`{implied.key}={implied.text}`" if implied.text else f"`{implied.key}`"
        like = f" as much as `{implied.like}`" if implied.like else ""
        beside = f" with `{implied.requires}`" if implied.requires else ""
        without = " or ".join(f"`{key}`" for key in implied.without)
        yield f"{value}{like}{beside}{f' without {without}' if without else ''}: {implied.why}."
