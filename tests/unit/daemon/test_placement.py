# SPDX-License-Identifier: Apache-2.0
"""Placement: which card is taken, and what a refusal says."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from gpushare.daemon.cards.nvml_client import nvlink_link, pcie_link
from gpushare.daemon.operator.resize import check_memory_growth
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import (
    AllocationUse,
    CardCapacity,
    Links,
    MigInstance,
    NonTenantProcess,
)
from gpushare.daemon.placement.request import (
    ImageNeed,
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
)

from .fakes import GIB, MIB, card


def room(
    index: int = 0, *promises: AllocationUse, gib: int = 140, model: str = "H200"
) -> CardCapacity:
    return CardCapacity(card(index, gib, model), promises)


def share(gib: int, cores: int = 0, **more: object) -> PlacementRequest:
    return replace(PlacementRequest(memory_bytes=gib * GIB, cores=cores), **more)  # type: ignore[arg-type]


def indices(placed: tuple[PlacedCard, ...]) -> list[int]:
    return [one.card.index for one in placed]


def refusal(ask: PlacementRequest, *rooms: CardCapacity) -> str:
    with pytest.raises(NoRoom) as caught:
        place_request(ask, rooms)
    return str(caught.value)


def test_the_refusal_has_the_numbers() -> None:
    foreign_bytes = 11 * GIB // 10 + 1
    full = CardCapacity(
        card(0, 140),
        (AllocationUse("train", 4 * GIB), AllocationUse("serve", 8 * GIB)),
        non_tenants=(NonTenantProcess(812, "Xorg", foreign_bytes),),
        non_tenant_bytes=foreign_bytes,
    )
    assert refusal(share(200), full) == (
        "no card has room for 200 GiB: card 0 has 126 of 140 GiB available "
        "(train 4, serve 8, non-tenant 1.1 by pid 812 Xorg); request less or see gpushare ls"
    )


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (share(1, devices=("0",)), [0]),
        (share(1, devices=("GPU-12345678-9",)), [1]),
        (share(1, devices=("GPU-1234",)), [1]),
        (share(1, minors=(5,)), [0]),
        (PlacementRequest(whole=True, count=None), [0, 1]),
        (share(1, devices=("7",)), "card 7 does not exist: this machine has 0 (H200), 1 (H200)"),
        (share(1, minors=(7,)), "/dev/nvidia7 is not a card of this machine"),
        (share(1, count=4), "4 cards are requested, and there are 2 to choose from"),
        (share(1, count=2, devices=("1", "GPU-1234")), "1 and GPU-1234 are the same card"),
    ],
)
def test_cards_are_named_by_index_minor_uuid_and_the_start_of_a_uuid(
    request_: PlacementRequest, found: list[int] | str
) -> None:
    rooms = (
        replace(room(0), card=replace(card(0), minor=5)),
        replace(room(1), card=replace(card(1), uuid="GPU-12345678-9")),
    )
    if isinstance(found, list):
        assert indices(place_request(request_, rooms)) == found
        return
    with pytest.raises(NoSuchCard, match=re.escape(found)):
        place_request(request_, rooms)


def test_every_card_has_its_reason() -> None:
    rooms = (
        room(0, AllocationUse("big", 140 * GIB, 100, whole=True)),
        room(1, AllocationUse("a", 4 * GIB, 90)),
        replace(room(2), health="GPU is lost"),
        room(3, gib=4, model="A100-PCIE-40GB"),
        room(4, *(AllocationUse(f"t{n}", GIB) for n in range(16))),
        room(5, *(AllocationUse(f"t{n}", 12 * GIB) for n in range(12)), gib=144),
    )
    assert refusal(share(8, 30), *rooms) == (
        "no card has room for 8 GiB and 30 % of its compute: card 0 is allocated exclusively to "
        "big; "
        "card 1 has 10 % of its compute left (a 90); card 2 is unhealthy: GPU is lost; "
        "card 3 has 4 of 4 GiB available; card 4 has 16 tenants of at most 16 (max_tenants); "
        "card 5 has 0 B of 144 GiB available (t0 12, t1 12, t2 12, t3 12, t4 12, t5 12, t6 12, "
        "t7 12, 4 more 48); request less or see gpushare ls"
    )


def test_the_last_byte_can_be_had_and_not_one_more() -> None:
    left = replace(
        room(0, AllocationUse("a", 512 * MIB), AllocationUse("b", 2 * GIB + 512 * MIB), gib=10),
        reserve_bytes=2 * GIB,
        non_tenant_bytes=GIB,
    )
    assert place_request(replace(share(1), memory_bytes=4 * GIB), (left,))
    text = refusal(replace(share(1), memory_bytes=4 * GIB + 1), left)
    assert "has 4 of 10 GiB available (a 512 MiB, b 2.5, non-tenant 1 until recently, res" in text


def test_use_above_a_quota_is_unavailable_and_its_own_tenant_s_to_reserve() -> None:
    over = AllocationUse("a", 2 * GIB, key="k", used_bytes=5 * GIB)
    used = room(0, over, AllocationUse("b", 2 * GIB, used_bytes=GIB), gib=10)
    assert (used.allocated_bytes, used.burst_used_bytes, used.available_bytes) == (
        *(4 * GIB, 3 * GIB, 3 * GIB),
    )
    assert "card 0 has 3 of 10 GiB available (a 2 and 3 above it, b 2)" in refusal(share(4), used)
    check_memory_growth(used, "k", "a", 8 * GIB)
    with pytest.raises(NoRoom, match="cannot grow"):
        check_memory_growth(used, "k", "a", 8 * GIB + 1)


def test_a_quota_below_a_context_is_refused_with_the_measured_figure() -> None:
    measured = replace(room(0), context_bytes=524 * MIB)
    assert refusal(replace(share(1), memory_bytes=524 * MIB), measured) == (
        "524 MiB is too small for a CUDA context: card 0 needs 524 MiB for a single CUDA context; "
        "request more"
    )
    assert place_request(replace(share(1), memory_bytes=524 * MIB + 1), (measured,))


def test_a_ratio_is_exact_on_each_card() -> None:
    """ACK's 4 of 15 units, and 1 of 140."""
    t4 = CardCapacity(replace(card(0), memory_bytes=16160 * MIB), ())
    [placed] = place_request(PlacementRequest(memory_percent=Fraction(400, 15)), (t4,))
    assert placed.memory_bytes // MIB == 4309
    [placed] = place_request(PlacementRequest(memory_percent=Fraction(100, 140)), (room(0),))
    assert placed.memory_bytes == GIB
    assert str(PlacementRequest(memory_percent=Fraction(400, 15))) == "26.67 % of its memory"


