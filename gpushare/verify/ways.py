# SPDX-License-Identifier: Apache-2.0
"""The steps about where memory is: each way to take it has the same limit, and its own line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gpushare.quota.size import format_size

from .stage import OUT_OF_MEMORY, Stage, soon
from .tenant import Tenant

_MIB: Final = 1 << 20

PLAIN: Final = "cuMemAlloc"
#: The driver's functions by which a program takes memory, and under what `gpushare why` has it.
PARTS: Final[Mapping[str, str]] = {
    PLAIN: "buffers",
    "cuMemAllocPitch": "buffers",
    "cuMemAllocManaged": "managed",
    "cuMemAllocAsync": "pools",
    "cuMemAllocFromPoolAsync": "pools",
    "cuMemCreate": "physical",
    "cuArrayCreate": "arrays",
    "cuGraphLaunch": "graphs",
    "cuModuleLoadData": "modules",
}
# Pools and graphs take memory from the card in chunks, a module has code beside its variables.
_SLACK: Final[Mapping[str, int]] = {
    "cuMemAllocAsync": 64 * _MIB,
    "cuMemAllocFromPoolAsync": 64 * _MIB,
    "cuGraphLaunch": 64 * _MIB,
    "cuModuleLoadData": 64 * _MIB,
}


def slack_bytes(api: str, granule: int) -> int:
    """Return how much of what is free `api` may leave when it is refused one granule more."""
    return _SLACK.get(api, granule)


def every_way(stage: Stage, tenant: Tenant) -> None:
    """Fill what is free in each way, to the quota and not beyond it."""
    stage.report.title(f"The same limit through every way {tenant.name} may allocate")
    for api in PARTS:
        tenant.ask("free")
        free = tenant.ask("info")["free"]
        fill = stage.fill(tenant, api, free)
        slack = slack_bytes(api, fill["granule"])
        stage.report.check(
            f"{api}: {format_size(fill['bytes'])}, then {OUT_OF_MEMORY}",
            0 <= free - fill["bytes"] < slack and fill["result"] == OUT_OF_MEMORY,
            f"free {free}, {fill}",
        )


def accounted(stage: Stage, tenant: Tenant) -> None:
    """Take some in each way and see each byte in its place."""
    stage.report.title(f"Where is the memory of {tenant.name}?")
    one = stage.sizes.small // 32
    tenant.ask("free")
    for api in PARTS:
        tenant.ask(f"alloc {api} {one}")
    refused = tenant.ask(f"alloc {stage.sizes.small}")
    found: dict[str, Any] = {}

    def is_explained() -> bool:
        found.update(json.loads(stage.cli_said("why", tenant.name, "--json")))
        return _explained(found["cards"][0])

    explained = soon(is_explained)
    stage.show("why", tenant.name)
    card = found["cards"][0]
    stage.report.check(
        "its lines add up to what it uses, and that to what it is told is not free",
        sum(card["parts"].values()) == card["used_bytes"]
        and card["used_bytes"] == card["memory_bytes"] - tenant.ask("info")["free"],
        card,
    )
    taken = {part: one * list(PARTS.values()).count(part) for part in PARTS.values()}
    stage.report.check(
        f"each way has its line, with the {format_size(one)} that were taken by it",
        all(card["parts"][part] >= size for part, size in taken.items()),
        card["parts"],
    )
    stage.report.check("nothing that the driver has is missing from the sum", explained, card)
    last = found["last_denied"]
    stage.report.check(
        f"what was refused is named: {format_size(stage.sizes.small)}",
        refused["result"] == OUT_OF_MEMORY
        and last is not None
        and last["bytes"] >= stage.sizes.small,
        f"{refused}, {last}",
    )


def _explained(card: Mapping[str, Any]) -> bool:
    """Whether the driver has no more than the account and what was measured beside it."""
    told: int | None = card["driver_bytes"]
    return told is not None and told <= card["used_bytes"] - card["parts"]["managed"]
