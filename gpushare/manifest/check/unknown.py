# SPDX-License-Identifier: Apache-2.0
"""Keys that look like a vendor's and are none, or are in a place where nobody reads them."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Final

from gpushare.manifest.check.finding import ERROR, WARNING, Finding, of_key
from gpushare.manifest.file import Container, Value
from gpushare.quota.dialects import TABLES, Dialect, Where
from gpushare.quota.keys import ANNOTATION_PREFIX

_OURS: Final = ANNOTATION_PREFIX.rstrip("/")

_LOOKED_AT: Final[tuple[Where, ...]] = ("limit", "annotation", "env")
_PLACES: Final[dict[Where, str]] = {
    "limit": "resources.limits of the container",
    "annotation": "annotations of the pod",
    "label": "labels of the pod",
    "env": "the container's environment",
    "node label": "labels of the node",
    "node annotation": "annotations of the node",
}


def unknown(container: Container) -> Iterator[Finding]:
    """Yield the keys of `container` that begin as a vendor's and that no table has there."""
    for where in _LOOKED_AT:
        values = container.values(where)
        known = {word.name for word in TABLES.find(where, dict.fromkeys(values, ""))}
        for name, value in values.items():
            if name not in known:
                yield from _unknown(where, name, value)
    for name, value in container.labels.items():
        if not TABLES.find("label", {name: ""}):
            yield from _elsewhere("label", name, value)
    for name, value in container.annotations.items():
        domain, slash, key = name.partition("/")
        if slash and domain != _OURS and get_close_matches(domain, [_OURS], cutoff=0.8):
            fix = f"did you mean {ANNOTATION_PREFIX}{key}?"
            yield of_key(f"annotation {name}", value, "is no key of gpushare", fix)


def _unknown(where: Where, name: str, value: Value) -> Iterator[Finding]:
    found = list(_elsewhere(where, name, value))
    yield from found
    dialect = _of(name)
    if found or dialect is None:
        return
    key = f"{where} {name}"
    close = get_close_matches(name, _names(where), n=1, cutoff=0.8)
    if close:
        yield of_key(key, value, f"is no key of {dialect.title}", f"did you mean {close[0]}?")
    elif where != "limit" or not name.startswith("nvidia.com/"):
        # A cluster's own device plugin may call what it shares as it likes.
        fix = "gpushare takes it for nothing"
        yield of_key(key, value, f"is no key of {dialect.title} that is known", fix, WARNING)


def _elsewhere(where: Where, name: str, value: Value) -> Iterator[Finding]:
    """Yield a key that a vendor reads in another place, and only there."""
    places = [other for other in _PLACES if other != where and TABLES.find(other, {name: ""})]
    if not places or "/" not in name:
        return
    rule = f"is not read in {_PLACES[where]}"
    yield of_key(f"{where} {name}", value, rule, f"write it in {_PLACES[places[0]]}", ERROR)


def _of(name: str) -> Dialect | None:
    found = (one for one in TABLES.dialects if one.domains and name.startswith(one.domains))
    return next(found, None)


@cache
def _names(where: Where) -> tuple[str, ...]:
    rows = (row for one in TABLES.dialects for row in one.rows if row.where == where)
    return tuple(dict.fromkeys(row.name for row in rows if row.pattern is None))
