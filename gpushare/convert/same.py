# SPDX-License-Identifier: Apache-2.0
"""Whether two requests come to the same, by whatever keys they are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gpushare.quota import Given, Quota, give, read_again
from gpushare.quota.quota import Layer

# Of whole cards only how many and which counts.
_WHOLE: Final = ("count", "devices")
_SHARED: Final = (
    *_WHOLE,
    "memory_bytes",
    "memory_percent",
    "memory_limit_bytes",
    "cores",
    "policy",
    "weight",
    "priority",
    "class_",
)
_ANY: Final = ("allow", "deny", "placement", "numa", "oversubscribe", "backend")
_FIELDS: Final = {"memory": "memory_bytes", "memory-limit": "memory_limit_bytes", "class": "class_"}

Meaning = dict[str, object]


def quota_of(layer: Layer) -> Quota:
    """Return the quota that `layer` alone is, each key as it was written; QuotaError."""
    quota = read_again({key: f"{asked.text} annotation" for key, asked in layer.items()}, {})
    return replace(quota, asked=layer)


def meaning(layer: Layer) -> Meaning:
    """Return what `layer` gives, by field of Given and Quota; QuotaError as give."""
    quota = quota_of(layer)
    given: Given = give(quota)
    fields = {"kind": given.kind, **{name: getattr(quota, name) for name in _ANY}}
    of_kind = _SHARED if given.kind == "shared" else _WHOLE
    fields |= {name: getattr(given, name) for name in of_kind}
    uuids = all(name.startswith("GPU-") for name in given.devices)
    if given.devices and uuids and not quota.allow:  # as many cards, and only these
        fields |= {"allow": given.devices, "devices": ()}
    return fields


def differing(first: Meaning, second: Meaning) -> list[str]:
    """Return the fields in which two differ."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def field_of(key: str) -> str:
    """Return the field that a canonical key fills."""
    return _FIELDS.get(key, key.replace("-", "_"))


def fields_of(keys: Iterable[str]) -> set[str]:
    """Return the fields that are not the same where `keys` are lost: the policy follows cores."""
    fields = {field_of(key) for key in keys}
    follows = {"cores": "policy", "devices": "allow"}
    return fields | {other for field, other in follows.items() if field in fields}
