# SPDX-License-Identifier: Apache-2.0
"""`why`: every byte has a part, the parts add up, and what they mean is said."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.cards.card import Use
from gpushare.daemon.identity import processes
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.pages.account import Claim, Held
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Denials
from gpushare.daemon.views import why
from gpushare.daemon.views.why import parts
from gpushare.protocol import Opened, Why, WhyProcess

from . import registered
from .fakes import GIB, MIB, FakeDriver, card, entry
from .operations import entry_of, opened

CONTEXT = 500 * MIB
# A page is a tenant's to write: figures that fit nothing are figures too.
anything = st.integers(0, 1 << 64)
plausible = st.integers(0, 140 * GIB)
figures = st.one_of(plausible, anything)
held = st.builds(
    Held,
    held_bytes=figures,
    kinds=st.lists(figures, min_size=abi.KINDS, max_size=abi.KINDS).map(tuple),
    contexts=st.integers(0, 9),
    exported_bytes=figures,
    imported_bytes=figures,
)
claims = st.lists(
    st.builds(Claim, st.just(0), st.just(1), st.just(1), st.just(0), st.just(0), st.tuples(held)),
    max_size=8,
)


class FakeGrant:
    """What the daemon promised and measured of card 0."""

    def __init__(self, overhead_bytes: int) -> None:
        self._overhead_bytes = overhead_bytes

    def overhead_bytes(self, _number: int) -> int:
        return self._overhead_bytes

    def limit_bytes(self, _number: int) -> int:
        return 4 * GIB

    def context_bytes(self, _number: int) -> int:
        return CONTEXT


@given(held)
def test_the_parts_of_a_process_add_up_to_what_it_holds(one: Held) -> None:
    assert sum(parts(one).values()) == one.held_bytes
    assert min(parts(one).values()) >= 0


@given(claims, plausible, st.none() | plausible)
def test_the_parts_of_a_card_add_up_to_what_counts(
    those: list[Claim], overhead_bytes: int, driver_bytes: int | None
) -> None:
    grant = FakeGrant(overhead_bytes)
    row = why.share(entry().holdings[0], 0, those, grant, driver_bytes)  # type: ignore[arg-type]
    assert sum(row["parts"].values()) == row["used_bytes"]
    figures = [claim.held[0] for claim in those]
    most = max((one.imported_bytes for one in figures), default=0)
    orphaned = max(0, most - sum(one.exported_bytes for one in figures))
    held_bytes = sum(one.held_bytes for one in figures)
    assert row["used_bytes"] == held_bytes + overhead_bytes + orphaned
    if driver_bytes is not None:
        assert row["drift_bytes"] == driver_bytes - row["expected_bytes"]


def test_each_kind_has_its_part() -> None:
    kinds = tuple(10**number for number in range(abi.KINDS))
    found = parts(Held(held_bytes=sum(kinds) + 5, kinds=kinds))
    assert found.pop("buffers") == 5 + 10**abi.KIND_BUFFER
    assert found == {
        "managed": 10**abi.KIND_MANAGED,
        "pools": 10**abi.KIND_POOL,
        "physical": 10**abi.KIND_PHYSICAL,
        "arrays": 10**abi.KIND_ARRAY,
        "graphs": 10**abi.KIND_GRAPH,
        "modules": 10**abi.KIND_MODULE,
        "limits": 10**abi.KIND_LIMIT,
        "external": 10**abi.KIND_EXTERNAL,
        "contexts": 10**abi.KIND_CONTEXT,
    }


Program = subprocess.Popen[bytes]
Report = tuple[Why, list[WhyProcess]]


class Bound:
    """A tenant of 4 GiB whose one process is `program`; its page is the test's to write."""

    def __init__(self, node: Node, program: Program) -> None:
        self.node = node
        self.program = program
        self.opened: Opened = opened(node, memory="4GiB")
        bind(self.opened["key"], self.opened["id"], program.pid, os.getpid(), node)
        pages = node.tenants.pages[self.opened["key"]]
        self.fd, self.grant = pages.status.fd, pages.grant
        self.grant.set_context(0, CONTEXT)
        living = processes.look(program.pid)
        assert living is not None
        self.starttime = living.starttime
        registered.register(self.fd, 0, program.pid, living.starttime)

    def refuse(self, size: int, times: int = 1) -> None:
        registered.register(
            *(self.fd, 0, self.program.pid, self.starttime), denied=times, denied_bytes=size
        )

    def report(self) -> Report:
        return why.why(self.entry, self.node)

    @property
    def entry(self) -> Entry:
        return entry_of(self.node, self.opened)


