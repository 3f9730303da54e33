# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Contexts: counted once, whichever library makes them; their memory is freed with them."""

from __future__ import annotations

import pytest

from gpushare import abi

from .client import *
from .container import ProgramContainer
from .inside import inside
from .paths import GREEN

PRICE = 10 * MIB
ONE = (PRICE, 1)


def primary_behind() -> c_void_p:
    """The primary context, made around the filter: as cudart does, through its export tables."""
    handle = c_void_p()
    call("cuInit", 0)
    assert behind.cuDevicePrimaryCtxRetain(byref(handle), 0) == 0
    return handle


@inside("container")
def test_the_primary_context_is_charged_once_and_takes_its_buffers_along(
    container: ProgramContainer,
) -> None:
    container.tenant.set_context_bytes(PRICE)
    call("cuInit", 0)
    for _ in range(2):
        primary()
        assert container.tenant.used() == ONE
    alloc(30 * MIB)
    call("cuDevicePrimaryCtxRelease_v2", 0)
    assert container.tenant.used() == (PRICE + 30 * MIB, 1)
    call("cuDevicePrimaryCtxRelease_v2", 0)
    assert container.tenant.used() == (0, 0)
    primary()
    alloc(20 * MIB)
    call("cuDevicePrimaryCtxReset_v2", 0)
    assert container.tenant.used() == (0, 0)


@inside("container")
def test_a_primary_context_that_is_there_already_is_never_refused(
    container: ProgramContainer,
) -> None:
    container.tenant.set_context_bytes(30 * MIB)
    container.tenant.set_u64(0, abi.GRANT_CARD_OVERHEAD_BYTES, 32 * MIB)  # the same, measured
    call("cuCtxSetCurrent", primary_behind())
    alloc(60 * MIB)
    primary()
    assert memory()[0] == 8 * MIB


@pytest.mark.parametrize("name", ["cuCtxSetCurrent", "cuCtxPushCurrent_v2"])
@inside()
def test_a_primary_context_made_behind_the_filter_is_counted_when_it_is_seen(
    name: str, simulated: ProgramContainer
) -> None:
    tenant, handle = simulated.tenant, primary_behind()
    tenant.set_context_bytes(PRICE)
    tenant.set_memory(PRICE - 1)
    for _ in range(3):
        call(name, handle)
        assert tenant.used() == ONE  # never refused: it is there
    assert result_of(alloc, 1) == OUT_OF_MEMORY
    tenant.set_memory(100 * MIB)
    primary()
    alloc(60 * MIB)
    call("cuDevicePrimaryCtxReset_v2", 0)
    assert tenant.used() == (0, 0)
    call("cuCtxSetCurrent", primary_behind())
    assert tenant.used() == ONE


@inside("fake")
def test_green_contexts_stay_charged_until_the_primary_context_ends(
    fake: ProgramContainer,
) -> None:
    """As their memory stays on the card: a loop that makes and destroys them ends at the quota."""
    fake.tenant.set_context_bytes(PRICE)
    call("cuInit", 0)
    primary()
    for count in range(1, (100 * MIB - PRICE) // GREEN + 1):
        call("cuGreenCtxDestroy", made("cuGreenCtxCreate", None, 0, 1))
        assert fake.tenant.used() == (PRICE + count * GREEN, 1)
    for _ in range(2):
        assert result_of(made, "cuGreenCtxCreate", None, 0, 1) == OUT_OF_MEMORY
    call("cuDevicePrimaryCtxReset_v2", 0)
    assert fake.tenant.used() == (0, 0)
    call("cuGreenCtxDestroy", made("cuGreenCtxCreate", None, 0, 1))
    assert fake.tenant.used() == (0, 0)


@inside()
def test_a_tenant_checkpoints_no_process() -> None:
    """Not its own either: only gpushared evicts, and its eviction must not be ended by others."""
    start()
    for step in ("Checkpoint", "Restore"):
        assert getattr(cu, f"cuCheckpointProcess{step}")(os.getpid(), None) == 801


@inside("fake")
def test_a_context_with_a_reused_handle_stays_charged(fake: ProgramContainer) -> None:
    """The driver reuses a handle before the interposer knows that it is free."""
    fake.tenant.set_context_bytes(PRICE)
    first = start()
    alloc(20 * MIB)
    meanwhile(context, lambda: alloc(30 * MIB))
    call("cuCtxDestroy_v2", first)
    assert charged() == PRICE + 30 * MIB
