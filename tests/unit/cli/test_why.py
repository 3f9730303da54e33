# SPDX-License-Identifier: Apache-2.0
"""What `gpushare why` shows of a report."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.protocol import CODE_UNKNOWN, Why, WhyCard, WhyHeld, WhyProcess

from .conftest import CARD, GIB
from .fake_daemon import FakeDaemon, Reply, refusal, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    Cli = Callable[..., Result]

MIB = 1 << 20
PARTS = {
    "buffers": GIB,
    "managed": 0,
    "pools": 2 * GIB,
    "physical": 0,
    "arrays": 0,
    "graphs": 0,
    "modules": 12 * MIB,
    "limits": 0,
    "external": 0,
    "contexts": 524 * MIB,
    "orphaned": 0,
    "beyond": 40 * MIB,
}
USED = sum(PARTS.values())

WHY = """\
train  card 0  NVIDIA H200  3.5/4.0 GiB
  buffers        1073741824  1 GiB
  pools          2147483648  2 GiB      1.5 GiB of it free, kept for later
  modules          12582912  12 MiB
  contexts        549453824  524 MiB    1, 524 MiB each
  beyond           41943040  40 MiB     the driver has it beside the account
  used           3825205248  3.5 GiB    the sum
  quota          4294967296  4 GiB
  free            469762048  448 MiB
  exported       1073741824  1 GiB      of used: its other processes may map it
  driver         3825205248  3.5 GiB    its own figure
  drift           +41943040  +40 MiB
  The driver has 40 MiB more than the account says; it counts as beyond.

PID   INSIDE  NAME    HELD     MOST OF IT   DRIVER   DENIED
4242  1       python  3.5 GiB  pools 2 GiB  3.5 GiB  2

2 allocations refused; the last, of 2 GiB, to process 1 in the container.
- its memory pools keep 1.5 GiB that nobody uses: torch.cuda.empty_cache() or
  cuMemPoolTrimTo gives it back