@pytest.fixture
def bound(node: Node, program: Program) -> Bound:
    return Bound(node, program)


def driver_of(node: Node) -> FakeDriver:
    assert node.driver is not None
    assert isinstance(node.driver.nvml, FakeDriver)
    return node.driver.nvml


def look(node: Node, times: int = 4) -> None:
    assert node.driver is not None
    for _ in range(times):
        node.driver.truth.look()


def test_what_the_driver_has_beyond_the_account_is_a_part_and_is_said(bound: Bound) -> None:
    kinds = {abi.KIND_CONTEXT: CONTEXT, abi.KIND_POOL: GIB}
    registered.hold(bound.fd, 0, 2 * GIB, kinds=kinds, contexts=1, pool_kept_bytes=768 * MIB)
    use = Use(bound.program.pid, 2 * GIB + 40 * MIB)
    driver_of(bound.node).uses = {card(0).uuid: (use,)}
    with registered.life(bound.fd, 0):
        look(bound.node)
    report, (holder,) = bound.report()
    (row,) = report["cards"]
    assert {part: size for part, size in row["parts"].items() if size} == {
        "buffers": GIB - CONTEXT,
        "pools": GIB,
        "contexts": CONTEXT,
        "beyond": 40 * MIB,
    }
    assert row["used_bytes"] == 2 * GIB + 40 * MIB
    assert (row["expected_bytes"], row["driver_bytes"]) == (2 * GIB, 2 * GIB + 40 * MIB)
    assert row["drift_bytes"] == 40 * MIB
    assert row["drift"] == (
        "the driver has 40 MiB more than the account says: code, rounding, what no call asks for; "
        "it counts as beyond"
    )
    assert (holder["pid"], holder["name"], holder["accounted"]) == (
        *(bound.program.pid, "sleep", True),
    )
    assert holder["cards"][0]["bytes"] == 2 * GIB
    assert holder["cards"][0]["driver_bytes"] == 2 * GIB + 40 * MIB
    assert any("memory pools keep 768 MiB" in sentence for sentence in report["advice"])


@pytest.mark.parametrize(
    ("driver_bytes", "beyond", "says"),
    [
        (None, 0, "the driver does not say"),
        (GIB, 0, "the driver has what the account says"),
        (GIB - MIB, 0, "the driver has 1 MiB less than the account says"),
        (GIB + 2 * MIB, MIB, "2 MiB more .*; 1 MiB of it count as beyond"),
    ],
)
def test_the_drift_is_said_with_its_sign(driver_bytes: int | None, beyond: int, says: str) -> None:
    assert re.search(says, why.drift(driver_bytes, GIB, beyond))


def test_shared_memory_whose_maker_has_ended_has_a_part(bound: Bound) -> None:
    registered.hold(bound.fd, 0, GIB, exported_bytes=0, imported_bytes=512 * MIB)
    report, _ = bound.report()
    (row,) = report["cards"]
    assert row["parts"]["orphaned"] == 512 * MIB
    assert row["used_bytes"] == GIB + 512 * MIB
    assert report["advice"] == [
        (
            "512 MiB is shared memory whose maker has ended: free once no process maps it any more "
            f"({bound.program.pid})"
        )
    ]


