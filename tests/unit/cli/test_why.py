# SPDX-License-Identifier: Apache-2.0
"""What `gpushare why` shows of a report."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.cli.text import local_time
from gpushare.protocol.rows import Why, WhyCard, WhyProcess, WhyProcessCard
from tests.unit.rows import GIB, tenant_card

from .conftest import CARD
from .fake_daemon import AnsweringDaemon, Reply, rows

if TYPE_CHECKING:
    from .conftest import Cli

MIB = 1 << 20
PARTS = {
    "buffers": GIB,
    "managed": 0,
    "pools": 2 * GIB,
    "physical": 0,
    "arrays": 0,
    "graphs": 0,
    "modules": 12 * MIB,
    "context_limits": 0,
    "external": 0,
    "contexts": 524 * MIB,
    "orphaned": 0,
    "unaccounted": 40 * MIB,
}
USED = sum(PARTS.values())

WHY = """\
train  card 0  NVIDIA H200  3.5/4.0 GiB
  buffers        1073741824  1 GiB
  pools          2147483648  2 GiB      1.5 GiB of it unused, kept for later
  modules          12582912  12 MiB
  contexts        549453824  524 MiB    1, 524 MiB each
  unaccounted      41943040  40 MiB     reported only by the driver
  used           3825205248  3.5 GiB    total
  quota          4294967296  4 GiB
  available       469762048  448 MiB
  exported       1073741824  1 GiB      part of used; other processes can map it
  driver         3825205248  3.5 GiB    reported by the driver
  drift           +41943040  +40 MiB
  The driver reports 40 MiB more than the account. It counts as unaccounted.

PID   CONTAINER PID  NAME    MEMORY   LARGEST KIND  DRIVER   DENIED
4242  1              python  3.5 GiB  pools 2 GiB   3.5 GiB  2

2 allocations were denied, most recently 2 GiB for process 1 in the container.
- its memory pools keep 1.5 GiB of unused memory: torch.cuda.empty_cache() or
  cuMemPoolTrimTo gives it back
