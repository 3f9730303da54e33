# SPDX-License-Identifier: Apache-2.0
"""A container with two of a machine's three cards: each has a quota of its own."""

from __future__ import annotations

import pytest

from gpushare import simulator

from .conftest import T4, ProgramContainer, SimulatedContainer
from .program import ALLOCATION_PATHS, OUT_OF_MEMORY, DriverProgram, RefusedByDriver
from .tenant import MIB

FIRST, OTHERS, SECOND = 0, 1, 2  # the devices: the first card, one of others, the second card
UNAVAILABLE = 46
STEP = 64 * MIB  # of which every allocation takes whole chunks

#: Contexts on both cards, of which the first card's is current; and what a program does with them.
BOTH = (
    "def primary(device):",
    "    handle = c_void_p()",
    "    call('cuDevicePrimaryCtxRetain', byref(handle), device)",
    "    return handle",
    "call('cuInit', 0)",
    f"first, second = primary({FIRST}), primary({SECOND})",
    "call('cuCtxSetCurrent', first)",
    "def on(handle, function, *arguments):",
    "    call('cuCtxSetCurrent', handle)",
    "    try: return function(*arguments)",
    "    finally: call('cuCtxSetCurrent', first)",
    "def used():",
    "    return [(lambda m: (m[1] - m[0]) // MIB)(on(c, memory)) for c in (first, second)]",
    "def stream():",
    "    made = c_void_p()",
    "    call('cuStreamCreate', byref(made), 1)",
    "    return made",
    "def alloc_in(stream, size):",
    "    pointer = c_uint64()",
    "    call('cuMemAllocAsync', byref(pointer), c_size_t(size), stream)",
    "    return pointer.value",
    "def prefetch(pointer, size, device):",
    "    call('cuMemPrefetchAsync', c_uint64(pointer), c_size_t(size), device, None)",
)


@pytest.fixture
def container(simulated_container: SimulatedContainer) -> ProgramContainer:
    """Cards 0 and 2 of three: 100 MiB of each."""
    return simulated_container(3, [FIRST, SECOND])


@pytest.mark.parametrize(("device", "card", "other"), [(FIRST, 0, 1), (SECOND, 1, 0)])
def test_every_allocation_path_uses_its_own_card(
    device: int, card: int, other: int, container: ProgramContainer, allocation_program: str
) -> None:
    with DriverProgram(container, allocation_program, device=device) as program:
        program.free()  # it has its context
        one_context = container.tenant.used(card)
        assert one_context == (0, 1)
        for allocation in ALLOCATION_PATHS:
            number = program.take(allocation, STEP)
            assert container.tenant.used(card)[0] >= STEP, allocation
            with pytest.raises(RefusedByDriver) as refused:
                program.take(allocation, STEP)
            assert allocation == "limit" or refused.value.code == OUT_OF_MEMORY, allocation
            program.give(number)
            program.trim()
            assert container.tenant.used(card) == one_context, allocation
            assert container.tenant.used(other) == (0, 0), allocation


@pytest.mark.parametrize("allocation", ALLOCATION_PATHS)
def test_a_full_card_leaves_the_other_one_s_quota(
    allocation: str, container: ProgramContainer, allocation_program: str
) -> None:
    container.tenant.set_memory(2 * STEP, card=1)
    with (
        DriverProgram(container, allocation_program, device=FIRST) as first,
        DriverProgram(container, allocation_program, device=SECOND) as second,
    ):
        first.take("buffer", first.free())
        assert (first.total(), second.total()) == (100 * MIB, 2 * STEP)
        second.take(allocation, STEP)
        for program in (first, second):
            with pytest.raises(RefusedByDriver) as refused:
                program.take("buffer", STEP + 2 * MIB)
            assert refused.value.code == OUT_OF_MEMORY


def test_a_card_of_others_gives_nothing(container: ProgramContainer) -> None:
    container.env["BEHIND"] = str(container.libraries / "simulator" / "libcuda.so.1")
    said = container.says(
        *BOTH,
        f"results = [result_of(context, {OTHERS}), result_of(create, 2 * MIB, DEVICE, {OTHERS})]",
        f"results += [result_of(pool_create, {OTHERS})]",
        f"results += [result_of(prefetch, alloc_managed(2 * MIB), 2 * MIB, {OTHERS})]",
        "behind, theirs = ctypes.CDLL(os.environ['BEHIND']), c_void_p()",
        # As cudart does, past the filter.
        f"assert behind.cuDevicePrimaryCtxRetain(byref(theirs), {OTHERS}) == 0",
        "results += [result_of(on, theirs, alloc, 2 * MIB)]",
        "results += [result_of(on, theirs, alloc_async, 2 * MIB)]",
        "say(results, used())",
    )
    assert said == [[UNAVAILABLE] * 6, [2, 0]]


