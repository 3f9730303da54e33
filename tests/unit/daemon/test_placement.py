# SPDX-License-Identifier: Apache-2.0
"""Placement: which card is taken, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.cards.validation import nvlink_link, pcie_link
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


def test_binpack_takes_the_fullest_card_that_fits() -> None:
    rooms = (
        room(0),
        room(1, AllocationUse("a", 100 * GIB)),
        room(2, AllocationUse("b", 130 * GIB)),
    )
    assert indices(place_request(share(20), rooms)) == [1]


def test_spread_takes_the_emptiest() -> None:
    rooms = (room(0, AllocationUse("a", GIB)), room(1), room(2, AllocationUse("b", 2 * GIB)))
    assert indices(place_request(share(20, strategy="spread"), rooms)) == [1]


def test_of_equal_cards_the_first_is_taken() -> None:
    assert indices(place_request(share(1), (room(1), room(0)))) == [0]


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


def test_every_card_has_its_reason() -> None:
    rooms = (
        room(0, AllocationUse("big", 140 * GIB, 100, whole=True)),
        room(1, AllocationUse("a", 4 * GIB, 90)),
        replace(room(2), health="GPU is lost"),
        room(3, gib=4),
        room(4, *(AllocationUse(f"t{n}", GIB) for n in range(16))),
    )
    assert refusal(share(8, 30), *rooms) == (
        "no card has room for 8 GiB and 30 % of its compute: card 0 is allocated exclusively to "
        "big; "
        "card 1 has 10 % of its compute left (a 90); card 2 is unhealthy: GPU is lost; "
        "card 3 has 4 of 4 GiB available; card 4 has 16 tenants of at most 16 (max_tenants); "
        "request less or see gpushare ls"
    )


def test_a_long_list_of_tenants_is_summed_up() -> None:
    crowded = room(0, *(AllocationUse(f"t{n}", 10 * GIB) for n in range(12)))
    assert "t7 10, 4 more 40)" in refusal(share(80), crowded)


def test_small_quotas_are_shown_with_their_unit() -> None:
    assert "(a 512 MiB)" in refusal(share(200), room(0, AllocationUse("a", 512 * MIB)))


def test_the_system_reserve_is_never_allocated() -> None:
    kept = replace(room(0, gib=10), reserve_bytes=2 * GIB)
    assert indices(place_request(share(8), (kept,))) == [0]
    assert "has 8 of 10 GiB available (reserve 2)" in refusal(share(9), kept)


def test_non_tenant_use_is_not_available() -> None:
    used = replace(room(0, gib=10), non_tenant_bytes=3 * GIB)
    assert "has 7 of 10 GiB available (non-tenant 3 until recently)" in refusal(share(8), used)


def test_the_last_byte_can_be_had_and_not_one_more() -> None:
    left = room(0, AllocationUse("a", 6 * GIB), gib=10)
    assert place_request(replace(share(1), memory_bytes=4 * GIB), (left,))
    assert refusal(replace(share(1), memory_bytes=4 * GIB + 1), left)


def test_a_quota_below_a_context_is_refused_with_the_measured_figure() -> None:
    measured = replace(room(0), context_bytes=524 * MIB)
    assert refusal(replace(share(1), memory_bytes=524 * MIB), measured) == (
        "524 MiB is too small for a CUDA context: card 0 needs 524 MiB for a single CUDA context; "
        "request more"
    )
    assert place_request(replace(share(1), memory_bytes=524 * MIB + 1), (measured,))


def test_memory_percent_is_of_each_card() -> None:
    ask = PlacementRequest(memory_percent=10, count=2)
    placed = place_request(ask, (room(0, gib=100), room(1, gib=50)))
    assert [one.memory_bytes for one in placed] == [10 * GIB, 5 * GIB]


def test_a_ratio_is_exact_on_each_card() -> None:
    """ACK's 4 of 15 units, and 1 of 140."""
    t4 = CardCapacity(replace(card(0), memory_bytes=16160 * MIB), ())
    [placed] = place_request(PlacementRequest(memory_percent=Fraction(400, 15)), (t4,))
    assert placed.memory_bytes // MIB == 4309
    [placed] = place_request(PlacementRequest(memory_percent=Fraction(100, 140)), (room(0),))
    assert placed.memory_bytes == GIB
    assert str(PlacementRequest(memory_percent=Fraction(400, 15))) == "26.67 % of its memory"


