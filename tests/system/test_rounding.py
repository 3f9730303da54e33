# SPDX-License-Identifier: Apache-2.0
"""The account of a tenant rounds as the driver at hand does, which gpushared has measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare import simulator
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until


def measured(stack: Stack) -> dict[str, int]:
    """Return the log's line about the measured driver; empty before there is one."""
    lines = map(json.loads, (stack.root / "gpushared.log").read_text().splitlines())
    return next((line for line in lines if line["event"] == "context-size-measured"), {})


@pytest.mark.parametrize("rounding", [0, 256])
def test_the_account_is_not_above_the_books(tmp_path: Path, rounding: int) -> None:
    profile = tmp_path / "other.json"
    profile.write_text(json.dumps(simulator.load_profile("h200") | {"rounding_bytes": rounding}))
    usual = rounding == 0
    granule = rounding if 0 < rounding < 512 else 512
    block = rounding or 2 << 20
    with Stack(profile=str(profile)) as stack:
        stack.start_daemon()
        wait_until(lambda: bool(measured(stack)))
        found = measured(stack)
        assert found["granule_bytes"] == (0 if usual or rounding > 512 else rounding)
        assert found["block_bytes"] == block
        with Bundle(stack, quota={"memory": "4GiB"}).run() as tenant:
            assert tenant.start()["code"] == 0
            tenant.ask("context")

            def taken_by(size: int) -> int:
                before = tenant.ask("info")["free"]
                assert tenant.ask(f"alloc {size}")["code"] == 0
                return int(before - tenant.ask("info")["free"])

            assert taken_by(1) == granule
            assert taken_by((2 << 20) + 1) == -(-((2 << 20) + 1) // block) * block
            assert taken_by(1000) == -(-1000 // granule) * granule