def test_cores_add_up_to_a_hundred() -> None:
    half = room(0, AllocationUse("a", GIB, 60))
    assert place_request(share(1, 40), (half,))
    assert "has 40 % of its compute left (a 60)" in refusal(share(1, 41), half)


def test_a_card_for_one_process_is_given_only_as_a_whole() -> None:
    only = replace(room(0), compute_mode="Exclusive_Process")
    assert (
        "card 0 is in compute mode Exclusive_Process: one process at a time can use it; run "
        "nvidia-smi -i 0 -c DEFAULT as root"
    ) in refusal(share(1), only)
    assert place_request(PlacementRequest(whole=True), (only,))[0].card == card(0)
    assert place_request(share(1), (only, room(1)))[0].card == card(1)


def test_a_whole_card_is_one_without_tenants() -> None:
    rooms = (room(0, AllocationUse("a", GIB)), room(1))
    assert place_request(PlacementRequest(whole=True), rooms) == (
        PlacedCard(card(1), 140 * GIB, 100, True),
    )
    assert refusal(PlacementRequest(whole=True), rooms[0]) == (
        "no whole card is available: card 0 is shared by a; see gpushare ls"
    )


def test_a_whole_card_is_closed_to_shares() -> None:
    taken = room(0, AllocationUse("big", 140 * GIB, 100, whole=True))
    assert "card 0 is allocated exclusively to big" in refusal(share(1), taken)
    assert (taken.available_bytes, taken.cores_available) == (0, 0)


def test_too_few_of_several_is_refused_with_how_many_fit() -> None:
    text = refusal(share(100, count=2), room(0), room(1, AllocationUse("a", 50 * GIB)))
    assert text.startswith(
        "2 cards with 100 GiB each are requested, and 1 of 2 have room: card 0 fits;"
    )


