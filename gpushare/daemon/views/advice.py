# SPDX-License-Identifier: Apache-2.0
"""What whoever reads a report of `gpushare why` may do: one sentence each, the pressing first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.protocol import Why, WhyCard, WhyProcess
from gpushare.quota import exact_size, format_size

_STEP: Final = 256 << 20  # in which a larger quota is suggested
_MUCH: Final = 10  # a tenth of the quota is worth a sentence
_MOST_PIDS: Final = 8


def advice(report: Why, holders: Sequence[WhyProcess]) -> list[str]:
    """Return what to do about `report`, whose processes are `holders`; nothing where all is well.

    Of whole cards, which have no account, there is nothing to say.
    """
    if report["isolation"] == "exclusive":
        return []
    of_cards = [
        sentence for card in report["cards"] for sentence in _of_card(report, card, holders)
    ]
    return [*of_cards, *_strangers(holders)]


def _of_card(report: Why, card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    on = f"card {card['index']}: " if len(report["cards"]) > 1 else ""
    for sentence in (
        *_lacked(card),
        *_over(report, card, holders),
        *_borrowed(report, card),
        *_too_small(report, card),
        *_kept(report, card),
        *_idle_contexts(card, holders),
        *_orphaned(card, holders),
    ):
        yield on + sentence


def _lacked(card: WhyCard) -> Iterator[str]:
    lack = card["lacked"]
    if lack is not None:
        times = "once" if lack["times"] == 1 else f"{lack['times']} times"
        yield (
            f"the driver had not got what it was promised, {times}, the last time "
            f"{format_size(lack['bytes'])}: somebody else has more than its part of the card; "
            "gpushare ps and gpushare history say who"
        )


def _over(report: Why, card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    over = card["used_bytes"] - card["limit_bytes"]
    if over <= 0:
        return
    most = max(holders, key=lambda row: _held_on(row, card), default=None)
    who = f" (process {_pid(most)} holds most)" if most and _held_on(most, card) else ""
    size = exact_size(_rounded_up(card["used_bytes"]))
    yield (
        f"it has {format_size(over)} more than it may: nothing is given until it fits; "
        f"free some{who}, or: gpushare set {report['name']} --memory {size}"
    )


def _borrowed(report: Why, card: WhyCard) -> Iterator[str]:
    borrowed = min(card["used_bytes"], card["limit_bytes"]) - card["memory_bytes"]
    if borrowed > 0:
        size = exact_size(_rounded_up(card["used_bytes"]))
        yield (
            f"{format_size(borrowed)} is borrowed above its quota: nobody takes it away, but once "
            "the card is full this container is refused first; to have it promised: "
            f"gpushare set {report['name']} --memory {size}"
        )


def _too_small(report: Why, card: WhyCard) -> Iterator[str]:
    last = report["last_denied"]
    if last is None or not last["bytes"]:
        return
    free = card["limit_bytes"] - card["used_bytes"]
    if 0 <= free < last["bytes"]:
        size = exact_size(_rounded_up(card["used_bytes"] + last["bytes"]))
        yield (
            f"for what was refused last it takes {size}: gpushare set {report['name']} "
            f"--memory {size} (gpushare ls says what the card has left)"
        )


def _is_short(report: Why, card: WhyCard) -> bool:
    """Whether it is over, or would be refused again what it was refused last."""
    last = report["last_denied"]
    return card["limit_bytes"] - card["used_bytes"] < (0 if last is None else last["bytes"])


def _kept(report: Why, card: WhyCard) -> Iterator[str]:
    kept, is_short = card["pool_kept_bytes"], _is_short(report, card)
    if kept and (is_short or kept * _MUCH >= card["memory_bytes"]):
        yield (
            f"its memory pools keep {format_size(kept)} that nobody uses: torch.cuda.empty_cache() "
            "or cuMemPoolTrimTo gives it back"
        )
    buffers = card["parts"]["buffers"]
    if is_short and buffers * 2 >= card["used_bytes"]:
        yield (
            "most of it is buffers; a framework keeps freed ones for itself: "
            "torch.cuda.empty_cache() gives them back"
        )


def _idle_contexts(card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    """Name who holds a context and nothing else, where it is not all that the tenant does."""
    idle = [
        (row, held["bytes"])
        for row in holders
        for held in row["cards"]
        if held["index"] == card["index"] and set(held["parts"]) == {"contexts"}
        # Who maps what another has made does something with it.
        if not held["imported_bytes"]
    ]
    size = format_size(sum(size for _, size in idle))
    if len(holders) == 1:
        return
    if len(idle) == 1:
        yield f"process {_pid(idle[0][0])} holds a context and nothing else, {size}"
    elif idle:
        pids = _pids([row for row, _ in idle])
        yield f"{len(idle)} processes hold a context and nothing else, {size}: {pids}"


def _orphaned(card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    orphaned = card["parts"]["orphaned"]
    if orphaned:
        who = [
            row
            for row in holders
            if any(
                held["index"] == card["index"] and held["imported_bytes"] for held in row["cards"]
            )
        ]
        yield (
            f"{format_size(orphaned)} is shared memory whose maker has ended: free once no process "
            f"maps it any more ({_pids(who)})"
        )


def _strangers(holders: Sequence[WhyProcess]) -> Iterator[str]:
    strangers = [(row, _seen_of(row)) for row in holders if not row["accounted"]]
    strangers.sort(key=lambda stranger: -stranger[1])
    for row, size in strangers[:_MOST_PIDS]:
        yield (
            f"process {_pid(row)} ({row['name']}) has {format_size(size)} and no account: it "
            "did not go through the filter libraries; what it has counts as beyond"
        )
    rest = strangers[_MOST_PIDS:]
    if rest:
        yield f"so it is with {len(rest)} more, {format_size(sum(size for _, size in rest))}"


def _seen_of(row: WhyProcess) -> int:
    """Return what the driver says that a process has, of all cards."""
    return sum(held["driver_bytes"] or 0 for held in row["cards"])


def _held_on(row: WhyProcess, card: WhyCard) -> int:
    return sum(held["bytes"] for held in row["cards"] if held["index"] == card["index"])


def _pid(row: WhyProcess) -> str:
    return f"{row['container_pid']} (in the container)" if row["pid"] is None else str(row["pid"])


def _pids(rows: Sequence[WhyProcess]) -> str:
    return ", ".join([*map(_pid, rows[:_MOST_PIDS]), *(["..."] if rows[_MOST_PIDS:] else [])])


def _rounded_up(size: int) -> int:
    return -(-size // _STEP) * _STEP
