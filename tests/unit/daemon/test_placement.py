# SPDX-License-Identifier: Apache-2.0
"""Placement: which card is taken, what a refusal says, and cordoned cards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gpushare import config
from gpushare.daemon.operator.reload import cordon_card, set_card_policy, uncordon_card
from gpushare.daemon.operator.resize import check_memory_growth
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import (
    AllocationUse,
    CardCapacity,
    Link,
    Links,
    MigInstance,
)
from gpushare.daemon.placement.request import (
    Bounds,
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    TenantCardUsage,
)
from gpushare.quota.request_policy import MaxPerCard, MaxPerNode

from . import fakes
from .fakes import GIB, MIB, FakeDaemon, FakeDriver, card
from .operations import entry_of, opened


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


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (share(1, devices=("0",)), [0]),
        (share(1, devices=("GPU-5a",)), [1]),
        (share(1, devices=("gpu-5A00",)), [1]),
        (share(1, devices=("0000:3b:00.0",)), [1]),
        (share(1, devices=("GPU-",)), "card GPU- does not exist"),
        (share(1, devices=("0001:3b:00.0",)), "card 0001:3b:00.0 does not exist"),
        (
            share(1, devices=("GPU-5",)),
            "GPU-5 is the beginning of the UUIDs of cards 1 and 2; write more of it",
        ),
        (share(1, minors=(5,)), [0]),
        (PlacementRequest(whole=True, count=None), [0, 1, 2]),
        (
            share(1, devices=("7",)),
            "card 7 does not exist: this machine has 0 (H200), 1 (H200), 2 (H200)",
        ),
        (share(1, count=4), "4 cards are requested, and there are 3 to choose from"),
    ],
)
def test_cards_are_named_by_index_minor_pci_address_and_a_beginning_of_a_uuid(
    request_: PlacementRequest, found: list[int] | str
) -> None:
    rooms = (
        replace(room(0), card=replace(card(0), minor=5)),
        replace(room(1), card=replace(card(1), uuid="GPU-5a00", bus_id="00000000:3B:00.0")),
        replace(room(2), card=replace(card(2), uuid="GPU-5b00")),
    )
    if isinstance(found, list):
        assert indices(place_request(request_, rooms)) == found
        return
    with pytest.raises(NoSuchCard, match=re.escape(found)):
        place_request(request_, rooms)


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
    assert used.allocated_bytes == 4 * GIB
    assert used.burst_used_bytes == used.available_bytes == 3 * GIB
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


def test_a_whole_card_is_closed_to_shares() -> None:
    taken = room(0, AllocationUse("big", 140 * GIB, 100, whole=True))
    assert "card 0 is allocated exclusively to big" in refusal(share(1), taken)
    assert (taken.available_bytes, taken.cores_available) == (0, 0)


def test_a_card_for_one_process_is_given_only_as_a_whole() -> None:
    only = replace(room(0), compute_mode="Exclusive_Process")
    assert (
        "card 0 is in compute mode Exclusive_Process: one process at a time can use it; run "
        "nvidia-smi -i 0 -c DEFAULT as root"
    ) in refusal(share(1), only)
    assert place_request(PlacementRequest(whole=True), (only,))[0].card == card(0)
    assert place_request(share(1), (only, room(1)))[0].card == card(1)


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
    assert indices(place_request(PlacementRequest(whole=True), rooms)) == [0]
    wanted = PlacementRequest(whole=True, backend="mig")
    assert indices(place_request(wanted, rooms)) == [2]
    assert "card 0 is not a MIG instance; change backend" in refusal(wanted, rooms[0])
    assert indices(place_request(share(1, devices=("1:gi0:ci0",)), rooms)) == [2]
    assert "card 1 is divided into MIG instances" in refusal(share(1, devices=("1",)), *rooms)
    assert rooms[1].available_bytes == rooms[1].cores_available == rooms[1].schedulable_bytes == 0


#: Five cards of 40 GiB with 0, 10, 20, 30 and 0 allocated; 0 and 1, and 2 and 4 are close.
FIVE = tuple(
    replace(
        room(index, *(AllocationUse("t", gib * GIB),) * bool(gib), gib=40, model=model),
        card=replace(card(index, 40, model), capability=(8 + (model == "H200"), 0)),
    )
    for index, (gib, model) in enumerate(
        ((0, "H200"), (10, "H200"), (20, "A100"), (30, "A100"), (0, "A100"))
    )
)
CLOSE = Links(
    {frozenset((card(a).uuid, card(b).uuid)): Link("NV4", 6) for a, b in ((0, 1), (2, 4))}
    | {frozenset((card(0).uuid, card(4).uuid)): Link("PXB", 30)}
)


def bounded(gib: int, **bounds: object) -> PlacementRequest:
    """Return a request that has 8 GiB of card 4 already."""
    mine = (TenantCardUsage("k", FIVE[4].card, 8 * GIB, 20),)
    return share(gib, bounds=replace(Bounds(parts=mine), **bounds))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "taken"),
    [
        (share(4), [3]),
        (share(20), [2]),
        (share(4, strategy="spread"), [0]),
        (share(4, count=2), [2, 4]),  # close as 0 and 1 are, and fuller
        (share(30, count=2), [0, 1]),
        (share(4, count=2, strategy="binpack"), [2, 3]),
        (share(4, count=2, strategy="spread"), [0, 4]),
        (share(4, count=3, strategy="topology"), [0, 2, 4]),
        (PlacementRequest(whole=True), [0]),
        (PlacementRequest(whole=True, count=2), [0, 4]),
        (share(4, allow=("h200",)), [1]),
        (share(4, deny=("A100", card(1).uuid)), [0]),
        (share(4, compute_capability=(">=9.0",)), [1]),
        (bounded(4, max_per_node=MaxPerNode(cards=1)), [4]),
        (bounded(4, max_per_card=MaxPerCard(cores=10), max_per_node=MaxPerNode(20 * GIB)), [3]),
        (bounded(9, max_per_node=MaxPerNode(16 * GIB)), None),
    ],
)
def test_the_set_that_is_taken_is_the_best_by_its_strategy(
    ask: PlacementRequest, taken: list[int] | None
) -> None:
    """Also where bounds forbid the best one; it is refused only if no set of cards would do."""
    if taken is None:
        with pytest.raises(NoRoom):
            place_request(ask, FIVE, CLOSE)
    else:
        assert indices(place_request(ask, FIVE, CLOSE)) == taken


CARDS = tuple(fakes.card(index) for index in range(2))


@contextmanager
def cordon_node(folder: Path, text: str = "", count: int = 2) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(count)))
    with fakes.node(folder, driver, config.parse(text, Path("gpushare.yaml"))) as made:
        yield made


def test_it_outlives_the_daemon_beside_the_card_s_policy(tmp_path: Path) -> None:
    with cordon_node(tmp_path) as made:
        set_card_policy(CARDS[0].uuid, "best-effort", made)
        cordon_card(CARDS[0], "", made.node, made.ledger)
        cordon_card(CARDS[1], "broken", made.node, made.ledger)
        uncordon_card(CARDS[1], made.node, made.ledger)
    with cordon_node(tmp_path) as after:
        assert [room.cordoned for room in after.accounts.capacities()] == ["", None]
        set_card_policy(CARDS[0].uuid, "", after)
        assert [room.cordoned for room in after.accounts.capacities()] == ["", None]
        uncordon_card(CARDS[0], after.node, after.ledger)
    assert json.loads((tmp_path / "state/cards.json").read_text()) == {}


MODES = """\
max_tenants: 3
cards:
  H200: {allowed_mode: shared, max_tenants: 2}
  "1": {allowed_mode: exclusive}
  GPU-2000:
    allowed_mode: any
    max_tenants: 1
"""


def test_a_card_has_its_own_mode_and_number_of_shares(tmp_path: Path) -> None:
    with cordon_node(tmp_path, MODES, count=3) as made:
        for asked, told in (
            ({"memory": "4GiB", "devices": "1"}, "card 1 is allocated only as a whole (cards.1.a"),
            ({"count": "1", "devices": "0"}, "card 0 is for shares only (cards.H200.allowed_mode"),
        ):
            with pytest.raises(NoRoom, match=re.escape(told)):
                opened(made, **asked)
        assert entry_of(made, opened(made, count="1")).allocations[0].uuid == "GPU-1000"
        on = [entry_of(made, opened(made, memory="1GiB")).allocations[0].uuid for _ in range(3)]
        assert sorted(on) == ["GPU-0000", "GPU-0000", "GPU-2000"]
        with pytest.raises(NoRoom) as refused:
            opened(made, memory="1GiB")
        assert "card 0 has 2 tenants of at most 2 (cards.H200.max_tenants, " in str(refused.value)
        assert "card 2 has 1 tenants of at most 1 (cards.GPU-2000.max_tenants" in str(refused.value)
        assert "request less" not in str(refused.value)
