# SPDX-License-Identifier: Apache-2.0
"""Allocations are held to the quota and charged exactly."""

from __future__ import annotations

import sys

import pytest

from gpushare import abi

from .conftest import FAKE_UUIDS, FakeContainer, ProgramContainer, program
from .tenant import MIB

ALLOCATE = (
    *("alloc", "alloc_pitch", "alloc_managed", "alloc_async", "alloc_async_ptsz"),
    *("alloc_from_pool", "alloc_from_pool_ptsz", "create"),
)


def test_memory_is_allocated_to_the_last_granule(container: ProgramContainer) -> None:
    container.tenant.set_context_bytes(7 * MIB)
    said = container.says(
        "start()",
        "free_bytes, total = memory()",
        "granule = 2 * MIB",
        "rest = free_bytes // granule * granule",
        "alloc(rest - granule)",
        "last = result_of(alloc, granule)",
        "over = result_of(alloc, granule)",
        "say(total, free_bytes, last, over, memory()[0])",
    )
    assert said == [100 * MIB, 93 * MIB, 0, 2, MIB]


@pytest.mark.parametrize("allocate", ALLOCATE)
def test_over_quota_is_out_of_memory(allocate: str, container: ProgramContainer) -> None:
    said = container.says(
        "start()",
        "alloc(36 * MIB)",
        f"say(result_of({allocate}, 65 * MIB), result_of({allocate}, 64 * MIB), memory()[0])",
    )
    assert said == [2, 0, 0]


@pytest.mark.parametrize(
    ("allocate", "give_back"),
    [(a, "release" if a == "create" else "free") for a in ALLOCATE]
    + [("alloc_async", "free_async")],
)
def test_a_free_gives_back_exactly(
    allocate: str, give_back: str, container: ProgramContainer
) -> None:
    said = container.says(
        "handle = start()",
        f"kept = {allocate}(32 * MIB)",
        f"freed = {allocate}(32 * MIB)",
        "def work():",
        "    call('cuCtxSetCurrent', handle)",
        f"    {give_back}(freed)",
        "worker = threading.Thread(target=work)",
        "worker.start()",
        "worker.join()",
        "cu.cuCtxSynchronize()",  # a pool keeps what is freed until then
        "say(memory()[0])",
    )
    assert said == [68 * MIB]


@pytest.mark.parametrize("allocate", ALLOCATE)
def test_a_failed_driver_call_leaves_no_trace(allocate: str, fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "os.environ['FAKE_CUDA_FAIL'] = '1'",
        f"failed = result_of({allocate}, 50 * MIB)",
        "say(failed, memory()[0])",
    )
    assert said == [719, 100 * MIB]


def test_a_failed_free_keeps_the_charge(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "alloc(MIB)",
        "say(result_of(free, 12345), result_of(free, 0), memory()[0])",
    )
    assert said == [1, 1, 99 * MIB]


def test_pitch_is_charged_as_the_driver_chose_it(container: ProgramContainer) -> None:
    said = container.says(
        "start()",
        "pointer, pitch = c_uint64(), c_size_t()",
        "rows = 1024",
        "arguments = (byref(pointer), byref(pitch), c_size_t(100), c_size_t(rows), 4)",
        "call('cuMemAllocPitch_v2', *arguments)",
        "charged = 100 * MIB - memory()[0]",
        "free(pointer.value)",
        "say(pitch.value * rows == charged, memory()[0])",
    )
    assert said == [True, 100 * MIB]


def test_a_pitch_that_does_not_fit_is_refused_and_freed(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "pointer, pitch = c_uint64(), c_size_t()",
        "arguments = (byref(pointer), byref(pitch), c_size_t(512), c_size_t(100 * 1024), 4)",
        "say(result_of(call, 'cuMemAllocPitch_v2', *arguments), cu.fake_live(), memory()[0])",
    )
    assert said == [2, 0, 100 * MIB]