@given(parts=st.integers(1, 200), memory_bytes=st.integers(GIB, 200 * GIB))
def test_equal_parts_fill_a_card_and_never_more(parts: int, memory_bytes: int) -> None:
    whole = replace(card(0), memory_bytes=memory_bytes)
    part = PlacementRequest(memory_percent=Fraction(100, parts)).bytes_of(whole)
    assert memory_bytes - parts < part * parts <= memory_bytes


def test_cores_add_up_to_a_hundred() -> None:
    half = room(0, AllocationUse("a", GIB, 60))
    assert place_request(share(1, 40), (half,))
    assert "has 40 % of its compute left (a 60)" in refusal(share(1, 41), half)


def test_a_request_without_cores_fits_on_a_card_without_available_cores() -> None:
    assert place_request(share(1), (room(0, AllocationUse("a", GIB, 100)),))


def test_a_seventeenth_tenant_is_refused() -> None:
    sixteen = room(0, *(AllocationUse(f"t{n}", GIB) for n in range(16)))
    assert "16 tenants of at most 16" in refusal(share(1), sixteen)
    assert place_request(share(1), (replace(sixteen, max_tenants=17),))


def test_a_whole_card_is_one_without_tenants() -> None:
    rooms = (room(0, AllocationUse("a", GIB)), room(1))
    assert place_request(PlacementRequest(whole=True), rooms) == (
        PlacedCard(card(1), 140 * GIB, 100, True),
    )
    assert refusal(PlacementRequest(whole=True), rooms[0]) == (
        "no whole card is available: card 0 is shared by a; see gpushare ls"
    )


def test_a_card_for_one_process_is_given_only_as_a_whole() -> None:
    only = replace(room(0), compute_mode="Exclusive_Process")
    assert (
        "card 0 is in compute mode Exclusive_Process: one process at a time can use it; run "
        "nvidia-smi -i 0 -c DEFAULT as root"
    ) in refusal(share(1), only)
    assert place_request(PlacementRequest(whole=True), (only,))[0].card == card(0)
    assert place_request(share(1), (only, room(1)))[0].card == card(1)


def test_a_whole_card_is_closed_to_shares() -> None:
    taken = room(0, AllocationUse("big", 140 * GIB, 100, whole=True))
    assert "card 0 is allocated exclusively to big" in refusal(share(1), taken)
    assert (taken.available_bytes, taken.cores_available) == (0, 0)


def test_several_cards_are_different_cards() -> None:
    assert indices(place_request(share(1, count=3), (room(0), room(1), room(2)))) == [0, 1, 2]


def test_every_card_can_be_requested() -> None:
    assert indices(place_request(PlacementRequest(whole=True, count=None), (room(0), room(1)))) == [
        0,
        1,
    ]


def test_too_few_of_several_is_refused_with_how_many_fit() -> None:
    text = refusal(share(100, count=2), room(0), room(1, AllocationUse("a", 50 * GIB)))
    assert text.startswith(
        "2 cards with 100 GiB each are requested, and 1 of 2 have room: card 0 fits;"
    )


def test_cards_are_named_by_index_uuid_and_the_start_of_a_uuid() -> None:
    rooms = (room(0), replace(room(1), card=replace(card(1), uuid="GPU-12345678-9")))
    for name, index in (("0", 0), ("1", 1), ("GPU-12345678-9", 1), ("GPU-1234", 1)):
        assert indices(place_request(share(1, devices=(name,)), rooms)) == [index]


def test_minors_name_cards_too() -> None:
    rooms = (replace(room(0), card=replace(card(0), minor=5)), room(1))
    assert indices(place_request(share(1, minors=(5,)), rooms)) == [0]
    with pytest.raises(NoSuchCard, match="/dev/nvidia7 is not a card of this machine"):
        place_request(share(1, minors=(7,)), rooms)


def test_a_card_that_does_not_exist_is_named() -> None:
    with pytest.raises(NoSuchCard) as caught:
        place_request(share(1, devices=("7",)), (room(0),))
    assert str(caught.value) == (
        "card 7 does not exist: this machine has card 0 (H200); see gpushare ls"
    )


def test_a_request_for_more_cards_than_exist_is_refused_as_such() -> None:
    with pytest.raises(NoSuchCard, match="4 cards are requested, and there is 1 to choose from"):
        place_request(share(1, count=4), (room(0),))