def test_the_last_refusal_outlives_its_process(bound: Bound) -> None:
    bound.report()
    bound.refuse(3 * GIB)
    registered.hold(bound.fd, 0, 2 * GIB)
    report, (holder,) = bound.report()
    assert (report["denied"], holder["denied_bytes"]) == (1, 3 * GIB)
    last = report["last_denied"]
    assert last is not None
    assert (last["bytes"], last["container_pid"]) == (3 * GIB, bound.program.pid)
    assert last["seen"] is not None
    assert (
        "for what was refused last it takes 5GiB: gpushare set train --memory 5GiB "
        "(gpushare ls says what the card has left)"
    ) in report["advice"]
    bound.program.kill()
    bound.program.wait()
    pages = bound.node.tenants.pages[bound.opened["key"]]
    assert pages.reap(lambda _pid, _starttime: False) == 1
    after, holders = bound.report()
    assert (after["denied"], after["last_denied"], holders) == (1, last, [])


def test_of_a_refusal_before_this_daemon_looked_the_time_is_not_known(bound: Bound) -> None:
    bound.refuse(GIB)
    bound.node.tenants.pages[bound.opened["key"]].denials = Denials()
    report, _ = bound.report()
    assert report["last_denied"] == {
        "bytes": GIB,
        "container_pid": bound.program.pid,
        "seen": None,
    }


def test_of_a_refusal_at_the_very_start_the_time_is_known(bound: Bound) -> None:
    bound.refuse(GIB)
    last = bound.report()[0]["last_denied"]
    assert last is not None
    assert last["seen"] is not None


def test_what_was_refused_once_and_fits_by_now_gives_no_advice(bound: Bound) -> None:
    registered.hold(bound.fd, 0, 2 * GIB)
    bound.refuse(GIB)
    report, _ = bound.report()
    assert (report["denied"], report["advice"]) == (1, [])
    bound.refuse(3 * GIB, times=2)
    assert any("most of it is buffers" in sentence for sentence in bound.report()[0]["advice"])


def test_who_borrows_is_told_what_that_means(bound: Bound) -> None:
    registered.hold(bound.fd, 0, 3 * GIB)
    lent = replace(bound.entry.holdings[0], memory_bytes=2 * GIB)
    report, _ = why.why(replace(bound.entry, holdings=(lent,)), bound.node)
    assert report["advice"] == [
        (
            "1 GiB is borrowed above its quota: nobody takes it away, but once the card is full "
            "this container is refused first; to have it promised: gpushare set train --memory 3GiB"
        )
    ]


def test_who_is_over_after_a_shrink_is_told_who_holds_most(bound: Bound) -> None:
    registered.hold(bound.fd, 0, 3 * GIB)
    shrunk = replace(bound.entry.holdings[0], memory_bytes=2 * GIB)
    bound.grant.set_memory(0, 2 * GIB)
    report, _ = why.why(replace(bound.entry, holdings=(shrunk,)), bound.node)
    assert report["advice"] == [
        (
            "it has 1 GiB more than it may: nothing is given until it fits; free some (process "
            f"{bound.program.pid} holds most), or: gpushare set train --memory 3GiB"
        ),
        (
            "most of it is buffers; a framework keeps freed ones for itself: "
            "torch.cuda.empty_cache() gives them back"
        ),
    ]


def test_a_process_that_the_account_does_not_know_is_named(bound: Bound) -> None:
    os.pwrite(bound.fd, bytes(8), abi.status_process_offset(0))  # it registered nowhere
    use = Use(bound.program.pid, GIB)
    driver_of(bound.node).uses = {card(0).uuid: (use,)}
    look(bound.node)
    report, (holder,) = bound.report()
    assert not holder["accounted"]
    assert report["cards"][0]["parts"]["beyond"] == GIB
    assert report["advice"][-1].startswith(f"process {bound.program.pid} (sleep) has 1 GiB and no")


