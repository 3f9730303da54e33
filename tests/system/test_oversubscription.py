# SPDX-License-Identifier: Apache-2.0
"""Real containers with managed memory beyond their quota, and the others on their card."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle

from .waiting import wait_until

GIB = 1 << 30
OUT_OF_MEMORY = 2
MANAGED = "alloc cuMemAllocManaged"


@pytest.fixture
def machine() -> Iterator[Stack]:
    with Stack() as made:
        made.configure(oversubscribe={"host_memory": "32GiB", "per_container": "16GiB"})
        made.start_daemon()
        yield made


def figures(made: Bundle) -> Any:
    return made.stack.shown("why", made.id)["cards"][0]


def bundle(machine: Stack, **quota: str) -> Bundle:
    return Bundle(machine, quota=quota, args=PROBE)


@pytest.mark.gate
def test_managed_memory_has_a_bound_of_its_own_beside_the_quota(
    machine: Stack,
) -> None:
    made = bundle(machine, memory="4GiB", oversubscribe="host:8GiB")
    available = machine.shown("ls")[0]["available_bytes"]
    with made.started() as tenant:
        assert tenant.ask(f"{MANAGED} {13 * GIB}")["code"] == OUT_OF_MEMORY
        assert tenant.ask(f"{MANAGED} {10 * GIB}")["code"] == 0
        card = figures(made)
        assert card["kinds"]["managed"] == 2 * GIB
        assert card["used_bytes"] == sum(card["kinds"].values()) < 4 * GIB
        assert card["oversubscribed_bytes"] == card["oversubscribed_limit_bytes"] == 8 * GIB
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        assert tenant.ask(f"alloc {1 * GIB}")["code"] == 0
        # Nothing but its quota is taken of the card, and the audit finds nothing wrong.
        assert machine.shown("ls")[0]["available_bytes"] == available - 4 * GIB
        assert made.tenant["cards"][0]["over_quota_state"] == ""
        machine.end_daemon(signal.SIGTERM)
        machine.start_daemon()
        wait_until(lambda: figures(made)["oversubscribed_bytes"] == 8 * GIB)
        assert figures(made)["oversubscribed_limit_bytes"] == 8 * GIB
        other, third = (bundle(machine, memory="1GiB", oversubscribe="host") for _ in range(2))
        with other.started():
            assert "no host memory is left for 16 GiB" in third.refusal()