def test_a_machine_without_cards_says_so() -> None:
    with pytest.raises(NoRoom, match="this machine has no card"):
        place_request(share(1), ())


def test_allow_and_deny_go_by_model_and_uuid() -> None:
    rooms = (room(0, model="H200"), room(1, model="A100-SXM4-40GB"))
    assert indices(place_request(share(1, allow=("a100",)), rooms)) == [1]
    assert indices(place_request(share(1, deny=(card(0).uuid,)), rooms)) == [1]
    text = refusal(share(1, allow=("T4",)), *rooms)
    assert "card 0 (H200) is not in allow; card 1 (A100-SXM4-40GB) is not in allow" in text


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


def test_a_program_has_one_instance() -> None:
    text = refusal(share(1, count=2), *divided())
    assert "card 2 is a MIG instance, and a program can use only one" in text


def test_the_node_of_an_instance_s_card_is_no_instance() -> None:
    with pytest.raises(NoRoom, match="card 1 is divided into MIG instances"):
        place_request(share(1, minors=(1,)), divided())


def capable(index: int, capability: tuple[int, int] | None) -> CardCapacity:
    one = room(index, model="V100" if capability == (7, 0) else "H200")
    return replace(one, card=replace(one.card, capability=capability))


def test_cards_are_chosen_by_compute_capability() -> None:
    rooms = (capable(0, (7, 0)), capable(1, (8, 9)), capable(2, (10, 0)), capable(3, None))
    for comparisons, index in (
        ((">=8.0",), 1),
        ((">8.9",), 2),
        (("<=7.0",), 0),
        (("=10.0",), 2),
        ((">=7.0", "<8.9"), 0),
        ((">=7.5", "<10.0"), 1),
        ((), 0),
    ):
        request = share(1, compute_capability=comparisons)
        assert indices(place_request(request, rooms)) == [index], comparisons


def test_a_refusal_names_the_compute_capability_of_each_card() -> None:
    key = {"compute-capability": "env GPUSHARE_COMPUTE_CAPABILITY"}
    request = share(1, compute_capability=(">=8.0", "<9.0"), sources=key)
    assert refusal(request, capable(0, (7, 0)), capable(1, None)) == (
        "no card has room for 1 GiB: card 0 (V100) has compute capability 7.0, and >=8.0,<9.0 is "
        "requested; card 1 (H200) has compute capability unknown, and >=8.0,<9.0 is requested; "
        "change compute-capability (env GPUSHARE_COMPUTE_CAPABILITY) or see gpushare ls"
    )
    full = replace(capable(0, (7, 0)), health="GPU is lost")
    assert "change compute-capability" not in refusal(request, full)


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


def test_growing_needs_room_for_the_difference_only() -> None:
    full = room(0, AllocationUse("a", 6 * GIB, key="k"), gib=10)
    check_memory_growth(full, "k", "a", 10 * GIB)
    check_memory_growth(full, "k", "a", 5 * GIB)
    with pytest.raises(NoRoom, match=r"card 0 has 4 of 10 GiB available \(a 6\)"):
        check_memory_growth(full, "k", "a", 10 * GIB + 1)


def test_use_above_a_quota_is_unavailable_and_named_in_the_refusal() -> None:
    over = AllocationUse("a", 2 * GIB, key="k", used_bytes=5 * GIB)
    used = room(0, over, AllocationUse("b", 2 * GIB, used_bytes=GIB), gib=10)
    assert (used.allocated_bytes, used.burst_used_bytes, used.available_bytes) == (
        4 * GIB,
        3 * GIB,
        3 * GIB,
    )
    text = refusal(share(4), used)
    assert "card 0 has 3 of 10 GiB available (a 2 and 3 above it, b 2)" in text


def test_a_tenant_may_reserve_its_use_above_its_quota() -> None:
    used = room(0, AllocationUse("a", 2 * GIB, key="k", used_bytes=5 * GIB), gib=10)
    check_memory_growth(used, "k", "a", 10 * GIB)
    with pytest.raises(NoRoom, match="cannot grow"):
        check_memory_growth(used, "k", "a", 10 * GIB + 1)


def test_a_card_that_is_named_twice_is_refused() -> None:
    first = room(0)
    with pytest.raises(NoSuchCard, match=f"0 and {first.card.uuid} are the same card"):
        place_request(share(1, count=2, devices=("0", first.card.uuid)), (first, room(1)))
