# SPDX-License-Identifier: Apache-2.0
"""Placement: which card is taken, what a refusal says, NUMA nodes, and cordoned cards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import config
from gpushare.config import Config
from gpushare.daemon.cards.nvml_client import nvlink_link, pcie_link
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.lifecycle.tenant_names import TenantNotFound
from gpushare.daemon.observed import CardUsage, UsageView
from gpushare.daemon.operator.cards import cordon_card, set_card_policy, uncordon_card
from gpushare.daemon.operator.resize import check_memory_growth
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import (
    UNKNOWN,
    AllocationUse,
    Card,
    CardCapacity,
    Link,
    Links,
    MigInstance,
    NonTenantProcess,
)
from gpushare.daemon.placement.request import (
    Bounds,
    ImageNeed,
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    TenantCardUsage,
)
from gpushare.daemon.service.control_request import refusal_packet
from gpushare.daemon.views.rows import card_rows
from gpushare.host.numa import Numa
from gpushare.protocol import CODE_NOT_FOUND
from gpushare.quota.request_policy import MaxPerCard, MaxPerNode, MaxPerRequest

from . import fakes
from .bundles import BundleToCreate
from .fakes import GIB, MIB, FakeDaemon, FakeDriver, card
from .operations import ME, entry_of, opened


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
        4 * GIB,
        3 * GIB,
        3 * GIB,
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


def test_a_refusal_names_what_the_image_needs_of_a_card() -> None:
    need = ImageNeed("CUDA 13 builds nothing for V100", "use CUDA 12", is_refused=True)
    request = share(1, image_needs={card(0).uuid: need})
    assert indices(place_request(request, (room(0), room(1)))) == [1]
    assert refusal(request, room(0), room(1, gib=0)) == (
        "no card has room for 1 GiB: card 0 (H200) does not fit the image: CUDA 13 builds nothing "
        "for V100; card 1 has 0 of 0 B available; use CUDA 12 or see gpushare ls"
    )


MODELS = ("A100-PCIE-40GB", "H200")


LEVELS = (10, 20, 30, 40, 50)
#: What stands between two cards: what NVML may say of it, or nothing.
WAYS: st.SearchStrategy[Link] = st.one_of(
    st.builds(nvlink_link, st.integers(1, 18)),
    st.sampled_from(LEVELS).map(pcie_link),
    st.just(UNKNOWN),
)


SLOW = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@dataclass(frozen=True)
class PlacementCase:
    """A machine, and the requests for it."""

    ask: PlacementRequest
    rooms: tuple[CardCapacity, ...]
    links: Links

    def placed(self) -> tuple[PlacedCard, ...] | None:
        """Return what is given; None where it is refused."""
        try:
            return place_request(self.ask, self.rooms, self.links)
        except (NoRoom, NoSuchCard):
            return None


@st.composite
def promises(draw: st.DrawFn, memory_bytes: int) -> tuple[AllocationUse, ...]:
    if draw(st.integers(0, 7)) == 7:
        return (AllocationUse("alone", memory_bytes, 100, whole=True),)
    count, found = draw(st.sampled_from((0, 0, 1, 2, 3))), []
    free_bytes, free_cores = memory_bytes, 100
    for number in range(count):
        size, cores = draw(st.integers(1, 16)) * GIB, draw(st.sampled_from((0, 0, 20, 50)))
        if size > free_bytes or cores > free_cores:
            break
        found.append(AllocationUse(f"t{number}", size, cores))
        free_bytes, free_cores = free_bytes - size, free_cores - cores
    return tuple(found)


@st.composite
def machines(draw: st.DrawFn) -> tuple[CardCapacity, ...]:
    found = []
    for index in range(draw(st.sampled_from((5, 6, 6, 4, 3, 2, 1)))):
        gib = draw(st.sampled_from((16, 16, 40)))
        one = Card(index, f"GPU-{index}000", draw(st.sampled_from(MODELS)), gib * GIB, index)
        one = replace(one, capability=draw(st.sampled_from((None, (7, 0), (8, 0), (9, 0)))))
        found.append(
            CardCapacity(
                one,
                draw(promises(gib * GIB)),
                non_tenant_bytes=draw(st.sampled_from((0, 0, 0, 3))) * GIB,
                reserve_bytes=draw(st.sampled_from((0, 0, 1))) * GIB,
                context_bytes=GIB // 2,
                health=draw(st.sampled_from(("ok",) * 12 + ("GPU is lost",))),
                mode=draw(st.sampled_from(("any",) * 10 + ("shared", "exclusive"))),
                max_tenants=draw(st.sampled_from((16, 16, 2))),
                cordoned=draw(st.sampled_from((None,) * 12 + ("", "broken"))),
            )
        )
    return tuple(draw(st.permutations(found)))


@st.composite
def bounds(draw: st.DrawFn, rooms: Sequence[CardCapacity], *, often: bool) -> Bounds:
    def some(low: int, high: int) -> int | None:
        return draw(st.integers(low, high)) if draw(st.integers(0, 4)) == 0 else None

    def size(high: int) -> int | None:
        gib = some(1, high)
        return None if gib is None else gib * GIB

    parts = tuple(
        TenantCardUsage(f"key-{name}", name, room.card, draw(st.integers(1, 8)) * GIB, 20)
        for room in rooms
        for name in draw(st.sets(st.sampled_from("ab"), max_size=2).map(sorted))
    )
    if not often and draw(st.integers(0, 2)) < 2:
        return Bounds(parts=parts)
    model = MaxPerNode(size(60), some(1, 300), some(1, 3), some(1, 4))
    return Bounds(
        MaxPerRequest(memory_bytes=size(20)),
        MaxPerCard(size(30), some(10, 100), some(10, 100), some(1, 3)),
        MaxPerNode(size(90), some(1, 400), some(1, 4), some(1, 4), models={"A100": model}),
        "namespace team",
        parts,
    )


@st.composite
def cases(draw: st.DrawFn, kind: str = "any") -> PlacementCase:
    """Return a case; `kind` says of what there is to be more: whole cards, or bounds."""
    rooms = draw(machines())
    if kind == "exclusive":
        rooms = tuple(
            replace(room, allocations=room.allocations[: len(rooms) % 2]) for room in rooms
        )
    whole = kind == "exclusive" or draw(st.integers(0, 3)) == 3
    percent = draw(st.integers(0, 3)) == 3
    ask = PlacementRequest(
        whole=whole,
        count=draw(st.sampled_from((2, 2, 1, 1, 3, 3, 4, None))),
        memory_bytes=None if whole or percent else draw(st.sampled_from((2, 1, 4, 8, 20))) * GIB,
        memory_percent=draw(st.sampled_from((10, 30, 50, 100))) if percent and not whole else None,
        cores=0 if whole else draw(st.sampled_from((0, 10, 40, 80))),
        strategy=draw(st.sampled_from(("", "binpack", "spread", "topology"))),
        allow=draw(st.sampled_from(((),) * 8 + (("A100",), ("h200", "GPU-0000")))),
        deny=draw(st.sampled_from(((),) * 8 + (("GPU-1000",), ("H200",), ("T4",)))),
        compute_capability=draw(st.sampled_from(((),) * 6 + ((">=8.0",), ("<9.0", ">7.5")))),
        bounds=Bounds() if kind == "exclusive" else draw(bounds(rooms, often=kind == "bounds")),
    )
    uuids = sorted(room.card.uuid for room in rooms)
    between = {frozenset(pair): draw(WAYS) for pair in combinations(uuids, 2)}
    return PlacementCase(ask, rooms, Links(between))


ANY = st.sampled_from(("any", "whole", "bounds")).flatmap(cases)


# --- the rules, once more ---


def named(names: Sequence[str], one: Card) -> bool:
    return any(name == one.uuid or name.lower() in one.model.lower() for name in names)


def capable(comparisons: Sequence[str], one: Card) -> bool:
    wanted = {">=8.0": {(8, 0), (9, 0)}, "<9.0": {(7, 0), (8, 0)}, ">7.5": {(8, 0), (9, 0)}}
    return all(one.capability in wanted[text] for text in comparisons)


def fits(ask: PlacementRequest, room: CardCapacity) -> bool:
    """Whether one card may be taken by itself."""
    one = room.card
    if room.health != "ok" or room.cordoned is not None:
        return False
    if (ask.allow and not named(ask.allow, one)) or named(ask.deny, one):
        return False
    if ask.compute_capability and not capable(ask.compute_capability, one):
        return False
    if room.mode == ("shared" if ask.whole else "exclusive"):
        return False
    size, cores = asked(ask, one)
    together = ask.bounds.max_per_card
    mine = [p for p in ask.bounds.parts if p.card.uuid == one.uuid]
    most = [together.memory_bytes]
    if together.memory_percent is not None:
        most.append(one.memory_bytes * together.memory_percent // 100)
    if any(m is not None and sum(p.memory_bytes for p in mine) + size > m for m in most):
        return False
    if together.cores is not None and sum(p.cores for p in mine) + cores > together.cores:
        return False
    if together.tenants is not None and len(mine) + 1 > together.tenants:
        return False
    ceiling = ask.bounds.max_per_request.memory_bytes
    if ask.whole:
        return not room.allocations
    if ceiling is not None and size > ceiling:
        return False
    taken = sum(promise.quota_bytes for promise in room.allocations)
    free = one.memory_bytes - room.reserve_bytes - room.non_tenant_bytes - taken
    return (
        not any(promise.whole for promise in room.allocations)
        and room.context_bytes < size <= free
        and sum(promise.cores for promise in room.allocations) + cores <= 100
        and len(room.allocations) < room.max_tenants
    )


def asked(ask: PlacementRequest, one: Card) -> tuple[int, int]:
    if ask.whole:
        return one.memory_bytes, 100
    size = ask.memory_bytes
    if size is None:
        assert ask.memory_percent is not None
        size = one.memory_bytes * ask.memory_percent // 100
    return size, ask.cores


def may(ask: PlacementRequest, taken: Sequence[CardCapacity]) -> bool:
    """Whether the set may be had together."""
    total = ask.bounds.max_per_node
    for model, most in (("", total), *total.models.items()):
        new = [room.card for room in taken if model in room.card.model]
        parts = [part for part in ask.bounds.parts if model in part.card.model]
        if not new:
            continue
        memory_bytes = sum(p.memory_bytes for p in parts) + sum(asked(ask, c)[0] for c in new)
        sums = (
            (most.memory_bytes, memory_bytes),
            (most.cores, sum(asked(ask, c)[1] for c in new) + sum(p.cores for p in parts)),
            (most.cards, len({c.uuid for c in new} | {p.card.uuid for p in parts})),
            (most.tenants, len({p.key for p in parts}) + 1),
        )
        if any(bound is not None and value > bound for bound, value in sums):
            return False
    return True


def sets(case: PlacementCase) -> list[tuple[CardCapacity, ...]]:
    """Return every set of cards that may be taken."""
    count = len(case.rooms) if case.ask.count is None else case.ask.count
    fitting = [room for room in case.rooms if fits(case.ask, room)]
    return [taken for taken in combinations(fitting, count) if may(case.ask, taken)]


def distance(case: PlacementCase, taken: Sequence[CardCapacity]) -> int:
    pairs = combinations([room.card.uuid for room in taken], 2)
    return sum(case.links.between[frozenset(pair)].distance for pair in pairs)


def goodness(case: PlacementCase, taken: Sequence[CardCapacity]) -> tuple[object, ...]:
    """Return what the strategy looks at, the least the best; without what only decides ties."""
    ask, free = case.ask, sorted(room.available_bytes for room in taken)
    if ask.strategy == "spread":
        return (sorted(-one for one in free),)
    fitting = [room for room in case.rooms if fits(ask, room)]
    near = sum(
        70 - distance(case, (one, other)) for one in taken for other in fitting if other != one
    )
    if ask.whole:
        return distance(case, taken), sum(room.non_tenant_bytes for room in taken), near
    if ask.strategy == "binpack" or len(taken) == 1:
        return free, near
    return distance(case, taken), free, near


# --- what holds ---


@SLOW
@given(ANY)
def test_the_set_that_is_taken_is_the_best_by_its_strategy(case: PlacementCase) -> None:
    """It is refused only if no set of cards would do."""
    placed = case.placed()
    if placed is None:
        assert not sets(case)
        return
    uuids = {one.card.uuid for one in placed}
    taken = next(one for one in sets(case) if {room.card.uuid for room in one} == uuids)
    best = min(goodness(case, one) for one in sets(case))
    assert goodness(case, taken) == best
    # Of those as good, the first cards.
    indices = sorted(room.card.index for room in taken)
    as_good = [one for one in sets(case) if goodness(case, one) == best]
    assert indices == min(sorted(room.card.index for room in one) for one in as_good)


ASKED = ("GPUSHARE_MEMORY=1GiB", "GPUSHARE_NUMA=bind")


@pytest.fixture
def numa(tmp_path: Path) -> Numa:
    found = Numa(tmp_path / "sys", tmp_path / "proc")
    folder = found.sys / "devices/system/node"
    for number, cpus in enumerate(("0-3", "4-7")):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "has_memory").write_text("0-1\n")
    (found.proc / "self").mkdir(parents=True)
    (found.proc / "self/status").write_text("Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n")
    return found


def on_nodes(
    folder: Path, numa: Numa, nodes: dict[int, int], said: Config | None
) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(2)))
    with fakes.node(folder, driver, said) as made:
        links = Links({}, {fakes.card(index).uuid: node for index, node in nodes.items()})
        driver.near, made.node.numa = links, numa
        yield made


@pytest.fixture
def node(tmp_path: Path, numa: Numa) -> Iterator[FakeDaemon]:
    yield from on_nodes(tmp_path / "node", numa, {0: 1, 1: 0}, None)


def cpuset(container: BundleToCreate) -> tuple[str | None, str | None]:
    cpu = container.document()["linux"]["resources"].get("cpu", {})
    return cpu.get("cpus"), cpu.get("mems")


def test_a_container_is_kept_to_its_card_s_node(tmp_path: Path, node: FakeDaemon) -> None:
    container = BundleToCreate(tmp_path / "b", *ASKED)
    before = container.document()
    container.create(node)
    assert cpuset(container) == ("4-7", "1")
    # A second start begins with what the engine wrote.
    container.create(node)
    assert container.document()["x-gpushare"]["linux.resources.cpu.cpus"]["set"] == "4-7"
    assert "cpu" not in before["linux"]["resources"]


def test_where_nothing_is_left_it_starts_as_it_was_and_says_so(
    tmp_path: Path, node: FakeDaemon
) -> None:
    linux = {"resources": {"cpu": {"cpus": "0-1", "mems": "0"}}}
    container = BundleToCreate(tmp_path / "b", *ASKED, linux=linux)
    key = container.create(node)["key"]
    assert cpuset(container) == ("0-1", "0")
    assert node.ledger.entries[key].notes == (
        "numa: bind: it may have CPUs 0-1, but its cards are on 4-7: left unchanged",
        "numa: bind: it may have memory nodes 0, but its cards are on 1: left unchanged",
    )


def test_a_card_with_an_unknown_node_changes_no_cpuset(tmp_path: Path, numa: Numa) -> None:
    for made in on_nodes(tmp_path / "node", numa, {}, None):
        container = BundleToCreate(tmp_path / "b", *ASKED)
        key = container.create(made)["key"]
        assert cpuset(container) == (None, None)
        assert made.ledger.entries[key].notes == (
            "numa: bind: the NUMA node of card 0 is not known: left as is",
        )


def test_a_host_process_gets_a_note_that_it_is_not_bound(node: FakeDaemon) -> None:
    entry = entry_of(node, open_tenant(ME, {"memory": "1GiB", "numa": "bind"}, node, node.room))
    assert entry.notes == (
        "--numa bind was not applied: it is only for containers. Put numactl(8) before the command",
    )


FILE = Path("/etc/gpushare/gpushare.yaml")


CARDS = tuple(fakes.card(index) for index in range(2))


@contextmanager
def cordon_node(folder: Path, text: str = "", count: int = 2) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(count)))
    with fakes.node(folder, driver, config.parse(text, FILE)) as made:
        yield made


def ask_node(node: FakeDaemon, op: str, uid: int = 0, **fields: Any) -> list[dict[str, object]]:
    answer = node.ask(op, uid, **fields)
    return answer if isinstance(answer, list) else [answer["card"]]


def test_a_cordoned_card_takes_no_new_tenant_and_keeps_its_tenants(tmp_path: Path) -> None:
    with cordon_node(tmp_path) as made:
        first = opened(made, memory="4GiB")
        cordon_card(CARDS[0], "ECC errors", made.node, made.ledger)
        assert entry_of(made, opened(made, memory="4GiB")).allocations[0].uuid == CARDS[1].uuid
        assert first["key"] in made.ledger.entries
        with pytest.raises(NoRoom, match=r"card 0 is cordoned \(ECC errors\); gpushare card unco"):
            opened(made, memory="4GiB", devices="0")
        uncordon_card(CARDS[0], made.node, made.ledger)
        opened(made, memory="4GiB", devices="0")


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


def test_a_card_that_takes_no_new_tenant_has_nothing_available(tmp_path: Path) -> None:
    with cordon_node(tmp_path, count=3) as made:

        def shown() -> list[object]:
            assert [*card_rows(made)] == ask_node(made, "cards")
            return [card["available_bytes"] for card in card_rows(made)]

        every = CARDS[0].memory_bytes
        assert shown() == [every] * 3
        cordon_card(CARDS[0], "", made.node, made.ledger)
        made.observed.usage = UsageView(cards={CARDS[1].uuid: CardUsage(health="GPU is lost")})
        assert shown() == [0, 0, every]
        uncordon_card(CARDS[0], made.node, made.ledger)
        made.node.driver_fault = "another driver"
        assert shown() == [0, 0, 0]


@pytest.mark.parametrize("card", ["9", "abc", "GPU-00000000"])
@pytest.mark.parametrize("op", ["card-policy", "card-cordon", "card-uncordon"])
def test_a_card_that_does_not_exist_is_not_found(tmp_path: Path, op: str, card: str) -> None:
    with cordon_node(tmp_path) as made, pytest.raises(TenantNotFound) as caught:
        ask_node(made, op, card=card)
    packet = refusal_packet(caught.value)
    assert packet is not None
    assert packet["code"] == CODE_NOT_FOUND
    assert f"card {card} does not exist" in packet["error"]


MODES = """\
max_tenants: 3
cards:
  H200: {allowed_mode: shared, max_tenants: 2}
  "1": {allowed_mode: exclusive}
  GPU-2000:
    allowed_mode: any
    max_tenants: 1