"""


def card(**more: Any) -> WhyCard:
    made: WhyCard = {
        **tenant_card(),
        "model": CARD["model"],
        "card_memory_bytes": CARD["memory_bytes"],
        "used_bytes": USED,
        "kinds": dict(PARTS),
        "bytes_per_context": 524 * MIB,
        "pool_cached_bytes": 1536 * MIB,
        "exported_bytes": GIB,
        "imported_bytes": 0,
        "expected_bytes": USED - 40 * MIB,
        "driver_bytes": USED,
        "drift_bytes": 40 * MIB,
        "drift_text": "the driver reports 40 MiB more than the account. It counts as unaccounted",
        "shortfall": None,
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def process(**more: Any) -> WhyProcess:
    held: WhyProcessCard = {
        "index": 0,
        "bytes": USED - 40 * MIB,
        "kinds": {part: size for part, size in PARTS.items() if size and part != "unaccounted"},
        "contexts": 1,
        "exported_bytes": GIB,
        "imported_bytes": 0,
        "driver_bytes": USED,
    }
    made: WhyProcess = {
        "pid": 4242,
        "container_pid": 1,
        "name": "python",
        "accounted": True,
        "denied": 2,
        "denied_bytes": 2 * GIB,
        "cards": [held],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def report(**more: Any) -> Why:
    made: Why = {
        "key": "0123456789abcdef",
        "id": "4f5e6d7c8b9a" + "0" * 52,
        "name": "train",
        "state": "bound",
        "reason": "",
        "isolation": "interposer",
        "idle_since": None,
        "eviction": None,
        "stale_reason": "",
        "cards": [card()],
        "denied_allocations": 2,
        "last_denied_allocation": {"bytes": 2 * GIB, "container_pid": 1, "seen": None},
        "advice": [
            (
                "its memory pools keep 1.5 GiB of unused memory: torch.cuda.empty_cache() or "
                "cuMemPoolTrimTo gives it back"
            )
        ],
        "notes": [],
        "processes": [],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def answer(found: Why, *processes: WhyProcess) -> list[Reply]:
    """Return the packets of a report, and of its processes before it."""
    return [*rows(*processes)[:-1], {"ok": True, "why": found}]


def test_managed_memory_beyond_the_quota_is_a_figure_of_its_own(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    more = {"oversubscribed_bytes": 3 * GIB, "oversubscribed_limit_bytes": 8 * GIB}
    daemon.answers["why"] = [{"ok": True, "why": report(cards=[card(**more)])}]
    lines = cli("why", "train").output.splitlines()
    [line] = [line for line in lines if line.startswith("  oversubscribed ")]
    assert line.split()[1:4] == [str(3 * GIB), "3", "GiB"]
    assert line.endswith("managed memory beside used, at most 8 GiB: oversubscribe")
    assert "without managed" in cli("why", "train").output


def test_it_shows_the_kinds_then_the_processes_and_the_advice(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    daemon.answers["why"] = answer(report(), process())
    result = cli("why", "train")
    assert (result.exit_code, result.output) == (0, WHY)
    assert daemon.requests == [{"op": "why", "name": "train"}]


def test_no_line_is_wider_than_a_terminal(cli: Cli, daemon: AnsweringDaemon) -> None:
    all_of_it = card(
        kinds=dict.fromkeys(PARTS, 140 * GIB),
        used_bytes=12 * 140 * GIB,
        burst_limit_bytes=6 * GIB,
        limit_bytes=5 * GIB,
        imported_bytes=140 * GIB,
    )
    daemon.answers["why"] = answer(
        report(cards=[all_of_it]),
        process(pid=4194304, container_pid=4194304, name="torch-distribut", denied=99),
    )
    lines = cli("why", "train").output.splitlines()
    assert max(map(len, lines)) <= 80
    words = re.findall(r"^  (\w[\w ]*?) +[+-]?\d", "\n".join(lines), re.MULTILINE)
    assert {"orphaned", "burst", "over quota", "context limits", "imported"} <= set(words)
    assert "available" not in words


def test_of_many_processes_those_that_hold_most_are_shown(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    many = [process(pid=number) for number in range(1000, 1300)]
    daemon.answers["why"] = answer(report(), *many)
    shown = cli("why", "train").output
    assert re.findall(r"^(\d{4}) ", shown, re.MULTILINE) == [str(n) for n in range(1000, 1020)]
    assert "\nand 280 smaller ones; --json lists all\n" in shown
    assert len(json.loads(cli("why", "train", "--json").output)["processes"]) == 300


def test_json_has_all_of_it_and_the_processes_in_it(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["why"] = answer(report(), process())
    shown = json.loads(cli("why", "train", "--json").output)
    assert shown == {**report(), "processes": [process()]}


def test_a_whole_card_has_no_parts_and_no_drift(cli: Cli, daemon: AnsweringDaemon) -> None:
    parts = {**dict.fromkeys(PARTS, 0), "unaccounted": 3 * GIB}
    whole = card(
        kinds=parts,
        used_bytes=3 * GIB,
        bytes_per_context=0,
        drift_text="a whole card has no account",
    )
    stranger = process(accounted=False, cards=[])
    daemon.answers["why"] = answer(
        report(
            cards=[whole],
            isolation="exclusive",
            advice=[],
            denied_allocations=0,
            last_denied_allocation=None,
        ),
        stranger,
    )
    lines = cli("why", "train").output.splitlines()
    assert lines[1:5] == [
        "  used           3221225472  3 GiB",
        "  card           4294967296  4 GiB",
        "  available      1073741824  1 GiB",
        "  A whole card has no account.",
    ]
    assert not any("denied" in line.lower() and "PID" not in line for line in lines)
    assert re.search(r"^4242 +1 +python +- +- +- +2$", "\n".join(lines), re.MULTILINE)


@pytest.mark.parametrize(("seen", "when"), [(None, ""), (1763700000.0, r" at \d\d:\d\d:\d\d")])
def test_the_last_refusal_has_its_time_where_it_is_known(
    cli: Cli, daemon: AnsweringDaemon, seen: float | None, when: str
) -> None:
    last = {"bytes": 2 * GIB, "container_pid": 7, "seen": seen}
    daemon.answers["why"] = answer(report(denied_allocations=1, last_denied_allocation=last))
    said = cli("why", "train").output
    assert re.search(
        rf"^1 allocation was denied, most recently 2 GiB{when} for process 7 in the\s",
        said,
        re.MULTILINE,
    )


def test_an_idle_container_is_shown_with_since_when(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["why"] = answer(report(idle_since=1763700000.0))
    told = f"Idle since {local_time(1763700000.0)}: it does not use its cards.\n"
    assert told in cli("why", "train").output


def test_stale_driver_figures_are_marked(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["why"] = answer(report(stale_reason="no answer within 5 s"))
    assert (
        "The driver's figures are out of date: no answer within 5 s.\n"
        in cli("why", "train").output
    )


def test_for_an_unallocated_container_it_shows_the_reason(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    none = report(state="none", cards=[], reason="add -e GPUSHARE_MEMORY=4GiB")
    daemon.answers["why"] = answer(none)
    result = cli("why", "train")
    assert (result.exit_code, result.output) == (
        0,
        "train has no GPU: add -e GPUSHARE_MEMORY=4GiB\n",
    )