@pytest.mark.parametrize(
    "taking",
    [
        f"create(20 * MIB, DEVICE, {SECOND})",
        "on(second, alloc, 20 * MIB)",
        "on(second, alloc_managed, 20 * MIB)",
        f"pool_alloc(pool_create({SECOND}, max_size=32 * MIB), 20 * MIB)",
        f"pool_alloc(pool_default({SECOND}), 20 * MIB)",
        "alloc_in(on(second, stream), 20 * MIB)",  # from the pool of the stream's device
    ],
)
def test_memory_of_the_other_card_is_charged_there(
    taking: str, container: ProgramContainer
) -> None:
    said = container.says(*BOTH, taking, "say(*used())")
    assert said in ([0, 20], [0, 32])


def test_the_other_card_s_quota_refuses(container: ProgramContainer) -> None:
    container.tenant.set_memory(10 * MIB, card=1)
    said = container.says(
        *BOTH,
        "theirs = on(second, stream)",
        f"pool = pool_create({SECOND})",
        f"results = [result_of(create, 12 * MIB, DEVICE, {SECOND})]",
        "results += [result_of(on, second, alloc, 12 * MIB)]",
        "results += [result_of(pool_alloc, pool, 12 * MIB)]",
        "results += [result_of(alloc_in, theirs, 12 * MIB)]",
        "managed = alloc_managed(12 * MIB)",
        f"results += [result_of(prefetch, managed, 12 * MIB, {SECOND})]",
        "say(results, used(), result_of(alloc, 88 * MIB))",
    )
    assert said == [[OUT_OF_MEMORY] * 5, [12, 0], 0]


def test_a_free_gives_back_to_the_card_it_came_from(container: ProgramContainer) -> None:
    said = container.says(
        *BOTH,
        "own, theirs = alloc(10 * MIB), on(second, alloc, 20 * MIB)",
        "there = on(second, alloc_managed, 4 * MIB)",
        "async_ = alloc_in(on(second, stream), 20 * MIB)",
        "before = used()",
        "free(theirs), free(there), free(async_), on(second, free, own)",
        "on(second, call, 'cuCtxSynchronize')",
        "say(before, used())",
    )
    assert said == [[10, 56], [0, 0]]


def test_managed_memory_is_charged_on_each_card_that_it_was_sent_to(
    container: ProgramContainer,
) -> None:
    said = container.says(
        *BOTH,
        "pointer = alloc_managed(20 * MIB)",
        "before = used()",
        f"prefetch(pointer, 20 * MIB, {SECOND})",
        "after = used()",
        "on(second, free, pointer)",
        "say(before, after, used())",
    )
    assert said == [[20, 0], [20, 20], [0, 0]]


def test_reaching_into_the_other_card_takes_nothing(container: ProgramContainer) -> None:
    said = container.says(
        *BOTH,
        "theirs = on(second, alloc, 20 * MIB)",
        "can = c_int()",
        f"call('cuDeviceCanAccessPeer', byref(can), {FIRST}, {SECOND})",
        "call('cuCtxEnablePeerAccess', second, 0)",
        "own = alloc(20 * MIB)",
        "call('cuMemcpyDtoD_v2', c_uint64(own), c_uint64(theirs), c_size_t(20 * MIB))",
        "say(can.value, *used())",
    )
    assert said == [1, 20, 20]


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("0,2", [0, 1]),
        ("2,0", [1, 0]),
        ("{2},{0}", [1, 0]),
        ("{2},0", [1, 0]),
        ("2", [1]),
        ("{0}", [0]),
        ("1,2", [None, 1]),  # of which the first is others'
    ],
)
def test_the_order_of_devices_is_the_program_s_own_and_the_account_follows(
    visible: str, cards: list[int | None], container: ProgramContainer
) -> None:
    container.tenant.set_memory(50 * MIB, card=1)
    seed = simulator.load_profile(T4)["uuid_seed"]
    uuids = [f"GPU-{simulator.card_uuid(seed, index)}" for index in range(3)]
    container.env["CUDA_VISIBLE_DEVICES"] = visible.format(*uuids)
    said = container.says(
        "call('cuInit', 0)",
        "count = c_int()",
        "call('cuDeviceGetCount', byref(count))",
        "results, totals = [], []",
        "for device in range(count.value):",
        "    results.append(result_of(context, device))",
        "    if results[-1] == 0:",
        "        totals.append(memory()[1] // MIB)",
        "        alloc((device + 1) * 2 * MIB)",
        "say(results, totals)",
        "os._exit(0)",
    )
    granted = [(device, card) for device, card in enumerate(cards) if card is not None]
    assert said == [
        [UNAVAILABLE if card is None else 0 for card in cards],
        [100 if card == 0 else 50 for _, card in granted],
    ]
    for card in (0, 1):
        taken = sum((device + 1) * 2 * MIB for device, of in granted if of == card)
        assert container.tenant.used(card) == (taken, int(taken > 0))