"""


def test_the_operator_says_which_requests_a_card_takes(tmp_path: Path) -> None:
    with cordon_node(tmp_path, MODES, count=3) as made:
        for asked, told in (
            ({"memory": "4GiB", "devices": "1"}, "card 1 is allocated only as a whole (cards.1.a"),
            ({"count": "1", "devices": "0"}, "card 0 is for shares only (cards.H200.allowed_mode"),
        ):
            with pytest.raises(NoRoom, match=re.escape(told)):
                opened(made, **asked)
        assert entry_of(made, opened(made, count="1")).allocations[0].uuid == "GPU-1000"


def test_a_card_has_its_own_number_of_shares(tmp_path: Path) -> None:
    with cordon_node(tmp_path, MODES, count=3) as made:
        on = [entry_of(made, opened(made, memory="1GiB")).allocations[0].uuid for _ in range(3)]
        assert sorted(on) == ["GPU-0000", "GPU-0000", "GPU-2000"]
        with pytest.raises(NoRoom) as refused:
            opened(made, memory="1GiB")
        assert "card 0 has 2 tenants of at most 2 (cards.H200.max_tenants, " in str(refused.value)
        assert "card 2 has 1 tenants of at most 1 (cards.GPU-2000.max_tenants" in str(refused.value)
        assert "request less" not in str(refused.value)
