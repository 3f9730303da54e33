# SPDX-License-Identifier: Apache-2.0
"""Placement: which card is taken, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.cards.capacity import Foreign, Promise, Room
from gpushare.daemon.cards.topology import Links, nvlink, pcie
from gpushare.daemon.placement.choose import Ask, NoRoom, NoSuchCard, Placed, grows, place

from .fakes import GIB, MIB, card

MOST = 16


def room(index: int = 0, *promises: Promise, gib: int = 140, model: str = "H200") -> Room:
    return Room(card(index, gib, model), promises)


def share(gib: int, cores: int = 0, **more: object) -> Ask:
    return replace(Ask(memory_bytes=gib * GIB, cores=cores), **more)  # type: ignore[arg-type]


def indices(placed: tuple[Placed, ...]) -> list[int]:
    return [one.card.index for one in placed]


def refusal(ask: Ask, *rooms: Room) -> str:
    with pytest.raises(NoRoom) as caught:
        place(ask, rooms)
    return str(caught.value)


def test_binpack_takes_the_fullest_card_that_fits() -> None:
    rooms = (room(0), room(1, Promise("a", 100 * GIB)), room(2, Promise("b", 130 * GIB)))
    assert indices(place(share(20), rooms)) == [1]


def test_spread_takes_the_emptiest() -> None:
    rooms = (room(0, Promise("a", GIB)), room(1), room(2, Promise("b", 2 * GIB)))
    assert indices(place(share(20, strategy="spread"), rooms)) == [1]


def test_of_equal_cards_the_first_is_taken() -> None:
    assert indices(place(share(1), (room(1), room(0)))) == [0]


def test_the_refusal_has_the_numbers() -> None:
    foreign_bytes = 11 * GIB // 10 + 1
    full = Room(
        card(0, 140),
        (Promise("train", 4 * GIB), Promise("serve", 8 * GIB)),
        foreign=(Foreign(812, "Xorg", foreign_bytes),),
        foreign_bytes=foreign_bytes,
    )
    assert refusal(share(200), full) == (
        "no card has room for 200 GiB: card 0 has 126 of 140 GiB free "
        "(train 4, serve 8, foreign 1.1 by pid 812 Xorg); ask for less or see gpushare ls"
    )


def test_every_card_has_its_reason() -> None:
    rooms = (
        room(0, Promise("big", 140 * GIB, 100, whole=True)),
        room(1, Promise("a", 4 * GIB, 90)),
        replace(room(2), health="GPU is lost"),
        room(3, gib=4),
        room(4, *(Promise(f"t{n}", GIB) for n in range(16))),
    )
    assert refusal(share(8, 30), *rooms) == (
        "no card has room for 8 GiB and 30 % of its compute: card 0 belongs to big alone; "
        "card 1 has 10 % of its compute left (a 90); card 2 is not well: GPU is lost; "
        "card 3 has 4 of 4 GiB free; card 4 has 16 tenants of at most 16 (max_shares); "
        "ask for less or see gpushare ls"
    )


def test_a_long_list_of_tenants_is_summed_up() -> None:
    crowded = room(0, *(Promise(f"t{n}", 10 * GIB) for n in range(12)))
    assert "t7 10, 4 more 40)" in refusal(share(80), crowded)


def test_small_quotas_are_shown_with_their_unit() -> None:
    assert "(a 512 MiB)" in refusal(share(200), room(0, Promise("a", 512 * MIB)))


def test_the_reserve_is_never_promised() -> None:
    kept = replace(room(0, gib=10), reserve_bytes=2 * GIB)
    assert indices(place(share(8), (kept,))) == [0]
    assert "has 8 of 10 GiB free (reserve 2)" in refusal(share(9), kept)


def test_foreign_use_is_not_free() -> None:
    used = replace(room(0, gib=10), foreign_bytes=3 * GIB)
    assert "has 7 of 10 GiB free (foreign 3 until lately)" in refusal(share(8), used)


def test_the_last_byte_can_be_had_and_not_one_more() -> None:
    left = room(0, Promise("a", 6 * GIB), gib=10)
    assert place(replace(share(1), memory_bytes=4 * GIB), (left,))
    assert refusal(replace(share(1), memory_bytes=4 * GIB + 1), left)


def test_a_quota_below_a_context_is_refused_with_the_measured_figure() -> None:
    measured = replace(room(0), context_bytes=524 * MIB)
    assert refusal(replace(share(1), memory_bytes=524 * MIB), measured) == (
        "524 MiB holds not even one CUDA context: card 0 needs 524 MiB for one CUDA context alone; "
        "ask for more"
    )
    assert place(replace(share(1), memory_bytes=524 * MIB + 1), (measured,))


def test_memory_percent_is_of_each_card() -> None:
    ask = Ask(memory_percent=10, count=2)
    placed = place(ask, (room(0, gib=100), room(1, gib=50)))
    assert [one.memory_bytes for one in placed] == [10 * GIB, 5 * GIB]


def test_cores_add_up_to_a_hundred() -> None:
    half = room(0, Promise("a", GIB, 60))
    assert place(share(1, 40), (half,))
    assert "has 40 % of its compute left (a 60)" in refusal(share(1, 41), half)


def test_who_asks_for_no_cores_fits_on_a_card_whose_cores_are_gone() -> None:
    assert place(share(1), (room(0, Promise("a", GIB, 100)),))


def test_a_seventeenth_tenant_is_refused() -> None:
    sixteen = room(0, *(Promise(f"t{n}", GIB) for n in range(16)))
    assert "16 tenants of at most 16" in refusal(share(1), sixteen)
    assert place(share(1), (replace(sixteen, max_shares=17),))


def test_a_whole_card_is_one_without_tenants() -> None:
    rooms = (room(0, Promise("a", GIB)), room(1))
    assert place(Ask(whole=True), rooms) == (Placed(card(1), 140 * GIB, 100, True),)
    assert refusal(Ask(whole=True), rooms[0]) == (
        "no card is free for itself: card 0 is shared by a; see gpushare ls"
    )


def test_a_whole_card_is_closed_to_shares() -> None:
    taken = room(0, Promise("big", 140 * GIB, 100, whole=True))
    assert "card 0 belongs to big alone" in refusal(share(1), taken)
    assert (taken.free_bytes, taken.cores_free) == (0, 0)


def test_several_cards_are_different_cards() -> None:
    assert indices(place(share(1, count=3), (room(0), room(1), room(2)))) == [0, 1, 2]


def test_every_card_may_be_asked_for() -> None:
    assert indices(place(Ask(whole=True, count=None), (room(0), room(1)))) == [0, 1]


def test_too_few_of_several_is_refused_with_how_many_fit() -> None:
    text = refusal(share(100, count=2), room(0), room(1, Promise("a", 50 * GIB)))
    assert text.startswith(
        "2 cards with 100 GiB each are asked for, and 1 of 2 have room: card 0 fits;"
    )


def test_cards_are_named_by_index_uuid_and_the_start_of_a_uuid() -> None:
    rooms = (room(0), replace(room(1), card=replace(card(1), uuid="GPU-12345678-9")))
    for name, index in (("0", 0), ("1", 1), ("GPU-12345678-9", 1), ("GPU-1234", 1)):
        assert indices(place(share(1, devices=(name,)), rooms)) == [index]


def test_minors_name_cards_too() -> None:
    rooms = (replace(room(0), card=replace(card(0), minor=5)), room(1))
    assert indices(place(share(1, minors=(5,)), rooms)) == [0]
    with pytest.raises(NoSuchCard, match="/dev/nvidia7 is no card here"):
        place(share(1, minors=(7,)), rooms)


def test_a_card_that_does_not_exist_is_named() -> None:
    with pytest.raises(NoSuchCard) as caught:
        place(share(1, devices=("7",)), (room(0),))
    assert str(caught.value) == (
        "card 7 does not exist: this machine has card 0 (H200); see gpushare ls"
    )


def test_more_cards_than_there_are_is_said_as_such() -> None:
    with pytest.raises(NoSuchCard, match="4 cards are asked for, and there is 1 to choose from"):
        place(share(1, count=4), (room(0),))


def test_a_machine_without_cards_says_so() -> None:
    with pytest.raises(NoRoom, match="this machine has no card"):
        place(share(1), ())


def test_allow_and_deny_go_by_model_and_uuid() -> None:
    rooms = (room(0, model="H200"), room(1, model="A100-SXM4-40GB"))
    assert indices(place(share(1, allow=("a100",)), rooms)) == [1]
    assert indices(place(share(1, deny=(card(0).uuid,)), rooms)) == [1]
    text = refusal(share(1, allow=("T4",)), *rooms)
    assert "card 0 (H200) is not in allow; card 1 (A100-SXM4-40GB) is not in allow" in text


def test_what_is_denied_is_denied_though_it_is_allowed() -> None:
    rooms = (room(0, model="H200"), room(1, model="H200"))
    assert indices(place(share(1, allow=("H200",), deny=(card(0).uuid,)), rooms)) == [1]
    text = refusal(share(1, allow=("H200",), deny=("h200",)), *rooms)
    assert text.endswith(
        "card 0 (H200) is in deny; card 1 (H200) is in deny; change deny or see gpushare ls"
    )


def test_a_single_whole_card_is_the_odd_one() -> None:
    rooms = (room(0), room(1), room(2, Promise("a", GIB)), room(3))
    pairs = {"01": nvlink(12), "23": nvlink(12), "02": pcie(40), "13": pcie(40)}
    links = Links(
        {frozenset(card(int(index)).uuid for index in pair): link for pair, link in pairs.items()}
    )
    assert indices(place(Ask(whole=True), rooms, links)) == [3]
    assert indices(place(Ask(whole=True, count=2), rooms, links)) == [0, 1]
    taken = (room(0), room(1), room(2, Promise("a", 140 * GIB, 100, whole=True)), room(3))
    assert indices(place(share(1), taken, links)) == [3]
    assert indices(place(share(1, count=2, strategy="topology"), rooms, links)) == [2, 3]


def test_growing_needs_room_for_the_difference_only() -> None:
    full = room(0, Promise("a", 6 * GIB, key="k"), gib=10)
    grows(full, "k", "a", 10 * GIB)
    grows(full, "k", "a", 5 * GIB)
    with pytest.raises(NoRoom, match=r"card 0 has 4 of 10 GiB free \(a 6\)"):
        grows(full, "k", "a", 10 * GIB + 1)


def test_what_is_used_above_a_promise_is_taken_and_named() -> None:
    over = Promise("a", 2 * GIB, key="k", used_bytes=5 * GIB)
    used = room(0, over, Promise("b", 2 * GIB, used_bytes=GIB), gib=10)
    assert (used.promised_bytes, used.borrowed_bytes, used.free_bytes) == (
        4 * GIB,
        3 * GIB,
        3 * GIB,
    )
    text = refusal(share(4), used)
    assert "card 0 has 3 of 10 GiB free (a 2 and 3 above it, b 2)" in text


def test_a_tenant_may_be_promised_what_it_uses_above_its_promise() -> None:
    used = room(0, Promise("a", 2 * GIB, key="k", used_bytes=5 * GIB), gib=10)
    grows(used, "k", "a", 10 * GIB)
    with pytest.raises(NoRoom, match="no room to grow by"):
        grows(used, "k", "a", 10 * GIB + 1)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    whole = draw(st.booleans())
    return Ask(
        whole=whole,
        count=draw(st.one_of(st.none(), st.integers(1, 4))),
        memory_bytes=None if whole else draw(st.integers(1, 160 * GIB)),
        cores=0 if whole else draw(st.integers(0, 100)),
        strategy=draw(st.sampled_from(("", "binpack", "spread", "topology"))),
    )


@given(st.lists(asks(), max_size=30), st.integers(1, 4), st.integers(0, 20 * GIB))
def test_whatever_is_asked_nothing_is_promised_twice(
    requests: list[Ask], cards: int, foreign_bytes: int
) -> None:
    rooms = [replace(room(n), foreign_bytes=foreign_bytes) for n in range(cards)]
    for number, ask in enumerate(requests):
        try:
            placed = place(ask, rooms)
        except (NoRoom, NoSuchCard):
            continue
        assert len({one.card.uuid for one in placed}) == len(placed)
        assert len(placed) == (cards if ask.count is None else ask.count)
        for one in placed:
            before = rooms[one.card.index]
            promise = Promise(f"t{number}", one.memory_bytes, one.cores, one.whole)
            rooms[one.card.index] = replace(before, promises=(*before.promises, promise))
    for after in rooms:
        wholes = [promise for promise in after.promises if promise.whole]
        assert len(after.promises) <= MOST
        assert sum(promise.cores for promise in after.promises) <= 100
        if wholes:
            assert after.promises == (wholes[0],)
        else:
            assert after.promised_bytes + foreign_bytes <= after.card.memory_bytes


@given(asks(), st.lists(st.integers(0, 140), min_size=1, max_size=4))
def test_what_is_refused_really_does_not_fit(ask: Ask, taken: list[int]) -> None:
    rooms = [
        room(n, Promise("a", gib * GIB, 50)) if gib else room(n) for n, gib in enumerate(taken)
    ]
    try:
        place(ask, rooms)
    except NoSuchCard:
        assert ask.count is not None
        assert ask.count > len(rooms)
    except NoRoom:
        fitting = [
            one
            for one in rooms
            if (not one.promises if ask.whole else one.free_bytes >= ask.bytes_of(one.card))
            and one.cores_free >= ask.cores
        ]
        assert len(fitting) < (len(rooms) if ask.count is None else ask.count)


def test_a_card_that_is_named_twice_is_refused() -> None:
    first = room(0)
    with pytest.raises(NoSuchCard, match=f"0 and {first.card.uuid} are the same card"):
        place(share(1, count=2, devices=("0", first.card.uuid)), (first, room(1)))
