# SPDX-License-Identifier: Apache-2.0
"""The reports say what a constructed history had."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import UserError
from gpushare.events import KEPT
from gpushare.history.reports import make_report
from gpushare.history.reports.columns import ReportTable
from gpushare.history.reports.compliance import COMPLIANCE_EVENTS
from gpushare.history.reports.formats import FORMATS
from gpushare.history.reports.oom import OOM_EVENTS
from gpushare.history.store import HistoryStore
from gpushare.metrics_schema import Metrics
from gpushare.prices import Prices, Rate
from tests.unit.exporter import made

from .world import GIB, HOUR, T0, UUIDS, Actor, read, record

MIB = 1 << 20
FORMULA = '=1+1|<script>alert("x")</script>'


def steady(gib: float, percent: float) -> Any:
    return lambda _at: (gib, percent, 0)


def rows(report: ReportTable) -> list[dict[str, Any]]:
    return [dict(report.plain(row)) for row in report.rows]


def test_sums_agree_with_the_raw_counters(tmp_path: Path) -> None:
    chance = random.Random(3)

    def varies(_at: float) -> tuple[float, float, int]:
        return chance.random() * 4, chance.random() * 60, chance.random() < 0.01

    actors = [
        Actor("team-a/train-0/main", varies, cards=(0, 1), uid=77001),
        Actor("team-a/train-1/main", varies, begin=1803, end=20_000, uid=77001),
        Actor("team-b/serve-0/main", varies, cards=(1,), cores=30, quota=8, uid=77002),
        *(
            Actor("team-b/job/main", varies, begin=b, end=b + 47, key=f"job-{b}")
            for b in range(35, 30_000, 300)
        ),
    ]
    # Nine hours: three of them are kept in steps of five minutes only.
    record(tmp_path, actors, 9 * HOUR, restarts=(5000, 28_805))
    with read(tmp_path, 0, 10 * HOUR) as source:
        found = make_report("usage", source, "namespace")
        charged = make_report("chargeback", source, "user")
        [whole] = make_report("usage", source, "node").rows
    for row in found.rows:
        part = [one for one in actors if one.name.startswith(row["namespace"])]
        assert row["containers"] == len(part)
        assert row["gpu_seconds"] == pytest.approx(sum(one.received for one in part), rel=1e-3)
        assert row["gib_hours"] * HOUR == pytest.approx(
            sum(one.gib_seconds for one in part), rel=1e-3
        )
        assert row["requested_gib_hours"] * HOUR == pytest.approx(
            sum(one.quota_gib_seconds for one in part), rel=1e-3
        )
    assert len(found.rows) == 2
    for key in ("gpu_seconds", "gib_hours", "requested_gpu_seconds", "denied", "card_seconds"):
        assert found.total[key] == pytest.approx(sum(row[key] for row in found.rows), rel=1e-9)
        assert whole[key] == pytest.approx(found.total[key], rel=1e-9)
    assert found.total["containers"] == len(actors)
    assert [row["user"] for row in charged.rows] == ["", "77001", "77002"]
    assert charged.total["gpu_seconds"] == pytest.approx(
        sum(one.received for one in actors), rel=1e-3
    )


def test_usage_is_per_container_card_and_label(tmp_path: Path) -> None:
    actors = [
        Actor("train", steady(2, 25), cards=(0, 1), labels={"team": FORMULA}),
        Actor("serve", steady(1, 10), isolation="exclusive", quota=140, cores=0),
    ]
    record(tmp_path, actors, 2 * HOUR)
    with read(tmp_path, 0, 3 * HOUR) as source:
        serve, train = sorted(rows(make_report("usage", source)), key=lambda row: row["container"])
        cards = rows(make_report("usage", source, "card"))
        report = make_report("usage", source, "label:team")
        teams = rows(report)
        with pytest.raises(UserError, match="--by nobody: not one of container"):
            make_report("usage", source, "nobody")
    assert train == {
        "container": "train",
        "containers": 1,
        "card_seconds": pytest.approx(4 * HOUR, rel=1e-3),
        "gpu_seconds": pytest.approx(HOUR, rel=1e-3),
        "requested_gpu_seconds": pytest.approx(2 * HOUR, rel=1e-3),
        "compute_ratio": pytest.approx(0.5, rel=1e-3),
        "gib_hours": pytest.approx(8, rel=1e-3),
        "requested_gib_hours": pytest.approx(16, rel=1e-3),
        "memory_ratio": pytest.approx(0.5),
        "peak_bytes": 2 * GIB,
        "throttled_seconds": 0,
        "denied": 0,
    }
    # Of a whole card, all compute is requested.
    assert serve["requested_gpu_seconds"] == pytest.approx(2 * HOUR, rel=1e-3)
    assert [(row["card"], row["containers"]) for row in cards] == [("0", 2), ("1", 1)]
    assert {row["label:team"]: row["containers"] for row in teams} == {FORMULA: 1, "": 1}
    table = csv.DictReader(io.StringIO(FORMATS["csv"](report), newline=""))
    written = {row["label:team"]: float(row["gpu_seconds"]) for row in table}
    assert written == {
        f"'{FORMULA}": pytest.approx(HOUR, rel=1e-3),  # a spreadsheet takes it for text
        "": pytest.approx(0.2 * HOUR, rel=1e-3),
    }


def test_waste_is_below_a_part_of_the_request_for_long_enough(tmp_path: Path) -> None:
    actors = [
        # 2 of 3 hours below 30 % of its memory, and always above of its compute.
        Actor("half", lambda at: (1 if at <= 2 * HOUR else 3, 40, 0)),
        Actor("good", steady(3, 45)),
        Actor("short", lambda at: (1 if at <= HOUR / 2 else 3, 45, 0)),
        Actor("slow", steady(3.9, 5), cards=(1,)),
        # Its compute is not known, which is no waste.
        Actor("unknown", steady(3.9, 0), cards=(1,), cores=0),
    ]
    record(tmp_path, actors, 3 * HOUR)
    with read(tmp_path, 0, 4 * HOUR) as source:
        found = rows(make_report("waste", source))
    with read(tmp_path, 0, 4 * HOUR, below=0.1, least_seconds=60) as source:
        assert rows(make_report("waste", source)) == []
    with read(tmp_path, 0, 4 * HOUR, least_seconds=600) as source:
        [all_of_it] = make_report("waste", source, "node").rows
    half, slow = found
    assert (half["container"], half["card"], slow["container"]) == ("half", "0", "slow")
    assert half["memory_below_seconds"] == pytest.approx(2 * HOUR, rel=1e-2)
    assert half["compute_below_seconds"] == 0
    assert half["memory_ratio"] == pytest.approx(5 / 12, rel=1e-2)
    assert half["wasted_gib_hours"] == pytest.approx(7, rel=1e-2)
    assert slow["memory_below_seconds"] == 0
    assert slow["compute_below_seconds"] == pytest.approx(3 * HOUR, rel=1e-3)
    assert slow["wasted_gpu_seconds"] == pytest.approx(0.45 * 3 * HOUR, rel=1e-3)
    assert all_of_it["memory_below_seconds"] == pytest.approx(2.5 * HOUR, rel=1e-2)


def test_a_gap_is_neither_waste_nor_idle(tmp_path: Path) -> None:
    idle = Actor("idle", steady(1, 0))
    record(tmp_path, [idle], 4 * HOUR, gaps=[(HOUR + 10, 2 * HOUR)])
    with read(tmp_path, 0, 4 * HOUR + 60) as source:
        [waste] = rows(make_report("waste", source))
        report = make_report("idle", source)
    [found] = rows(report)
    assert waste["memory_below_seconds"] == pytest.approx(3 * HOUR, rel=1e-2)
    assert found["idle_seconds"] == pytest.approx(3 * HOUR, rel=1e-2)
    assert found["longest_seconds"] == pytest.approx(2 * HOUR, rel=1e-2)
    assert found["idle_since"] == pytest.approx(T0 + 2 * HOUR, abs=11)
    assert found["idle_gib_hours"] == pytest.approx(3, rel=1e-2)
    assert report.notes[0].startswith("There are no figures for 1 h")


def test_idle_names_who_holds_memory_and_does_nothing(tmp_path: Path) -> None:
    actors = [
        Actor("busy", steady(2, 20)),
        Actor("empty", steady(0, 0)),
        Actor("was", lambda at: (2, 0 if at <= 2 * HOUR else 10, 0)),
        Actor("is", lambda at: (3, 10 if at <= HOUR else 0, 0), cards=(1,)),
        Actor("brief", lambda at: (1, 0 if at % HOUR < 900 else 10, 0)),
    ]
    record(tmp_path, actors, 8 * HOUR)
    with read(tmp_path, 0, 8 * HOUR + 1) as source:
        has, was = rows(make_report("idle", source))
    assert (has["container"], has["card"]) == ("is", "1")
    assert has["longest_seconds"] == pytest.approx(7 * HOUR, abs=301)
    assert has["held_bytes"] == 3 * GIB
    assert (was["container"], was["idle_since"]) == ("was", None)
    assert was["idle_seconds"] == pytest.approx(2 * HOUR, abs=301)


@pytest.mark.parametrize(
    ("basis", "costs"),
    [
        # train: 0.5 GPU hours and 2 GiB hours used, 1 and 8 requested; serve on an A100.
        ("used", {"train": 0.5 * 2 + 2 * 0.1, "serve": 1.6 * 4 + 2 * 0.1}),
        ("requested", {"train": 1 * 2 + 8 * 0.1, "serve": 1 * 4 + 8 * 0.1}),
        ("larger", {"train": 1 * 2 + 8 * 0.1, "serve": 1.6 * 4 + 8 * 0.1}),
    ],
)
def test_costs_are_at_the_prices_of_the_card(
    tmp_path: Path, basis: str, costs: dict[str, float]
) -> None:
    actors = [Actor("train", steady(1, 25)), Actor("serve", steady(1, 80), cards=(1,))]
    record(tmp_path, actors, 2 * HOUR)
    prices = Prices("EUR", basis, Rate(2, 0.1), (("a100", Rate(4, 0.1)),))
    with read(tmp_path, 0, 3 * HOUR, prices=prices) as source:
        report = make_report("chargeback", source, "container")
    assert {row["container"]: row["cost"] for row in report.rows} == pytest.approx(costs, rel=1e-3)
    assert report.total["cost"] == pytest.approx(sum(costs.values()), rel=1e-3)
    assert report.currency == "EUR"
    assert any("GPU hour of a100: 4 EUR" in note for note in report.notes)


def test_peaks_are_of_one_time(tmp_path: Path) -> None:
    # Both have a peak of 10 GiB, at different times, and 11 together.
    actors = [
        Actor("a/x/main", lambda at: (10 if at <= 3000 else 1, 50, 0), quota=12),
        Actor("a/y/main", lambda at: (1 if at <= 3300 else 10, 70, 0), quota=12, begin=600),
        Actor("b/z/main", steady(3, 20), cards=(1,)),
    ]
    record(tmp_path, actors, 9 * HOUR)
    with read(tmp_path, 0, 10 * HOUR) as source:
        cards = {row["card"]: row for row in rows(make_report("peak", source))}
        spaces = {row["namespace"]: row for row in rows(make_report("peak", source, "namespace"))}
        [node] = make_report("peak", source, "node").rows
    assert cards["0"]["used_peak_bytes"] == 11 * GIB
    assert cards["0"]["used_peak_time"] < T0 + 3700
    assert cards["0"]["requested_peak_bytes"] == 24 * GIB
    assert cards["0"]["capacity_bytes"] == 140 * GIB
    assert cards["0"]["peak_ratio"] == pytest.approx(11 / 140, rel=1e-5)
    assert cards["0"]["compute_peak_cards"] == 1
    assert cards["0"]["tenants_peak"] == 2
    assert spaces["a"]["used_peak_bytes"] == 11 * GIB
    assert spaces["a"]["compute_peak_cards"] == 1.2
    assert spaces["a"]["peak_ratio"] == pytest.approx(11 / 24, rel=1e-5)
    assert spaces["b"]["used_p95_bytes"] == 3 * GIB
    assert node["used_peak_bytes"] == 14 * GIB
    assert node["capacity_bytes"] == 280 * GIB


def test_a_card_that_was_exchanged_is_another_card(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    for at, uuid in ((0, "GPU-old"), (10, "GPU-old"), (3600, "GPU-new"), (3610, "GPU-new")):
        card = made.card(0, uuid=uuid, used_bytes=(at + 1) * MIB)
        store.write(T0 + at, Metrics(cards=[card], tenants=[], node=made.node(started=T0 - HOUR)))
    with read(tmp_path, 0, 2 * HOUR) as source:
        cards = {row["card"]: row for row in rows(make_report("peak", source))}
        [node] = make_report("peak", source, "node").rows
    assert {name: row["used_peak_bytes"] // MIB for name, row in cards.items()} == {
        "GPU-old": 11,
        "0": 3611,
    }
    assert {row["capacity_bytes"] for row in (*cards.values(), node)} == {140 * GIB}
    with read(tmp_path, 0, HOUR / 2) as source:  # and where only the earlier one was seen
        assert [card.name for card in source.cards.values()] == ["GPU-old"]


def test_oom_has_the_memory_before_a_refusal_and_a_crash(tmp_path: Path) -> None:
    def grows(at: float) -> tuple[float, float, int]:
        return min(4.0, at / 600), 50, int(2400 <= at <= 2460)

    actors = [
        Actor("train", grows, end=2470),
        Actor("other", steady(1, 10)),
        Actor("late", lambda at: (3, 10, int(at == 3000)), cards=(0, 1)),
    ]
    record(tmp_path, actors, HOUR)
    events = [
        (1200, "memory-shortfall-reported", {"tenant": "other", "card": UUIDS[0]}),
        (1230, "memory-shortfall-reported", {"tenant": "other", "card": UUIDS[0]}),
        (1800, "card-xid-reported", {"card": UUIDS[1], "xid": 79}),
        (2472, "tenant-released", {"tenant": "train", "reason": "it ended"}),
        (3500, "over-quota-killed", {"tenant": "other", "card": UUIDS[0]}),
    ]
    with read(tmp_path, 0, HOUR, events) as source:
        full, xid, train, late, killed = rows(make_report("oom", source))
        summed = {row["container"]: row for row in make_report("oom", source, "container").rows}
    assert (train["container"], train["kind"], train["refusals"]) == ("train", "over quota", 7)
    assert train["time"] == T0 + 2390
    assert [round(train[f"used_{before}_bytes"] / GIB, 1) for before in ("10m", "5m", "1m")] == [
        3.0,
        3.5,
        3.9,
    ]
    assert (train["used_now_bytes"], train["quota_bytes"]) == (4 * GIB, 4 * GIB)
    assert train["card_used_bytes"] == 8 * GIB
    assert train["exit_seconds"] == 12
    assert (full["kind"], full["refusals"], full["used_5m_bytes"]) == ("card full", 2, GIB)
    assert (xid["kind"], xid["container"], xid["quota_bytes"]) == ("XID 79", "late", 140 * GIB)
    assert (late["card"], late["used_now_bytes"], late["exit_seconds"]) == (None, 6 * GIB, None)
    assert (killed["container"], killed["kind"]) == ("other", "killed")
    assert summed["other"]["incidents"] == 2


def test_compliance_says_how_a_quota_was_enforced(tmp_path: Path) -> None:
    actors = [Actor("train", steady(5, 50)), Actor("miner", steady(1, 50))]
    record(tmp_path, actors, HOUR)
    over = {"tenant": "train", "card": UUIDS[0], "limit_bytes": 4 * GIB}
    events = [
        (100, "over-quota-warned", {**over, "used_bytes": 5 * GIB}),
        (110, "over-quota-frozen", {**over, "used_bytes": 6 * GIB}),
        (400, "over-quota-thawed", {**over, "used_bytes": 3 * GIB}),
        (1000, "over-quota-detected", {**over, "used_bytes": 5 * GIB}),
        (1500, "gate-bypass-detected", {"tenant": "miner", "charged": 10, "driver": 50}),
        (1510, "gate-bypass-frozen", {"tenant": "miner", "reason": "it bypasses"}),
        (1600, "tenant-released", {"tenant": "train"}),
        (1700, "unallocated-container-detected", {"container": "abc", "used_bytes": GIB}),
    ]
    with read(tmp_path, 0, HOUR, events) as source:
        first, second, compute, unknown = rows(make_report("compliance", source))
        report = make_report("compliance", source, "container")
    by = {row["container"]: row for row in report.rows}
    assert "0 of 2 containers were never over their allocation." in report.notes
    assert (first["container"], first["card"], first["kind"]) == ("train", "0", "memory")
    assert (first["used_bytes"], first["limit_bytes"]) == (6 * GIB, 4 * GIB)
    assert (first["action"], first["end"], first["seconds"]) == ("frozen", "cleared", 300)
    assert (second["action"], second["end"], second["seconds"]) == ("observed", "exited", 600)
    assert (compute["kind"], compute["action"], compute["end"]) == ("compute", "frozen", None)
    assert compute["seconds"] == 2100
    assert (unknown["container"], unknown["kind"]) == ("abc", "unallocated")
    assert (unknown["action"], unknown["end"]) == ("warned", None)
    assert (by["train"]["episodes"], by["train"]["seconds"]) == (2, 900)


def test_the_events_that_reports_read_are_kept() -> None:
    read_events = {*COMPLIANCE_EVENTS, *OOM_EVENTS}
    assert read_events <= KEPT.keys()
