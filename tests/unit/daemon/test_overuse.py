# SPDX-License-Identifier: Apache-2.0
"""Who is held to its part of the compute: only who goes round the gate, and only by choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from gpushare.daemon.compute.spent import Spent
from gpushare.daemon.control.freezer import CannotHold
from gpushare.daemon.node import Node
from gpushare.daemon.policy import duty
from gpushare.daemon.store.holds import Hold
from gpushare.daemon.views.rows import tenant_row
from gpushare.quota.ceilings import Terms

from . import fakes

KEY, OTHER = "a" * 16, "b" * 16
UUID = fakes.card().uuid
LOOK_NS = 250 * 10**6


@dataclass
class Held:
    """A node whose one tenant goes round the gate, and what its freezer was asked."""

    node: Node
    now_ns: int = 10**12
    asked: list[tuple[str, str]] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    fault: str = ""
    lost: Callable[[str], None] = lambda _: None
    spent: dict[tuple[str, str], Spent] = field(default_factory=dict)

    def take_turns(self, key: str, why: str, runs: float, failed: Callable[[str], None]) -> None:
        del runs
        if self.fault:
            raise CannotHold(self.fault)
        self.asked.append((key, why))
        self.taken.add(key)
        self.lost = failed

    def pace(self, key: str, runs: float) -> bool:
        del runs
        return key in self.taken

    def release(self, key: str, by: str) -> bool:
        self.asked.append((key, f"release {by}"))
        self.taken.discard(key)
        return True

    def looks(self, count: int = duty.LOOKS) -> list[tuple[str, str]]:
        """Return what was asked in so many looks."""
        self.asked.clear()
        self.node.spending.view = MappingProxyType(self.spent)
        for _ in range(count):
            self.now_ns += LOOK_NS
            self.node.overuse.look(self.now_ns)
            self.node.decide.run(lambda: None)
        return [*self.asked]

    def choose(self, compute: str) -> None:
        self.node.config = replace(
            self.node.config, terms=replace(self.node.config.terms, compute=compute)
        )


def figures(percent: float, charged: float, **more: Any) -> Spent:
    got = {1: charged, 10: charged, 60: charged}
    return Spent(
        source="gate",
        got=got,
        throttled=dict.fromkeys(got, 0.0),
        driver_percent=percent,
        lately_percent=percent,
        **more,
    )


@pytest.fixture
def held(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(node)
    monkeypatch.setattr(node.freezer, "take_turns", made.take_turns)
    monkeypatch.setattr(node.freezer, "pace", made.pace)
    monkeypatch.setattr(node.freezer, "release", made.release)
    for key, policy, cores in ((KEY, "burst-share", 30), (OTHER, "burst-share", 70)):
        entry = fakes.entry(key, cores=cores)
        node.ledger.add(replace(entry, state="bound", policy=policy, pid=4, starttime=5))
    made.choose("freeze")
    made.spent[KEY, UUID] = figures(60, 0, bypassed=True)
    made.spent[OTHER, UUID] = figures(40, 40)
    yield made
    node.ledger.close()


HELD = (KEY, "goes round the gate: held to 30 % by freezing")
LET_GO = (KEY, "release duty")


def test_it_is_held_after_some_looks_and_told(held: Held) -> None:
    assert held.looks(duty.LOOKS - 1) == []
    assert held.looks(1) == [HELD]
    assert held.looks(20) == []
    row = tenant_row(held.node.ledger.entries[KEY], held.node)
    assert row["warnings"] == [f"train on card 0: {HELD[1]}"]
    assert row["held"] == []
    assert row["cards"][0]["share"] == 30


@pytest.mark.parametrize("choice", ["observe", "warn"])
def test_by_default_and_by_choice_nobody_is_held(held: Held, choice: str) -> None:
    assert Terms().compute == "warn"
    held.choose(choice)
    assert held.looks(40) == []


def test_another_choice_lets_it_go(held: Held) -> None:
    assert held.looks() == [HELD]
    held.choose("warn")
    assert held.looks(1) == [LET_GO]


def test_who_passes_the_gate_is_never_held(held: Held) -> None:
    held.spent[KEY, UUID] = figures(60, 55)
    assert held.looks(40) == []


def test_who_has_the_card_to_itself_is_never_held(held: Held) -> None:
    held.spent[OTHER, UUID] = figures(0, 0)
    assert held.looks(40) == []


def test_who_is_capped_is_held_though_nobody_else_is_at_work(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, policy="fixed-share"))
    held.spent[OTHER, UUID] = figures(0, 0)
    assert held.looks() == [HELD]


def test_whole_cards_and_the_online_are_never_held(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, class_="online"))
    assert held.looks(20) == []
    [holding] = entry.holdings
    held.node.ledger.add(replace(entry, holdings=(replace(holding, whole=True),)))
    assert held.looks(20) == []


@pytest.mark.parametrize(
    "said", [Spent(), figures(60, 0, bypassed=True, silent=True)], ids=["nothing", "silent"]
)
def test_figures_that_nobody_has_let_it_go_and_hold_nobody(held: Held, said: Spent) -> None:
    assert held.looks() == [HELD]
    held.spent[KEY, UUID] = said
    assert held.looks(1) == [LET_GO]
    assert held.looks(40) == []


def test_it_counts_of_its_looks_only_those_in_a_row(held: Held) -> None:
    bad = held.spent[KEY, UUID]
    for _ in range(5):
        assert held.looks(duty.LOOKS - 1) == []
        held.spent[KEY, UUID] = Spent()
        assert held.looks(1) == []
        held.spent[KEY, UUID] = bad


def test_a_container_that_is_started_once_more_begins_anew(held: Held) -> None:
    assert held.looks() == [HELD]
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, pid=40, starttime=50))
    assert held.looks(1) == [LET_GO]


def test_who_ended_is_let_go(held: Held) -> None:
    assert held.looks() == [HELD]
    held.node.ledger.release(KEY)
    assert held.looks(1) == [LET_GO]


def test_who_is_held_by_another_is_left_to_it(held: Held) -> None:
    assert held.looks() == [HELD]
    held.node.ledger.holds.put(Hold(KEY, "operator", "maintenance", 1.0))
    assert held.looks(1) == [LET_GO]
    assert held.looks(40) == []


def test_an_operator_that_lets_it_go_on_is_heard_for_a_minute(held: Held) -> None:
    assert held.looks() == [HELD]
    held.release(KEY, "duty")
    held.node.overuse.resumed(KEY)
    assert held.looks(4 * 59) == []
    assert held.looks(8) == [HELD]


def test_what_cannot_be_held_is_told_and_tried_again(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    held.fault = "train shares its cgroup"
    assert held.looks(4 * 12) == []
    assert 1 < capfd.readouterr().err.count("compute-not-held") < 4
    held.fault = ""
    assert held.looks(4 * 6) == [HELD]


def test_turns_that_end_by_themselves_are_told_and_taken_again(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    assert held.looks() == [HELD]
    held.asked.clear()
    held.lost("it was frozen by another")
    held.node.decide.run(lambda: None)
    assert held.asked == [LET_GO]
    assert "it was frozen by another" in capfd.readouterr().err
    assert held.looks(4 * 4) == []
    assert held.looks(4 * 3) == [HELD]


def test_a_look_that_fails_lets_everybody_go(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.looks() == [HELD]
    monkeypatch.setattr(held.node.spending, "of", lambda *_: 1 / 0)
    assert held.looks(1) == [LET_GO]
