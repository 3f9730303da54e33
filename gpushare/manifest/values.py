# SPDX-License-Identifier: Apache-2.0
"""From nodes to values: the forms in which names and texts are written beside each other.

What has another shape than it should is left out here, and told by who looks at shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from gpushare.manifest.file import Value, Values
from gpushare.manifest.nodes import Entry, below, entries, items, word
from gpushare.marks import Place


def mapping(node: yaml.Node | None, place: Place) -> dict[str, Value]:
    """Return the values of a mapping from names to scalars: annotations, limits, data."""
    found: dict[str, Value] = {}
    for name, entry in entries(node).items():
        value = value_of(entry, (*place, name))
        if value is not None:
            found[name] = value
    return found


def value_of(entry: Entry, place: Place) -> Value | None:
    """Return the value of `entry` where it is a scalar and not null."""
    if not isinstance(entry.value, yaml.ScalarNode) or word(entry.value) is None:
        return None
    return Value(entry.value.value, place, entry.key, entry.value)


def named(node: yaml.Node | None, place: Place) -> dict[str, Value]:
    """Return the values of a list of `{name: ..., value: ...}`; of a name twice the last."""
    found: dict[str, Value] = {}
    for number, item in enumerate(items(node)):
        name, entry = below(item, "name"), entries(item).get("value")
        if not isinstance(name, yaml.ScalarNode) or entry is None:
            continue
        value = value_of(Entry(name, entry.value), (*place, number, "value"))
        if value is not None:
            found[name.value] = value
    return found


def pairs(node: yaml.Node | None, place: Place) -> dict[str, Value]:
    """Return the values of a list of `NAME=VALUE`; one without `=` has its value elsewhere."""
    found: dict[str, Value] = {}
    for number, item in enumerate(items(node)):
        if isinstance(item, yaml.ScalarNode):
            name, equals, text = item.value.partition("=")
            if equals:
                found[name] = Value(text, (*place, number), item, item)
    return found


def either(node: yaml.Node | None, place: Place) -> dict[str, Value]:
    """Return the values of what may be a mapping or a list of `NAME=VALUE`, as in compose."""
    return pairs(node, place) if isinstance(node, yaml.SequenceNode) else mapping(node, place)


def leaves(node: yaml.Node | None, place: Place, above: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every scalar beneath a mapping by its dotted key, which no index of a list is in."""
    for name, entry in entries(node).items():
        yield from _leaf(entry, (*place, name), f"{above}.{name}" if above else name)


def _leaf(entry: Entry, place: Place, key: str) -> Iterator[tuple[str, Value]]:
    value = value_of(entry, place)
    if value is not None:
        yield key, value
    elif isinstance(entry.value, yaml.SequenceNode):
        for number, item in enumerate(entry.value.value):
            yield from _leaf(Entry(entry.key, item), (*place, number), key)
    else:
        yield from leaves(entry.value, place, key)


def first_leaves(node: yaml.Node | None, place: Place) -> Values:
    """Return the leaves by key; of a key that several items of a list have the first."""
    found: dict[str, Value] = {}
    for key, value in leaves(node, place):
        found.setdefault(key, value)
    return found
