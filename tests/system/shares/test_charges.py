# SPDX-License-Identifier: Apache-2.0
"""A container pays for its own work: whatever another claims, and whatever another bypasses.

Each scenario has a card of its own, and all of them run at the same time: the audit compares ten
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from tests.system.waiting import wait_until
from tools.bench.shares.machine import Programs

from .conftest import OTHER_DIR, made
from .served import part
from .tenants import SLOW, Busy, SharedCardStack

AROUND = f"LD_LIBRARY_PATH={abi.DRIVER_DIR} exec work {{options}}"
#: It stops itself with work pending, and is continued every 100 ms.
STOPS = "work {options} --stops 1 & it=$!; while :; do usleep 100000; kill -CONT $it; done"
SECONDS = 12
BAND = 6

#: Its library reads another grant page, in which the gate is metered and no scheduler is expected.
PATCHED = rf"""
mkdir -p {OTHER_DIR} && cd {OTHER_DIR}
for name in {abi.STATUS_NAME} {abi.SOCKET_NAME} {abi.WAKEUP_NAME}; do
    ln -s {abi.TENANT_DIR}/$name
done
cat {abi.TENANT_DIR}/{abi.GRANT_NAME} > {abi.GRANT_NAME}
put() {{ printf "$1\000\000\000" | dd of={abi.GRANT_NAME} bs=1 seek=$2 conv=notrunc 2>/dev/null; }}
put '\001' {abi.gate_offset(0) + abi.GATE_MODE}
put '\000' {abi.gate_offset(0) + abi.GATE_SELF_THROTTLE_PERMILLE}
LD_LIBRARY_PATH=/attack exec work {{options}}
"""
#: By card: the work of the container beside the capped one.
BESIDE: dict[str, dict[str, Any]] = {
    "stops": {"script": STOPS, "work": {"kernels": 3}},
    "bypasses": {"script": AROUND, "work": {"kernels": 2}},
    "colludes": {"script": "/attack/claims"},
    "patched": {"script": PATCHED},
    "forges": {"script": f"/attack/claims & {AROUND}", "work": {"kernels": 2}},
}


@dataclass
class BusyPair:
    """Two containers on a card, and what they had of it, in percent, while all pairs ran."""

    capped: Busy
    beside: Busy
    capped_got: float = 0.0
    beside_got: float = 0.0


def pair(place: SharedCardStack, card: int, **beside: Any) -> BusyPair:
    here = {"policy": "fixed-share", "devices": str(card)}
    capped = place.start({**here, "cores": "60"})
    return BusyPair(capped, place.start({**here, "cores": "30", "memory": "32GiB"}, **beside))


@pytest.fixture(scope="module")
def pairs(programs: Programs, attack: Path) -> Iterator[dict[str, BusyPair]]:
    with made(programs, cards=len(BESIDE), time_scale=SLOW) as place:
        found = {
            name: pair(place, card, mounts={"/attack": attack}, **beside)
            for card, (name, beside) in enumerate(BESIDE.items())
        }
        wait_until(lambda: found["bypasses"].capped.row()["warnings"] != [])
        before = [place.truth.now(card) for card in range(len(BESIDE))]
        for card, one in enumerate(found.values()):
            after = place.truth.later(before[card], SECONDS, card)
            one.capped_got = part(before[card], after, one.capped.pids)
            one.beside_got = part(before[card], after, one.beside.pids)
        yield found


@pytest.mark.parametrize("name", ["stops", "colludes"])
def test_a_cap_is_enforced_and_no_container_is_accused(
    pairs: dict[str, BusyPair], name: str
) -> None:
    one = pairs[name]
    assert 60 - 2 * BAND < one.capped_got < 60 + BAND
    assert one.beside_got < 30 + BAND
    for tenant in (one.capped, one.beside):
        assert not tenant.spent()["gate_bypassed"]
        assert tenant.row()["warnings"] == []


def test_a_bypass_is_reported_and_the_neighbour_gets_half_the_card(
    pairs: dict[str, BusyPair],
) -> None:
    """The hardware divides the card. Charged for both, the neighbour would have 36 percent."""
    one = pairs["bypasses"]
    assert one.capped_got > 47 - BAND
    spent = one.capped.spent()
    assert spent["cores_source"] == "driver"
    assert spent["cores_used"]["10s"] == spent["driver_utilization"]
    assert not spent["gate_bypassed"]
    [warning] = one.capped.row()["warnings"]
    assert "another container bypasses the launch gate" in warning
    assert "work bypasses the launch gate" in one.beside.row()["warnings"][0]


def test_a_patched_library_is_reported(pairs: dict[str, BusyPair]) -> None:
    """It claims what it uses, and does not wait."""
    one = pairs["patched"]
    wait_until(lambda: one.beside.spent()["gate_bypassed"])
    assert "it launches work while its gate is closed" in one.beside.row()["warnings"][0]
    assert one.capped_got > 47 - BAND
    assert not one.capped.spent()["gate_bypassed"]


def test_forged_claims_do_not_hide_a_bypass(pairs: dict[str, BusyPair]) -> None:
    """They contain all that the driver measures; but the container had no window."""
    one = pairs["forges"]
    wait_until(lambda: one.beside.spent()["gate_bypassed"])
    assert one.capped_got > 47 - BAND
    assert not one.capped.spent()["gate_bypassed"]
