# SPDX-License-Identifier: Apache-2.0
"""Contexts: counted once, whichever library makes them; their memory is freed with them."""

from __future__ import annotations

import pytest

from .conftest import FAKE_UUIDS, FakeContainer, ProgramContainer
from .simulator_figures import open_behind
from .tenant import MIB

PRICE = 10 * MIB
BEHIND = (
    "behind = ctypes.CDLL(os.environ['BEHIND'])",
    "handle = c_void_p()",
    "call('cuInit', 0)",
    "assert behind.cuDevicePrimaryCtxRetain(byref(handle), 0) == 0",
)


@pytest.fixture
def priced(container: ProgramContainer) -> ProgramContainer:
    container.tenant.set_context_bytes(PRICE)
    return open_behind(container)


@pytest.mark.parametrize("call", ["cuCtxSetCurrent", "cuCtxPushCurrent_v2"])
def test_a_primary_context_made_behind_the_filter_is_counted_when_it_is_seen(
    call: str, priced: ProgramContainer
) -> None:
    if call == "cuCtxPushCurrent_v2" and "simulator" not in str(priced.libraries):
        call = "cuCtxSetCurrent"  # the other driver has no stack
    priced.python(
        *BEHIND,
        f"[call('{call}', handle) for _ in range(3)]",
        "call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "os._exit(0)",
    )
    assert priced.tenant.used() == (PRICE, 1)


def test_one_that_is_seen_again_after_its_end_is_counted_again(priced: ProgramContainer) -> None:
    priced.python(
        *BEHIND,
        "call('cuCtxSetCurrent', handle)",
        "call('cuDevicePrimaryCtxReset_v2', 0)",
        "assert behind.cuDevicePrimaryCtxRetain(byref(handle), 0) == 0",
        "call('cuCtxSetCurrent', handle)",
        "os._exit(0)",
    )
    assert priced.tenant.used() == (PRICE, 1)


def test_a_context_of_one_s_own_made_current_is_not_the_primary_one(
    priced: ProgramContainer,
) -> None:
    priced.python(
        "own = start()",
        "call('cuCtxSetCurrent', None)",
        "call('cuCtxSetCurrent', own)",
        "os._exit(0)",
    )
    assert priced.tenant.used() == (PRICE, 1)


def test_one_that_is_seen_is_never_refused(priced: ProgramContainer) -> None:
    priced.tenant.set_memory(PRICE - 1)
    said = priced.says(*BEHIND, "call('cuCtxSetCurrent', handle)", "say(result_of(alloc, 1))")
    assert said == [2]


def test_a_context_ends_with_the_last_that_is_attached(simulated: ProgramContainer) -> None:
    simulated.tenant.set_context_bytes(PRICE)
    said = simulated.says(
        "first = start()",
        "own, again = context(), c_void_p()",
        "alloc(20 * MIB)",
        "call('cuCtxAttach', byref(again), 0)",
        "call('cuCtxAttach', byref(again), 0)",
        "seen = [again.value == own.value]",
        "for _ in range(3):",
        "    call('cuCtxDetach', own)",
        "    seen.append(memory()[0] // MIB)",
        "say(*seen)",
    )
    assert said == [True, 60, 60, 90]


def test_a_destroyed_context_was_attached_by_no_process(simulated: ProgramContainer) -> None:
    simulated.tenant.set_context_bytes(PRICE)
    said = simulated.says(
        "first = start()",
        "own, again = context(), c_void_p()",
        "call('cuCtxAttach', byref(again), 0)",
        "call('cuCtxDestroy_v2', own)",
        "say(memory()[0])",
    )
    assert said == [90 * MIB]


class TestGreenContexts:
    """Each is a part of the primary context, which it keeps."""

    def test_they_are_charged_as_one_primary_context(self, fake_container: FakeContainer) -> None:
        fake = fake_container(FAKE_UUIDS[:1], 100 * MIB)
        fake.env["FAKE_CUDA_DEVICES"] = "0"
        fake.tenant.set_context_bytes(PRICE)
        said = fake.says(
            "call('cuInit', 0)",
            "handle = c_void_p()",
            "def green():",
            "    made = c_void_p()",
            "    call('cuGreenCtxCreate', byref(made), None, 0, 1)",
            "    return made",
            "one, other = green(), green()",
            "call('cuCtxFromGreenCtx', byref(handle), one)",
            "call('cuCtxSetCurrent', handle)",
            "seen = [memory()[0] // MIB]",
            "alloc(20 * MIB)",
            "call('cuGreenCtxDestroy', one)",
            "seen.append(memory()[0] // MIB)",
            "call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
            "call('cuGreenCtxDestroy', other)",
            "seen.append(memory()[0] // MIB)",
            "call('cuDevicePrimaryCtxRelease_v2', 0)",
            "seen.append(memory()[0] // MIB)",
            "say(*seen)",
        )
        assert said == [90, 70, 70, 100]

    def test_one_that_does_not_fit_is_out_of_memory(self, fake: ProgramContainer) -> None:
        fake.tenant.set_context_bytes(100 * MIB + 1)
        said = fake.says(
            "call('cuInit', 0)",
            "made = c_void_p()",
            "over = result_of(call, 'cuGreenCtxCreate', byref(made), None, 0, 1)",
            "state, flags = c_int(), c_uint()",
            "call('cuDevicePrimaryCtxGetState', 0, byref(flags), byref(state))",
            "say(over, state.value)",
        )
        assert said == [2, 0]

    def test_a_failed_one_leaves_no_trace(self, fake: ProgramContainer) -> None:
        fake.tenant.set_context_bytes(PRICE)
        fake.env["FAKE_CUDA_FAIL"] = "1"
        fake.python(
            "call('cuInit', 0)",
            "made = c_void_p()",
            "assert result_of(call, 'cuGreenCtxCreate', byref(made), None, 0, 1) == 719",
            "os._exit(0)",
        )
        assert fake.tenant.used() == (0, 0)


def test_a_tenant_checkpoints_no_process(fake: ProgramContainer) -> None:
    """Not its own either: only gpushared evicts, and its eviction must not be ended by others."""
    said = fake.says(
        "start()",
        "steps = ('Checkpoint', 'Restore')",
        "say([getattr(cu, f'cuCheckpointProcess{step}')(os.getpid(), None) for step in steps])",
    )
    assert said == [[801] * 2]


def test_a_context_with_a_reused_handle_stays_charged(fake: ProgramContainer) -> None:
    """The driver reuses a handle before the interposer knows that it is free."""
    fake.tenant.set_context_bytes(PRICE)
    open_behind(fake).python(
        "behind = ctypes.CDLL(os.environ['BEHIND'])",
        "first = start()",
        "alloc(20 * MIB)",
        "def another():",
        "    context()",
        "    alloc(30 * MIB)",
        "called = ctypes.CFUNCTYPE(None)(another)",
        "hook = c_void_p.in_dll(behind, 'when_destroyed')",
        "hook.value = ctypes.cast(called, c_void_p).value",
        "call('cuCtxDestroy_v2', first)",
        "os._exit(0)",
    )
    assert fake.tenant.used() == (PRICE + 30 * MIB, 1)
