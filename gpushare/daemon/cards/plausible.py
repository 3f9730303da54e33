# SPDX-License-Identifier: Apache-2.0
"""What the worker said, as a sample: the one place where its figures are doubted.

A figure that cannot be makes all of the look worthless: Implausible, and nobody is judged by it.
What a driver does in earnest is no lie: a process that it does not know the memory of, one that is
listed by number though it has ended (its memory is still taken), the same one in both lists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.daemon.cards.card import Card, Generation, Implausible, Sample, Use
from gpushare.daemon.cards.topology import NO_LINKS, Links, of_facts
from gpushare.host.numa import Numa

_PID_MOST: Final = 1 << 22  # Linux, include/linux/threads.h: PID_MAX_LIMIT
#: What the sum over processes may be beyond the card's own figure: rounding, and what one of them
#: gave back while the driver was counting.
_SUM_SLACK_BYTES: Final = 1 << 30
_PERCENT: Final = 100


@dataclass(frozen=True)
class Loaded:
    """What a driver said of itself when its library was loaded."""

    driver_version: str
    cuda_version: str
    cards: tuple[Card, ...]
    generation: Generation
    limits: bool
    totals: Mapping[str, int]  # bytes in all, by uuid
    lost: tuple[str, ...] = ()  # of cards that do not even say who they are: why
    links: Links = NO_LINKS


def loaded(answer: Mapping[str, Any]) -> Loaded:
    """Return what was said at the loading; Implausible."""
    try:
        cards = tuple(_card(said) for said in answer["cards"])
        parts = tuple(
            (str(said["uuid"]), _parts(said))
            for said in answer["cards"]
            if said["parts"] is not None
        )
        generation = Generation(
            str(answer["driver"]), tuple((card.index, card.uuid) for card in cards), parts
        )
        lost = tuple(str(said["error"]) for said in answer["lost"])
        totals = {str(said["uuid"]): int(said["total"]) for said in answer["cards"]}
        found = Loaded(
            generation.driver,
            str(answer["cuda"]),
            cards,
            generation,
            bool(answer["limits"]),
            totals,
            lost,
            _links(answer),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Implausible(f"the driver tells of its cards in no known way: {error!r}") from error
    if len({card.uuid for card in cards}) < len(cards):
        raise Implausible("the driver has two cards of one UUID")
    return found


def _links(answer: Mapping[str, Any]) -> Links:
    """Return where the cards are; not known where it is told in no known way.

    All that depends on it is how good a place is, so no driver is refused for it.
    """
    try:
        return of_facts(answer["near"], Numa().node_of)
    except (KeyError, TypeError, ValueError):
        return NO_LINKS


def sample(answer: Mapping[str, Any], of: Loaded) -> Sample:
    """Return a look at the cards `of` a loaded library; Implausible.

    Its generation is of what is there now: where that is another one, the caller loads anew.
    """
    taken_ns = time.monotonic_ns()
    uses: dict[str, tuple[Use, ...]] = {}
    health: dict[str, str] = {}
    busy: dict[str, int] = {}
    used: dict[str, int] = {}
    try:
        cards = [said for said in answer["cards"] if said["uuid"]]
        for said in cards:
            uuid = str(said["uuid"])
            if "error" in said:
                health[uuid] = str(said["error"])
                continue
            uses[uuid] = _uses(said, of.totals.get(uuid))
            used[uuid] = int(said["used"])
            percent = said.get("busy")
            if isinstance(percent, int) and 0 <= percent <= _PERCENT:
                busy[uuid] = percent
        generation = Generation(
            str(answer["driver"]),
            tuple((int(said["index"]), str(said["uuid"])) for said in cards),
            _parts_now(cards, of.generation),
            of.generation.loads,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Implausible(f"the driver answers in no known way: {error!r}") from error
    return Sample(taken_ns, uses, health, busy, generation, used=used)


def xids(answer: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return uuid and number of each XID that has come; Implausible."""
    try:
        return tuple((str(uuid), int(number)) for uuid, number in answer["xids"])
    except (KeyError, TypeError, ValueError) as error:
        raise Implausible(f"the driver tells XIDs in no known way: {error!r}") from error


def _parts_now(
    cards: list[Mapping[str, Any]], before: Generation
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the parts of each card under MIG; one that does not answer has what it had."""
    known = dict(before.parts)
    found = []
    for said in cards:
        uuid = str(said["uuid"])
        if "error" in said:
            if uuid in known:
                found.append((uuid, known[uuid]))
        elif said["parts"] is not None:
            found.append((uuid, _parts(said)))
    return tuple(found)


def _card(said: Mapping[str, Any]) -> Card:
    return Card(
        index=int(said["index"]),
        uuid=str(said["uuid"]),
        model=str(said["model"]),
        memory_bytes=int(said["memory"]),
        minor=int(said["minor"]),
        datacenter=bool(said["datacenter"]),
        brand=str(said["brand"]),
        capability=_capability(said["capability"]),
    )


def _capability(said: Any) -> tuple[int, int] | None:
    if said is None:
        return None
    major, minor = said
    return int(major), int(minor)


def _parts(said: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(part) for part in said["parts"])


def _uses(said: Mapping[str, Any], was: int | None) -> tuple[Use, ...]:
    """Return what each process holds; Implausible where that cannot be."""
    name = f"card {said['index']}"
    total, used = int(said["total"]), int(said["used"])
    if not 0 <= used <= total:
        raise Implausible(f"{name}: {used} bytes of {total} are used")
    if was is not None and total != was:
        raise Implausible(f"{name}: it has {total} bytes in all, and had {was}")
    lists = [_held(said[kind], name, total) for kind in ("compute", "graphics")]
    shares = {int(pid): int(percent) for pid, percent in said["shares"]}
    held: dict[int, int | None] = {}
    for one in lists:
        for pid, size in one.items():
            before = held.get(pid)
            # In both lists with the same figure, or with what it took between the two.
            held[pid] = size if before is None else max(before, size or 0)
    together = sum(size or 0 for size in held.values())
    if together > used + _SUM_SLACK_BYTES:
        raise Implausible(f"{name}: its processes hold {together} bytes, and it {used}")
    known = {pid: share for pid, share in shares.items() if 0 <= share <= _PERCENT}
    return tuple(Use(pid, size, known.get(pid)) for pid, size in sorted(held.items()))


def _held(entries: Any, name: str, total: int) -> dict[int, int | None]:
    """Return the bytes by pid of one list; a process in several parts of a card holds their sum."""
    by_place: dict[tuple[int, int | None], int | None] = {}
    for pid, size, part in entries:
        if not 0 < pid <= _PID_MOST:
            raise Implausible(f"{name}: there is no process {pid}")
        if size is not None and not 0 <= size <= total:
            raise Implausible(f"{name}: process {pid} holds {size} bytes of {total}")
        if by_place.get((pid, part), size) != size:
            raise Implausible(
                f"{name}: process {pid} is listed with {by_place[pid, part]} bytes and with {size}"
            )
        by_place[pid, part] = size
    held: dict[int, int | None] = {}
    for (pid, _), size in by_place.items():
        before = held.get(pid, 0)
        held[pid] = None if size is None or before is None else before + size
    return held