def test_sizes_that_overflow_are_out_of_memory(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "pointer, pitch = c_uint64(), c_size_t()",
        "arguments = (byref(pointer), byref(pitch), c_size_t(1 << 40), c_size_t(1 << 40), 4)",
        "say(result_of(alloc, (1 << 64) - 1), result_of(call, 'cuMemAllocPitch_v2', *arguments))",
    )
    assert said == [2, 2]


def test_the_host_s_memory_is_not_charged(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "say(result_of(create, 500 * MIB, HOST_NUMA), memory()[0])",
    )
    assert said == [0, 100 * MIB]


def test_a_created_context_is_charged_and_takes_its_buffers_along(
    container: ProgramContainer,
) -> None:
    container.tenant.set_context_bytes(10 * MIB)
    said = container.says(
        "call('cuInit', 0)",
        "handle = context()",
        "alloc(20 * MIB)",
        "before = memory()[0]",
        "physical = create(6 * MIB)",
        "call('cuCtxDestroy_v2', handle)",
        "context()",
        "say(before, memory()[0])",
    )
    assert said == [70 * MIB, 84 * MIB]


def test_the_primary_context_is_charged_once(container: ProgramContainer) -> None:
    code = program(
        "call('cuInit', 0)",
        "handle = c_void_p()",
        "def step():",
        "    say()",
        "    input()",
        "def retain():",
        "    call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "    call('cuCtxSetCurrent', handle)",
        "    step()",
        "def release():",
        "    call('cuDevicePrimaryCtxRelease_v2', 0)",
        "    step()",
        "retain()",
        "retain()",
        "alloc(30 * MIB)",
        "release()",
        "release()",
        "retain()",
        "alloc(20 * MIB)",
        "call('cuDevicePrimaryCtxReset_v2', 0)",
        "step()",
    )
    seen = []
    with container.start(sys.executable, "-c", code) as process:
        assert process.stdin
        assert process.stdout
        while process.stdout.readline():
            seen.append(container.tenant.used())
            process.stdin.write("\n")
            process.stdin.flush()
    one, none = (0, 1), (0, 0)
    assert seen == [one, one, (30 * MIB, 1), none, one, none]


# The driver itself, behind the filter: as cudart reaches it, through its export tables.
BEHIND = (
    "behind = ctypes.CDLL(os.environ['BEHIND'])",
    "handle = c_void_p()",
    "call('cuInit', 0)",
    "assert behind.cuDevicePrimaryCtxRetain(byref(handle), 0) == 0",
    "call('cuCtxSetCurrent', handle)",
)


def behind(container: ProgramContainer) -> ProgramContainer:
    container.env["BEHIND"] = str(container.libraries.parent / "driver" / "libcuda.so.1")
    return container


def test_a_primary_context_that_is_there_already_is_never_refused(
    container: ProgramContainer,
) -> None:
    container.tenant.set_context_bytes(30 * MIB)
    container.tenant.set_u64(0, abi.GRANT_CARD_OVERHEAD_BYTES, 32 * MIB)  # the same, measured
    said = behind(container).says(
        *BEHIND,
        "alloc(60 * MIB)",
        "retain = result_of(call, 'cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "say(retain, memory()[0])",
    )
    assert said == [0, 8 * MIB]


def test_the_end_of_a_primary_context_that_was_not_retained_here_frees_its_buffers(
    container: ProgramContainer,
) -> None:
    said = behind(container).says(
        *BEHIND,
        "alloc(60 * MIB)",
        "call('cuDevicePrimaryCtxReset_v2', 0)",
        "call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "call('cuCtxSetCurrent', handle)",
        "say(memory()[0])",
    )
    assert said == [100 * MIB]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_captured_stream_allocates_and_frees_nothing(suffix: str, fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "outside = alloc_async(30 * MIB)",
        "os.environ['FAKE_CUDA_CAPTURES'] = '64'",
        "node, stream = c_uint64(), c_void_p(64)",
        f"call('cuMemAllocAsync{suffix}', byref(node), c_size_t(60 * MIB), stream)",
        "captured = memory()[0] // MIB",
        f"call('cuMemFreeAsync{suffix}', node, stream)",
        f"call('cuMemFreeAsync{suffix}', c_uint64(outside), stream)",
        "freed = memory()[0] // MIB",
        "del os.environ['FAKE_CUDA_CAPTURES']",
        f"call('cuMemAllocAsync{suffix}', byref(node), c_size_t(60 * MIB), stream)",
        "say(captured, freed, memory()[0] // MIB)",
    )
    assert said == [70, 70, 10]