def test_an_account_whose_process_is_nowhere_is_shown_without_a_pid(bound: Bound) -> None:
    registered.register(bound.fd, 1, 999, 1)
    registered.hold(bound.fd, 1, GIB, kinds={abi.KIND_ARRAY: GIB})
    report, holders = bound.report()
    assert [(row["pid"], row["container_pid"]) for row in holders] == [
        (None, 999),
        (bound.program.pid, bound.program.pid),
    ]
    assert report["cards"][0]["parts"]["arrays"] == GIB


def test_workers_that_hold_a_context_and_nothing_else_are_named(bound: Bound) -> None:
    only = {abi.KIND_CONTEXT: CONTEXT}
    registered.hold(bound.fd, 0, CONTEXT, kinds=only, contexts=1)
    assert bound.report()[0]["advice"] == []
    registered.register(bound.fd, 1, 999, 1)
    registered.hold(bound.fd, 1, CONTEXT, kinds=only, contexts=1)
    assert bound.report()[0]["advice"] == [
        (
            "2 processes hold a context and nothing else, 1000 MiB: "
            f"{bound.program.pid}, 999 (in the container)"
        )
    ]


def test_a_worker_that_maps_what_another_made_is_not_called_idle(bound: Bound) -> None:
    registered.hold(bound.fd, 0, 2 * GIB, exported_bytes=GIB)
    registered.register(bound.fd, 1, 999, 1)
    only = {abi.KIND_CONTEXT: CONTEXT}
    registered.hold(bound.fd, 1, CONTEXT, kinds=only, contexts=1, imported_bytes=GIB)
    assert bound.report()[0]["advice"] == []


def test_each_card_of_several_has_its_sum_and_its_advice(node: Node, program: Program) -> None:
    tenant = opened(node, memory="4GiB", count="2")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    living = processes.look(program.pid)
    assert living is not None
    registered.register(fd, 0, program.pid, living.starttime, denied=1, denied_bytes=3 * GIB)
    registered.hold(fd, 0, GIB)
    registered.hold(fd, 0, 2 * GIB, card=1, kinds={abi.KIND_ARRAY: 2 * GIB})
    report, (holder,) = why.why(entry_of(node, tenant), node)
    assert [card["used_bytes"] for card in report["cards"]] == [GIB, 2 * GIB]
    assert [card["parts"]["arrays"] for card in report["cards"]] == [0, 2 * GIB]
    assert [held["bytes"] for held in holder["cards"]] == [GIB, 2 * GIB]
    told = [sentence for sentence in report["advice"] if "refused last" in sentence]
    assert [sentence.partition(":")[0] for sentence in told] == [
        f"card {report['cards'][1]['index']}"
    ]


def test_a_whole_card_has_the_driver_s_figure_and_no_account(node: Node, program: Program) -> None:
    tenant = opened(node, count="1")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    uuid = entry_of(node, tenant).holdings[0].uuid
    driver_of(node).uses = {uuid: (Use(program.pid, 3 * GIB),)}
    look(node, 1)
    report, (holder,) = why.why(entry_of(node, tenant), node)
    (row,) = report["cards"]
    assert row["used_bytes"] == row["parts"]["beyond"] == sum(row["parts"].values()) == 3 * GIB
    assert row["memory_bytes"] == row["limit_bytes"] == 140 * GIB
    assert row["drift"].startswith("a whole card has no account")
    assert (holder["accounted"], report["advice"]) == (False, [])


def test_who_got_no_gpu_has_no_cards(node: Node) -> None:
    none = Entry(key="1" * 16, state="none", id="web", why="add -e GPUSHARE_MEMORY=4GiB")
    report, holders = why.why(none, node)
    assert (report["cards"], holders, report["advice"]) == ([], [], [])
    assert report["why"] == "add -e GPUSHARE_MEMORY=4GiB"


def test_a_driver_that_went_silent_leaves_old_figures_and_says_so(bound: Bound) -> None:
    look(bound.node, 1)
    driver_of(bound.node).fault = "no answer within 5 s"
    look(bound.node, 1)
    assert bound.report()[0]["stale"] == "no answer within 5 s"
