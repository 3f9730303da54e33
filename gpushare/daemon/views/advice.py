# SPDX-License-Identifier: Apache-2.0
"""Advice for a report of `gpushare why`: one sentence each, the most urgent first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.protocol import TenantEviction, Why, WhyCard, WhyProcess
from gpushare.quota.size import exact_size, format_size

_STEP: Final = 256 << 20  # step of a suggested larger quota
_MUCH: Final = 10  # unused memory of a tenth of the quota is worth a sentence
_MOST_PIDS: Final = 8


def advice_for(report: Why, holders: Sequence[WhyProcess]) -> list[str]:
    """Return advice for `report`, whose processes are `holders`; none if nothing is wrong.

    A whole card has no account, so there is no advice for it.
    """
    if report["isolation"] == "exclusive":
        return []
    if report["evicted"] is not None:
        return list(_evicted(report["name"], report["evicted"]))
    of_cards = [
        sentence for card in report["cards"] for sentence in _of_card(report, card, holders)
    ]
    return [*of_cards, *_unaccounted(holders)]


def _evicted(name: str, evicted: TenantEviction) -> Iterator[str]:
    size = format_size(evicted["bytes"])
    if evicted["state"] == "failed":
        yield (
            f"the driver can neither keep nor restore the GPU memory of the container "
            f"({evicted['error']}): gpushare stop {name}"
        )
        return
    yield (
        f"{size} of the memory is in host memory. It goes back to a card when the program uses "
        "CUDA and a card has room"
        if not evicted["held"]
        else f"{size} of the memory is in host memory until gpushare restore {name}"
    )
    if evicted["waits_since"] is not None:
        yield (
            "the program waits for its memory: the card has no room. Stop or evict another "
            "container, or move one to another card"
        )


def _of_card(report: Why, card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    on = f"card {card['index']}: " if len(report["cards"]) > 1 else ""
    for sentence in (
        *_shortfall(card),
        *_over(report, card, holders),
        *_burst(report, card),
        *_too_small(report, card),
        *_cached(report, card),
        *_idle_contexts(card, holders),
        *_orphaned(card, holders),
    ):
        yield on + sentence


def _shortfall(card: WhyCard) -> Iterator[str]:
    shortfall = card["shortfall"]
    if shortfall is not None:
        times = "once" if shortfall["times"] == 1 else f"{shortfall['times']} times"
        yield (
            f"shortfall ({times}): the driver could not provide memory within the quota. Last "
            f"request: {format_size(shortfall['bytes'])}. Another container or process uses more "
            "than its part of the card: see gpushare ps and gpushare history"
        )


def _over(report: Why, card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    over = card["used_bytes"] - card["current_limit_bytes"]
    if over <= 0:
        return
    most = max(holders, key=lambda row: _held_on(row, card), default=None)
    largest = f" (process {_pid(most)} uses most)" if most and _held_on(most, card) else ""
    change = _enlarge(report, card, card["used_bytes"])
    yield (
        f"the container is {format_size(over)} over quota: allocations fail until usage fits the "
        f"quota. Free memory{largest}" + (f", or {change}" if change else "")
    )


def _burst(report: Why, card: WhyCard) -> Iterator[str]:
    burst = min(card["used_bytes"], card["current_limit_bytes"]) - card["quota_bytes"]
    if burst > 0:
        change = _enlarge(report, card, card["used_bytes"])
        yield (
            f"{format_size(burst)} is burst memory. It is not reclaimed, but once the card is "
            "full, this container is refused first"
            + (f". To reserve it, {change}" if change else "")
        )


def _too_small(report: Why, card: WhyCard) -> Iterator[str]:
    last = report["last_denied_allocation"]
    if last is None or not last["bytes"]:
        return
    free = card["current_limit_bytes"] - card["used_bytes"]
    if 0 <= free < last["bytes"]:
        change = _enlarge(report, card, card["used_bytes"] + last["bytes"])
        yield (
            f"to fit the last denied allocation, {change} (gpushare ls shows the card's available "
            "memory)"
            if change
            else f"the last denied allocation, {format_size(last['bytes'])}, does not fit the "
            f"card beside what the container uses: the card has "
            f"{format_size(card['card_memory_bytes'])}"
        )


def _enlarge(report: Why, card: WhyCard, size: int) -> str:
    """Return the command for a quota of `size`; "" if that is more than the card has.

    Sizes come from what the tenant claims, and the advice is for root.
    """
    rounded, most = _rounded_up(size), card["card_memory_bytes"]
    if most and size > most:
        return ""
    return f"run gpushare set {report['name']} --memory {exact_size(min(rounded, most or rounded))}"


def _is_short(report: Why, card: WhyCard) -> bool:
    """Whether the container is over quota, or its last refused allocation would fail again."""
    last = report["last_denied_allocation"]
    return card["current_limit_bytes"] - card["used_bytes"] < (0 if last is None else last["bytes"])


def _cached(report: Why, card: WhyCard) -> Iterator[str]:
    cached, is_short = card["pool_cached_bytes"], _is_short(report, card)
    if cached and (is_short or cached * _MUCH >= card["quota_bytes"]):
        yield (
            f"memory pools keep {format_size(cached)} of unused memory: torch.cuda.empty_cache() "
            "or cuMemPoolTrimTo releases it"
        )
    buffers = card["kinds"]["buffers"]
    if is_short and buffers * 2 >= card["used_bytes"]:
        yield (
            "most of the memory is buffers. A framework caches freed buffers: "
            "torch.cuda.empty_cache() releases them"
        )


def _idle_contexts(card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    """Name processes that hold only a context, unless it is the tenant's only process."""
    idle = [
        (row, held["bytes"])
        for row in holders
        for held in row["cards"]
        if held["index"] == card["index"] and set(held["kinds"]) == {"contexts"}
        # A process that maps memory of another process is not idle.
        if not held["imported_bytes"]
    ]
    size = format_size(sum(size for _, size in idle))
    if len(holders) == 1:
        return
    if len(idle) == 1:
        yield f"process {_pid(idle[0][0])} holds only a context ({size})"
    elif idle:
        pids = _pids([row for row, _ in idle])
        yield f"{len(idle)} processes hold only a context ({size}): {pids}"


