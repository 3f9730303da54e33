# SPDX-License-Identifier: Apache-2.0
"""Real containers with managed memory beyond their quota, and the others on their card."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle

from .waiting import wait_until

GIB = 1 << 30
OUT_OF_MEMORY = 2
MANAGED = "alloc cuMemAllocManaged"


@pytest.fixture(scope="module")
def machine() -> Iterator[Stack]:
    with Stack() as made:
        content = yaml.safe_load(made.config.read_text())
        content["oversubscribe"] = {"host_memory": "32GiB", "per_container": "16GiB"}
        made.config.write_text(yaml.safe_dump(content))
        made.start_daemon()
        yield made


def answer(machine: Stack, *words: str) -> Any:
    argv = [*machine.cli, *words, "--json"]
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=machine.environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figures(made: Bundle) -> Any:
    return answer(made.stack, "why", made.id)["cards"][0]


def bundle(machine: Stack, **quota: str) -> Bundle:
    return Bundle(machine, quota=quota, args=PROBE)


def test_managed_memory_has_a_bound_of_its_own_beside_the_quota(machine: Stack) -> None:
    made = bundle(machine, memory="4GiB", oversubscribe="host:8GiB")
    available = answer(machine, "ls")[0]["available_bytes"]
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"{MANAGED} {13 * GIB}")["code"] == OUT_OF_MEMORY
        assert tenant.ask(f"{MANAGED} {10 * GIB}")["code"] == 0
        card = figures(made)
        assert card["kinds"]["managed"] == 2 * GIB
        assert card["used_bytes"] == sum(card["kinds"].values()) < 4 * GIB
        assert card["oversubscribed_bytes"] == card["oversubscribed_limit_bytes"] == 8 * GIB
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        assert tenant.ask(f"alloc {1 * GIB}")["code"] == 0
        # Nothing but its quota is taken of the card, and the audit finds nothing wrong.
        assert answer(machine, "ls")[0]["available_bytes"] == available - 4 * GIB
        row = next(one for one in answer(machine, "ps") if one["id"] == made.id)
        assert row["cards"][0]["over_quota_state"] == ""
    made.remove()


def test_a_restart_of_the_daemon_keeps_it(machine: Stack) -> None:
    made = bundle(machine, memory="4GiB", oversubscribe="host")
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"{MANAGED} {12 * GIB}")["code"] == 0
        assert machine.daemon is not None
        machine.daemon.stop()
        machine.start_daemon()
        wait_until(lambda: figures(made)["oversubscribed_bytes"] == 12 * GIB)
        assert figures(made)["oversubscribed_limit_bytes"] == 16 * GIB
        assert tenant.ask(f"{MANAGED} {8 * GIB}")["code"] == OUT_OF_MEMORY
        assert tenant.ask(f"{MANAGED} {4 * GIB}")["code"] == 0
        other, third = (bundle(machine, memory="1GiB", oversubscribe="host") for _ in range(2))
        with other.run() as beside:
            assert beside.start()["code"] == 0
            with third.run() as refused:
                assert refused.wait() != 0
            assert "no host memory is left for 16 GiB" in refused.errors
    for one in (made, other, third):
        one.remove()


def test_a_container_memory_limit_bounds_it(machine: Stack) -> None:
    made = bundle(machine, memory="4GiB", oversubscribe="host:8GiB")
    made.config["linux"].setdefault("resources", {})["memory"] = {"limit": 2 * GIB}
    made.save()
    with made.run() as refused:
        assert refused.wait() != 0
    assert "needs 8GiB of host memory, and the container's memory limit is 2GiB" in refused.errors
    made.remove()
