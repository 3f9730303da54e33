# SPDX-License-Identifier: Apache-2.0
"""What the names of ResourceClaimTemplates say, and the same of what gpushared reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from .pods import Object, containers_of, requested

NAME: Final = re.compile(
    r"gpushare-(?:([1-9][0-9]{0,8})mi|([1-9][0-9]?)pct|all)-(0|[1-9][0-9]?|100)-([1-9]|1[0-6])"
)
LEFT_OUT: Final = "templates.gpushare.io/left-out"
#: Memory in MiB or percent (100: all), cores, cards; nothing for a container without a GPU.
Amounts: TypeAlias = "tuple[str, int, int] | None"


def claimed(pod: Object) -> list[Amounts]:
    """Return what the templates that a translated pod names say, by container."""
    templates = {
        one["name"]: one["resourceClaimTemplateName"]
        for one in pod["spec"].get("resourceClaims", [])
        if one["name"].startswith("gpushare-")
    }
    found: list[Amounts] = []
    for each in containers_of(pod):
        claims = [one["name"] for one in each.get("resources", {}).get("claims", [])]
        own = [templates[name] for name in claims if name in templates]
        found.append(amounts(own[0]) if own else None)
        assert len(own) <= 1
    return found


def amounts(name: str) -> Amounts:
    match = NAME.fullmatch(name)
    assert match is not None, name
    mebibytes, percent, cores, cards = match.groups()
    memory = f"{mebibytes} MiB" if mebibytes else f"{percent or 100} %"
    return memory, int(cores), int(cards)


def meant(meaning: Mapping[str, Any] | str) -> Amounts:
    """Return the same of what gpushared reads of a container with keys of ours."""
    assert not isinstance(meaning, str), meaning
    if meaning["kind"] == "none":
        return None
    if meaning["kind"] == "exclusive":
        return "100 %", 0, meaning["count"]
    if meaning["memory_bytes"] is not None:
        memory = f"{-(-meaning['memory_bytes'] // (1 << 20))} MiB"
    else:
        memory = f"{meaning['memory_percent']} %"
    return memory, meaning["cores"], meaning["count"]


#: What the names of templates say.
SAID: Final = {
    "kind",
    "count",
    "devices",
    "memory_bytes",
    "memory_percent",
    "cores",
}


def others(meaning: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return what gpushared reads that no name of a template says."""
    assert not isinstance(meaning, str)
    cores = {"gpushare.io/cores": str(meaning["cores"])} if meaning.get("cores") else {}
    plain = requested({"name": "c"}, {"gpushare.io/memory": "1GiB", **cores})
    assert not isinstance(plain, str)
    return {
        key: value
        for key, value in meaning.items()
        if key not in SAID and value != plain.get(key, value)
    }