def divided() -> tuple[CardCapacity, ...]:
    """Return a whole card, one that is divided, and its two instances."""
    one = room(1)
    small = [room(index, gib=18 * (index - 1), model="H200 MIG 1g.18gb") for index in (2, 3)]
    return (
        room(0),
        replace(one, card=replace(one.card, is_divided=True)),
        *(
            replace(each, card=replace(each.card, instance=MigInstance(card(1).uuid, 1, at, at, 0)))
            for at, each in enumerate(small)
        ),
    )


def test_instances_take_shares_and_cards_that_have_them_take_none() -> None:
    rooms = divided()
    assert indices(place_request(share(1), rooms)) == [2]
    assert indices(place_request(share(20), rooms)) == [3]
    assert indices(place_request(share(40), rooms)) == [0]
    assert indices(place_request(share(1, deny=("MIG",)), rooms)) == [0]
    assert indices(place_request(share(1, devices=("1:1",)), rooms)) == [3]
    assert "a program can use only one" in refusal(share(1, count=2), *rooms)
    assert indices(place_request(share(1, devices=("1:gi0:ci0",)), rooms)) == [2]
    assert "card 1 is divided into MIG instances" in refusal(share(1, devices=("1",)), *rooms)
    assert rooms[1].available_bytes == rooms[1].cores_available == rooms[1].schedulable_bytes == 0


def test_a_whole_instance_is_allocated_only_as_such() -> None:
    rooms = divided()
    assert indices(place_request(PlacementRequest(whole=True), rooms)) == [0]
    wanted = PlacementRequest(whole=True, backend="mig")
    assert indices(place_request(wanted, rooms)) == [2]
    named = PlacementRequest(whole=True, devices=(rooms[3].card.uuid,))
    assert indices(place_request(named, rooms)) == [3]
    text = refusal(PlacementRequest(whole=True), *rooms[2:])
    assert "card 2 is a MIG instance, and a whole card is requested" in text
    assert text.endswith("set backend to mig or see gpushare ls")
    assert "card 0 is not a MIG instance; change backend" in refusal(wanted, rooms[0])


def test_a_refusal_names_the_compute_capability_of_each_card() -> None:
    volta, unknown = (
        replace(found, card=replace(found.card, capability=capability))
        for found, capability in ((room(0, model="V100"), (7, 0)), (room(1), None))
    )
    key = {"compute-capability": "env GPUSHARE_COMPUTE_CAPABILITY"}
    request = share(1, compute_capability=(">7.0", "<=9.0"), sources=key)
    assert refusal(request, volta, unknown) == (
        "no card has room for 1 GiB: card 0 (V100) has compute capability 7.0, and >7.0,<=9.0 is "
        "requested; card 1 (H200) has compute capability unknown, and >7.0,<=9.0 is requested; "
        "change compute-capability (env GPUSHARE_COMPUTE_CAPABILITY) or see gpushare ls"
    )
    for comparisons in (("=7.0",), ("<=7.0",), (">=7.0", "<7.5")):
        placed = place_request(share(1, compute_capability=comparisons), (unknown, volta))
        assert indices(placed) == [0]


def test_a_refusal_names_what_the_image_needs_of_a_card() -> None:
    need = ImageNeed("CUDA 13 builds nothing for V100", "use CUDA 12", is_refused=True)
    request = share(1, image_needs={card(0).uuid: need})
    assert indices(place_request(request, (room(0), room(1)))) == [1]
    assert refusal(request, room(0), room(1, gib=0)) == (
        "no card has room for 1 GiB: card 0 (H200) does not fit the image: CUDA 13 builds nothing "
        "for V100; card 1 has 0 of 0 B available; use CUDA 12 or see gpushare ls"
    )


def test_a_single_whole_card_is_the_odd_one() -> None:
    rooms = (room(0), room(1), room(2, AllocationUse("a", GIB)), room(3))
    pairs = {"01": nvlink_link(12), "23": nvlink_link(12), "02": pcie_link(40), "13": pcie_link(40)}
    links = Links(
        {frozenset(card(int(index)).uuid for index in pair): link for pair, link in pairs.items()}
    )
    assert indices(place_request(PlacementRequest(whole=True), rooms, links)) == [3]
    assert indices(place_request(PlacementRequest(whole=True, count=2), rooms, links)) == [0, 1]
    taken = (room(0), room(1), room(2, AllocationUse("a", 140 * GIB, 100, whole=True)), room(3))
    assert indices(place_request(share(1), taken, links)) == [3]
    assert indices(place_request(share(1, count=2, strategy="topology"), rooms, links)) == [2, 3]