"""


def card(**more: Any) -> WhyCard:
    made: WhyCard = {
        "index": 0,
        "uuid": CARD["uuid"],
        "model": CARD["model"],
        "memory_bytes": 4 * GIB,
        "memory_limit_bytes": 4 * GIB,
        "limit_bytes": 4 * GIB,
        "used_bytes": USED,
        "parts": dict(PARTS),
        "contexts": 1,
        "context_bytes": 524 * MIB,
        "pool_kept_bytes": 1536 * MIB,
        "exported_bytes": GIB,
        "imported_bytes": 0,
        "expected_bytes": USED - 40 * MIB,
        "driver_bytes": USED,
        "drift_bytes": 40 * MIB,
        "drift": "the driver has 40 MiB more than the account says; it counts as beyond",
        "lacked": None,
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def process(**more: Any) -> WhyProcess:
    held: WhyHeld = {
        "index": 0,
        "bytes": USED - 40 * MIB,
        "parts": {part: size for part, size in PARTS.items() if size and part != "beyond"},
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
        "why": "",
        "isolation": "interposer",
        "stale": "",
        "cards": [card()],
        "denied": 2,
        "last_denied": {"bytes": 2 * GIB, "container_pid": 1, "seen": None},
        "advice": [
            (
                "its memory pools keep 1.5 GiB that nobody uses: torch.cuda.empty_cache() or "
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


def test_it_shows_what_adds_up_then_who_holds_it_and_what_to_do(
    cli: Cli, daemon: FakeDaemon
) -> None:
    daemon.answers["why"] = answer(report(), process())
    result = cli("why", "train")
    assert (result.exit_code, result.output) == (0, WHY)
    assert daemon.requests == [{"op": "why", "name": "train"}]


def test_the_lines_above_used_add_up_to_it(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["why"] = answer(report())
    shown = re.findall(r"^  (\w+) +(\d+) ", cli("why", "train").output, re.MULTILINE)
    above = shown[: [what for what, _ in shown].index("used")]
    assert sum(int(size) for _, size in above) == int(dict(shown)["used"]) == USED


def test_no_line_is_wider_than_a_terminal(cli: Cli, daemon: FakeDaemon) -> None:
    all_of_it = card(
        parts=dict.fromkeys(PARTS, 140 * GIB),
        used_bytes=12 * 140 * GIB,
        memory_limit_bytes=6 * GIB,
        limit_bytes=5 * GIB,
        imported_bytes=140 * GIB,
    )
    daemon.answers["why"] = answer(
        report(cards=[all_of_it]),
        process(pid=4194304, container_pid=4194304, name="torch-distribut", denied=99),
    )
    lines = cli("why", "train").output.splitlines()
    assert max(map(len, lines)) <= 80
    words = [line.split()[0] for line in lines if line.startswith("  ")]
    assert {"orphaned", "lent", "over", "imported"} <= set(words)
    assert "free" not in words


def test_of_many_processes_those_that_hold_most_are_shown(cli: Cli, daemon: FakeDaemon) -> None:
    many = [process(pid=number) for number in range(1000, 1300)]
    daemon.answers["why"] = answer(report(), *many)
    shown = cli("why", "train").output
    assert re.findall(r"^(\d{4}) ", shown, re.MULTILINE) == [str(n) for n in range(1000, 1020)]
    assert "\nand 280 that hold less; --json has all\n" in shown
    assert len(json.loads(cli("why", "train", "--json").output)["processes"]) == 300


def test_a_command_to_type_stays_on_one_line(cli: Cli, daemon: FakeDaemon) -> None:
    command = "gpushare set a-container-of-a-long-name --memory 6656MiB"
    daemon.answers["why"] = answer(report(advice=[f"for what was refused it takes: {command}"]))
    lines = cli("why", "train").output.splitlines()
    assert lines[-2:] == ["- for what was refused it takes:", f"  {command}"]


def test_json_has_all_of_it_and_the_processes_in_it(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["why"] = answer(report(), process())
    shown = json.loads(cli("why", "train", "--json").output)
    assert shown == {**report(), "processes": [process()]}


def test_what_was_read_in_another_systems_words_stands_last(cli: Cli, daemon: FakeDaemon) -> None:
    note = 'HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4g" is memory 4GiB'
    daemon.answers["why"] = answer(report(notes=[note]))
    assert cli("why", "train").output.endswith(f"\nof what it asked for:\n  {note}\n")


def test_a_whole_card_has_no_parts_and_no_drift(cli: Cli, daemon: FakeDaemon) -> None:
    parts = {**dict.fromkeys(PARTS, 0), "beyond": 3 * GIB}
    whole = card(
        parts=parts, used_bytes=3 * GIB, context_bytes=0, drift="a whole card has no account"
    )
    stranger = process(accounted=False, cards=[])
    daemon.answers["why"] = answer(
        report(cards=[whole], isolation="exclusive", advice=[], denied=0, last_denied=None),
        stranger,
    )
    lines = cli("why", "train").output.splitlines()
    assert lines[1:5] == [
        "  used           3221225472  3 GiB",
        "  card           4294967296  4 GiB",
        "  free           1073741824  1 GiB",
        "  A whole card has no account.",
    ]
    assert not any("refused" in line for line in lines)
    assert re.search(r"^4242 +1 +python +- +- +- +2$", "\n".join(lines), re.MULTILINE)


def test_of_who_got_no_gpu_it_says_why(cli: Cli, daemon: FakeDaemon) -> None:
    none = report(state="none", cards=[], why="add -e GPUSHARE_MEMORY=4GiB")
    daemon.answers["why"] = answer(none)
    result = cli("why", "train")
    assert (result.exit_code, result.output) == (
        *(0, "train has no GPU: add -e GPUSHARE_MEMORY=4GiB\n"),
    )


def test_without_a_driver_there_is_nothing_to_tell(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["why"] = answer(report(cards=[]))
    assert cli("why", "train").output == (
        "train has a share, and gpushared no driver to ask; gpushare doctor says why\n"
    )


@pytest.mark.parametrize(("seen", "when"), [(None, ""), (1763700000.0, r" at \d\d:\d\d:\d\d")])
def test_the_last_refusal_has_its_time_where_it_is_known(
    cli: Cli, daemon: FakeDaemon, seen: float | None, when: str
) -> None:
    last = {"bytes": 2 * GIB, "container_pid": 7, "seen": seen}
    daemon.answers["why"] = answer(report(denied=1, last_denied=last))
    said = cli("why", "train").output
    assert re.search(
        rf"^1 allocation refused; the last{when}, of 2 GiB, to process 7 ", said, re.MULTILINE
    )


def test_old_figures_of_the_driver_are_said_to_be_old(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["why"] = answer(report(stale="no answer within 5 s"))
    assert "The driver's figures are old: no answer within 5 s.\n" in cli("why", "train").output


def test_a_container_that_is_not_there_is_an_error_with_candidates(
    cli: Cli, daemon: FakeDaemon
) -> None:
    daemon.answers["why"] = refusal(CODE_UNKNOWN, "no container is called", candidates=["train"])
    result = cli("why", "tra")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "gpushare: no container is called\n  train\n"


def test_without_a_daemon_it_says_how_to_start_it(cli: Cli, tmp_path: Path) -> None:
    result = cli("--socket", str(tmp_path / "nowhere"), "why", "train")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "gpushared is not running" in result.stderr