def _orphaned(card: WhyCard, holders: Sequence[WhyProcess]) -> Iterator[str]:
    orphaned = card["kinds"]["orphaned"]
    if orphaned:
        users = [
            row
            for row in holders
            if any(
                held["index"] == card["index"] and held["imported_bytes"] for held in row["cards"]
            )
        ]
        yield (
            f"{format_size(orphaned)} is shared memory whose creator has exited. It is freed once "
            f"no process maps it ({_pids(users)})"
        )


def _unaccounted(holders: Sequence[WhyProcess]) -> Iterator[str]:
    unallocated = [(row, _seen_of(row)) for row in holders if not row["accounted"]]
    unallocated.sort(key=lambda container: -container[1])
    for row, size in unallocated[:_MOST_PIDS]:
        yield (
            f"process {_pid(row)} ({row['name']}) uses {format_size(size)} without an account: it "
            "bypasses the interposer library. Its memory counts as unaccounted"
        )
    rest = unallocated[_MOST_PIDS:]
    if rest:
        total = format_size(sum(size for _, size in rest))
        yield f"this also applies to {len(rest)} more processes ({total})"


def _seen_of(row: WhyProcess) -> int:
    """Return a process's memory on all cards according to the driver."""
    return sum(held["driver_bytes"] or 0 for held in row["cards"])


def _held_on(row: WhyProcess, card: WhyCard) -> int:
    return sum(held["bytes"] for held in row["cards"] if held["index"] == card["index"])


def _pid(row: WhyProcess) -> str:
    return f"{row['container_pid']} (in the container)" if row["pid"] is None else str(row["pid"])


def _pids(rows: Sequence[WhyProcess]) -> str:
    return ", ".join([*map(_pid, rows[:_MOST_PIDS]), *(["..."] if rows[_MOST_PIDS:] else [])])


def _rounded_up(size: int) -> int:
    return -(-size // _STEP) * _STEP
