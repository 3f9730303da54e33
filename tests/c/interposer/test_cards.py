# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""A container with two of a machine's three cards: each has a quota of its own."""

from __future__ import annotations

import pytest

from gpushare.simulator import device_file

from .client import *
from .conftest import T4, SimulatedContainer
from .container import ProgramContainer
from .inside import inside
from .paths import send

FIRST, OTHERS, SECOND = 0, 1, 2  # the devices: the first card, one of others, the second card
NO_DEVICE = 100
UNAVAILABLE = 46
UUIDS = [
    f"GPU-{device_file.card_uuid(device_file.load_profile(T4)['uuid_seed'], index)}"
    for index in range(3)
]
STEP = 64 * MIB  # of which every allocation takes whole chunks


@pytest.fixture
def cards(simulated_container: SimulatedContainer) -> ProgramContainer:
    """Cards 0 and 2 of three: 100 MiB of each."""
    return simulated_container(3, [FIRST, SECOND])


def on(handle: c_void_p, function: Callable[..., Any], *arguments: object) -> Any:
    """Call it with another context current."""
    before = current()
    call("cuCtxSetCurrent", handle)
    try:
        return function(*arguments)
    finally:
        call("cuCtxSetCurrent", before)


def both() -> tuple[c_void_p, c_void_p]:
    """The contexts of both cards, of which the first is current."""
    call("cuInit", 0)
    first, second = primary(FIRST), primary(SECOND)
    call("cuCtxSetCurrent", first)
    return first, second


def used(container: ProgramContainer) -> list[int]:
    return [container.tenant.used(card)[0] // MIB for card in (0, 1)]


@inside("cards")
def test_a_card_of_others_gives_nothing(cards: ProgramContainer) -> None:
    both()
    theirs = c_void_p()
    # As cudart does, past the filter.
    assert behind.cuDevicePrimaryCtxRetain(byref(theirs), OTHERS) == 0
    refused = [
        result_of(context, OTHERS),
        result_of(create, 2 * MIB, DEVICE, OTHERS),
        result_of(pool_create, OTHERS),
        result_of(send, "cuMemPrefetchAsync", alloc_managed(2 * MIB), 2 * MIB),  # to card 1
        result_of(lambda: pool_alloc(pool_default(OTHERS), 1)),
        *(result_of(on, theirs, function, 2 * MIB) for function in (alloc, alloc_async)),
    ]
    assert refused == [UNAVAILABLE] * 7
    assert used(cards) == [2, 0]


def prefetch(pointer: int) -> None:
    call("cuMemPrefetchAsync", c_uint64(pointer), c_size_t(STEP), SECOND, None)


@inside("cards")
def test_the_other_card_is_charged_and_refuses_and_is_given_back_to(
    cards: ProgramContainer,
) -> None:
    """With the first card's context current: its quota is full."""
    _, second = both()
    kept, pool, stream = alloc(36 * MIB), pool_create(SECOND), on(second, stream_new)
    managed = alloc_managed(STEP)
    ways: list[Callable[[], Any]] = [
        lambda: on(second, alloc, STEP),
        lambda: on(second, alloc_managed, STEP),
        lambda: pool_alloc(pool, STEP),
        lambda: pool_alloc(pool_default(SECOND), STEP),
        lambda: alloc_async(STEP, "", stream),  # from the pool of the stream's device
        lambda: create(STEP, DEVICE, SECOND),
        lambda: prefetch(managed),
    ]
    for way in ways:
        cards.tenant.set_memory(STEP - 1, card=1)
        assert result_of(way) == OUT_OF_MEMORY
        cards.tenant.set_memory(STEP, card=1)
        pointer = way()
        assert used(cards) == [100, 64]
        if way not in ways[-2:]:
            free(pointer)  # from the first card's context
        elif pointer:
            release(pointer)
        else:
            on(second, free, managed)
        on(second, synchronize)
        assert used(cards)[1] == 0
    assert used(cards) == [36, 0]
    on(second, free, kept)
    assert used(cards) == [0, 0]


@pytest.mark.parametrize(
    ("visible", "granted"),
    [
        ("0,2", [0, 1]),
        ("2,0", [1, 0]),
        ("{2},{0}", [1, 0]),
        ("{2},0", [1, 0]),
        ("2", [1]),
        ("{0}", [0]),
        ("1,2", [None, 1]),  # of which the first is others'
        ("{2:.12},{0:.12}", [1, 0]),
        ("{2:.12}", [1]),
        ("{2:.12},GPU-ffffffff,{0}", [1]),  # the list ends at a name of no card
        ("{0:.12},GPU-,{2}", [0]),  # and at one of several
    ],
)
@inside("cards")
def test_the_order_of_devices_is_the_program_s_own_and_the_account_follows(
    visible: str, granted: list[int | None], cards: ProgramContainer
) -> None:
    cards.tenant.set_memory(50 * MIB, card=1)
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.format(*UUIDS)
    call("cuInit", 0)
    count = c_int()
    call("cuDeviceGetCount", byref(count))
    assert count.value == len(granted)
    expected = [0, 0]
    for device, card in enumerate(granted):
        if card is None:
            assert result_of(context, device) == UNAVAILABLE
            continue
        context(device)
        assert memory()[1] == (100, 50)[card] * MIB
        alloc((device + 1) * 2 * MIB)
        expected[card] = (device + 1) * 2
    assert used(cards) == expected


@inside("cards")
def test_a_list_that_begins_with_a_name_of_no_card_gives_no_device(
    cards: ProgramContainer,
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = f"GPU-ffffffff,{UUIDS[0]}"
    assert result_of(call, "cuInit", 0) == NO_DEVICE
    assert used(cards) == [0, 0]


@pytest.fixture
def moved(simulated_container: SimulatedContainer) -> ProgramContainer:
    """It was made with card 0, has the nodes of both cards, and was moved to card 1."""
    container = simulated_container(2, [1])
    container.tenant.set_first_uuid(UUIDS[0])
    return container


@pytest.mark.parametrize(
    ("visible", "found"),
    [("{0}", 0), ("{1}", 0), ("{0:.12}", UNAVAILABLE), ("{0},{1}", UNAVAILABLE)],
)
@inside("moved")
def test_after_a_move_the_name_that_gpushared_wrote_is_the_card_that_it_has_and_no_other_is(
    visible: str, found: int, moved: ProgramContainer
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.format(*UUIDS)
    call("cuInit", 0)
    assert result_of(context, 0) == found
    assert moved.tenant.used()[1] == (found == 0)  # its contexts