def test_a_context_that_does_not_fit_is_out_of_memory(container: ProgramContainer) -> None:
    container.tenant.set_context_bytes(60 * MIB)
    said = container.says(
        "start()",
        "handle = c_void_p()",
        "retain = result_of(call, 'cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "say(retain, result_of(context), memory()[0])",
    )
    assert said == [2, 2, 40 * MIB]


def test_without_a_context_the_driver_s_error_comes_through(container: ProgramContainer) -> None:
    said = container.says("call('cuInit', 0)", "say(result_of(alloc, MIB), result_of(memory))")
    assert said == [201, 201]
    assert container.tenant.used() == (0, 0)


def test_the_end_of_a_process_frees_all(container: ProgramContainer) -> None:
    container.python("start()", "alloc(100 * MIB)")
    assert container.says("start()", "say(result_of(alloc, 100 * MIB))") == [0]


def test_total_memory_is_the_quota(container: ProgramContainer) -> None:
    said = container.says(
        "call('cuInit', 0)",
        "total = c_size_t()",
        "call('cuDeviceTotalMem_v2', byref(total), 0)",
        "say(total.value)",
    )
    assert said == [100 * MIB]


def test_a_resize_is_seen_at_once(container: ProgramContainer) -> None:
    container.tenant.set_memory(30 * MIB)
    code = (
        "start()",
        "say(result_of(alloc, 40 * MIB))",
        "input()",
        "say(result_of(alloc, 40 * MIB), *memory())",
    )
    with container.start(sys.executable, "-c", program(*code)) as process:
        assert process.stdout
        assert process.stdout.readline() == "[2]\n"
        container.tenant.set_memory(50 * MIB)
        assert process.communicate("\n")[0] == f"[0, {10 * MIB}, {50 * MIB}]\n"


class TestSeveralCards:
    """Two cards, of which the container was granted both or one."""

    def test_cards_are_identified_by_uuid(self, fake_container: FakeContainer) -> None:
        container = fake_container(FAKE_UUIDS, 100 * MIB)
        container.tenant.set_memory(10 * MIB, card=1)
        container.env["FAKE_CUDA_DEVICES"] = "10"  # as CUDA_VISIBLE_DEVICES=1,0 makes it
        said = container.says(
            "call('cuInit', 0)",
            "second = context(0)",
            "totals = [memory()[1] // MIB]",
            "first = context(1)",
            "totals.append(memory()[1] // MIB)",
            "call('cuCtxSetCurrent', second)",
            "over = result_of(alloc, 11 * MIB)",
            "pointer = alloc(10 * MIB)",
            "call('cuCtxSetCurrent', first)",
            "free(pointer)",  # with another card current
            "other = memory()[0] // MIB",
            "call('cuCtxSetCurrent', second)",
            "say(*totals, over, other, memory()[0] // MIB)",
        )
        assert said == [10, 100, 2, 100, 10]

    def test_a_card_that_was_not_allocated_is_unavailable(
        self, fake_container: FakeContainer
    ) -> None:
        container = fake_container(FAKE_UUIDS[1:], 100 * MIB)
        said = container.says(
            "call('cuInit', 0)",
            "say(result_of(context, 0), result_of(context, 1), result_of(context, 2))",
        )
        assert said == [46, 0, 101]

    def test_physical_memory_goes_by_its_own_location(self, fake_container: FakeContainer) -> None:
        container = fake_container(FAKE_UUIDS, 100 * MIB)
        container.python("start()", "create(30 * MIB, device=1)", "os._exit(0)")
        assert container.tenant.used(0) == (0, 1)
        assert container.tenant.used(1) == (30 * MIB, 0)
