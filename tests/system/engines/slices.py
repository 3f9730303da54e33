# SPDX-License-Identifier: Apache-2.0
"""What a container's probe reports of its slice, and what the daemon has allocated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.stack import Stack

GIB = 1 << 30
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
NO_DRIVER = 3  # the probe's exit status where there is no libcuda.so.1

Said = dict[str, Any]


def probing(memory: int) -> tuple[str, ...]:
    """Return the probe's commands that show a slice of `memory` bytes: half of it, twice.

    The second half has no room: a context has taken some.
    """
    return ("context", "info", f"alloc {memory // 2}", f"alloc {memory // 2}")


def parse(printed: str) -> list[Said]:
    """Return what a probe printed, event by event."""
    return [json.loads(line) for line in printed.splitlines()]


def assert_slice(said: Sequence[Said], memory: int) -> None:
    """Assert that a probe run as `probing(memory)` saw a card of that size, and got no more."""
    [info] = [event for event in said if event["event"] == "info"]
    assert info["total"] == info["device_total"] == memory
    results = [event["result"] for event in said if event["event"] == "alloc"]
    assert results == ["CUDA_SUCCESS", OUT_OF_MEMORY]


def allocated(stack: Stack) -> dict[str, int]:
    """Return the bytes that the daemon has allocated to each tenant, by name."""
    rows = stack.client.tenants()
    return {row["name"]: sum(card["quota_bytes"] for card in row["cards"]) for row in rows}
