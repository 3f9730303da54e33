# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own limits a container that bypasses the interposer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.client import Client
from gpushare.verify import image
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30
AROUND = (image.PROGRAM, "--library", "/opt/gpushare/driver/libcuda.so.1")
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(scope="module")
def newer() -> Iterator[Stack]:
    """A stack with the first driver that has limits."""
    with Stack(driver="615.10") as made:
        made.start_daemon()
        yield made


def isolation(stack: Stack, bundle: Bundle) -> str:
    return Client(stack.socket).tenant(bundle.id)["isolation"]


def test_a_program_that_calls_the_real_driver_is_refused_at_its_quota(newer: Stack) -> None:
    bundle = Bundle(newer, quota={"memory": "4GiB"}, args=AROUND)
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert isolation(newer, bundle) == "driver"
        assert tenant.ask("info")["total"] > 100 * GIB, "it sees the card: it is not filtered"
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY
        Client(newer.socket).set(bundle.id, memory="6GiB")
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY
        Client(newer.socket).set(bundle.id, memory="1GiB")
        assert tenant.ask("free")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY


def test_burst_memory_is_allowed_by_library_and_driver(newer: Stack) -> None:
    quota = {"memory": "4GiB", "memory-limit": "20GiB"}
    for args in (AROUND, AROUND[:1]):
        with Bundle(newer, quota=quota, args=args).run() as tenant:
            assert tenant.start()["code"] == 0
            assert tenant.ask(f"alloc {18 * GIB}")["code"] == 0
            assert tenant.ask(f"alloc {2 * GIB}")["result"] == OUT_OF_MEMORY


def test_a_program_that_goes_through_the_filter_is_under_both(newer: Stack) -> None:
    bundle = Bundle(newer, quota={"memory": "4GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert isolation(newer, bundle) == "driver"
        assert tenant.ask("info")["total"] == 4 * GIB
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == OUT_OF_MEMORY


def test_an_older_driver_leaves_it_to_the_interposer(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert isolation(stack, bundle) == "interposer"
    with Bundle(stack, quota={"memory": "4GiB", "backend": "driver"}).run() as refused:
        assert refused.wait() != 0
        assert "GPUSHARE_BACKEND=driver: needs memory limits" in refused.errors
