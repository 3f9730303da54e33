# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own limits a container that bypasses the interposer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.verify import image
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30
AROUND = (image.PROGRAM, "--library", "/.gpushare/driver/libcuda.so.1")
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(scope="module")
def newer() -> Iterator[Stack]:
    """A stack with the first driver that has limits."""
    with Stack(driver="615.10") as made:
        made.start_daemon()
        yield made


@pytest.mark.gate
def test_a_program_that_calls_the_real_driver_is_refused_at_its_quota(newer: Stack) -> None:
    bundle = Bundle(newer, quota={"memory": "4GiB"}, args=AROUND)
    with bundle.started() as tenant:
        assert bundle.tenant["isolation"] == "driver"
        assert tenant.ask("info")["total"] > 100 * GIB, "it sees the card: it is not filtered"
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY
        newer.client.set(bundle.id, memory="6GiB")
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY
        newer.client.set(bundle.id, memory="1GiB")
        assert tenant.ask("free")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY
