# SPDX-License-Identifier: Apache-2.0
"""`gpushare card mig`: plans MIG instances. Only NVIDIA's tools change a card's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.mig_layout import (
    InstanceKind,
    Layout,
    LayoutCard,
    LayoutRequest,
    best_layout,
)
from gpushare.cli.text import printable, table
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpushare.cli.session import Session
    from gpushare.protocol.mig import MigCard, MigRequest

HEADS: Final = ("CARD", "PROFILE", "ID", "PLACEMENT", "MEMORY", "FOR")
NO_REQUESTS: Final = (
    "no container waits for a GPU. To plan for one that does not run yet, add --request 10GiB"
)
NO_PLACE: Final = "no place is left on the cards that MIG can divide"
NOT_EXACT: Final = "There are too many combinations to try all of them: a better layout may exist."
FROM_GUIDE: Final = (
    "Placements on cards that are not in MIG mode are those of NVIDIA's MIG user guide. To check "
    "them after the switch, run nvidia-smi mig -i CARD -lgipp."
)


@shared.group("mig", example="gpushare card mig plan --request 10GiB")
def group() -> None:
    """Plan the MIG instances of a card."""


@shared.command("plan", example="gpushare card mig plan --request 10GiB --request 40GiB")
@click.option(
    "--request",
    "requests",
    multiple=True,
    metavar="SPEC",
    help="Also plan for this request: a size, or keys such as memory=10GiB,cores=20. Repeatable.",
)
def plan(session: Session, requests: tuple[str, ...]) -> None:
    """Show which MIG instances would fit the requests that are waiting.

    The plan gives each request an instance of its own: as many requests as possible, with as little
    of the cards as possible. It respects the placements that the driver allows, and leaves existing
    instances and cards in use as they are. gpushare does not change a layout: run the printed
    commands as root.

    The keys of SPEC are those of a container's request without gpushare.io/, for example
    profile=small or count=1,backend=mig,allow=MIG 1g.18gb. A percentage of memory or compute is a
    percentage of the card. A request for several cards, or for a card by its name, gets no
    instance.

    If the number of combinations is too large to try all of them, the plan says so.
    """
    cards, asked = session.client.mig_options([_spec(text) for text in requests])
    made = best_layout(
        [_layout_card(card) for card in cards if not card["blocked"]],
        [_layout_request(one, cards) for one in asked],
    )
    session.show(_data(cards, asked, made), lambda: _text(cards, asked, made))


def _spec(text: str) -> dict[str, str]:
    """Return a request by key: `10GiB`, or `memory=10GiB,allow=H100,A100,cores=20`."""
    found: dict[str, str] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
            found[key] = value.strip()
        elif key:
            found[key] += f",{part.strip()}"
        else:
            key = "memory"
            found[key] = part.strip()
    return found


def _layout_card(card: MigCard) -> LayoutCard:
    kinds = tuple(
        InstanceKind(
            *(one["id"], one["name"], one["slices"], one["count"]),
            tuple((start, size) for start, size in one["places"]),
        )
        for one in card["profiles"]
    )
    held = tuple((one["profile_id"], one["start"], one["size"]) for one in card["instances"])
    return LayoutCard(card["uuid"], kinds, card["mig_mode"], held)


def _layout_request(one: MigRequest, cards: Sequence[MigCard]) -> LayoutRequest:
    usable = {card["uuid"] for card in cards if not card["blocked"]}
    kinds = {uuid: frozenset(found) for uuid, found in one["profiles"].items() if uuid in usable}
    return LayoutRequest(one["name"], kinds, frozenset(one["instances"]))


def _data(cards: Sequence[MigCard], asked: Sequence[MigRequest], made: Layout) -> dict[str, Any]:
    """Return the plan for --json."""
    return {
        "cards": [
            {
                **{key: card[key] for key in ("index", "uuid", "model", "mig_mode")},
                "blocked": card["blocked"],
                "fix": card["fix"],
                "placement_source": card["placement_source"],
                "create": [
                    {
                        "profile": one.kind.name,
                        "profile_id": one.kind.number,
                        "start": one.start,
                        "size": one.size,
                        "request": asked[one.request]["name"],
                    }
                    for one in made.created
                    if one.card == card["uuid"]
                ],
                "commands": _commands(card, made),
            }
            for card in cards
        ],
        "existing": [
            {"uuid": uuid, "request": asked[request]["name"]}
            for uuid, request in made.reused.items()
        ],
        "unserved": [
            {"request": one["name"], "requested": one["request"], "reason": why}
            for one, why in _unserved(cards, asked, made)
        ],
        "exact": made.is_exact,
    }


def _commands(card: MigCard, made: Layout) -> list[str]:
    """Return what creates the planned instances of a card, none if there are none.

    Each is created at its placement. The largest come first: a list with a smaller instance before
    a 3g one fails (MIG user guide, known issues).
    """
    mine = [one for one in made.created if one.card == card["uuid"]]
    if not mine:
        return []
    mine.sort(key=lambda one: (-one.size, -one.kind.slices, one.start))
    profiles = ",".join(f"{one.kind.number}:{one.start}" for one in mine)
    create = f"nvidia-smi mig -i {card['index']} -cgi {profiles} -C"
    return [create] if card["mig_mode"] else [f"nvidia-smi -i {card['index']} -mig 1", create]


def _unserved(
    cards: Sequence[MigCard], asked: Sequence[MigRequest], made: Layout
) -> Iterator[tuple[MigRequest, str]]:
    """Yield each request that gets no instance, and why."""
    blocked = {card["uuid"]: card for card in cards if card["blocked"]}
    for number, one in enumerate(asked):
        if number in made.served:
            continue
        others = [blocked[uuid] for uuid in one["profiles"] if uuid in blocked]
        why = one["refusal"] or NO_PLACE
        if others:
            why += f"; it would fit card {', '.join(str(card['index']) for card in others)}"
        yield one, why


def _text(cards: Sequence[MigCard], asked: Sequence[MigRequest], made: Layout) -> str:
    if not asked:
        return NO_REQUESTS
    parts = []
    rows = list(_rows(cards, asked, made))
    if rows:
        parts.append(table(HEADS, rows))
    commands = [line for card in cards for line in _commands(card, made)]
    if commands:
        parts.append("To create the instances, run as root:\n" + _indented(commands))
    unserved = [printable(f"{_for(one)}: {why}") for one, why in _unserved(cards, asked, made)]
    if unserved:
        parts.append("Without an instance:\n" + _indented(unserved))
    blocked = [_blocked(card) for card in cards if card["blocked"]]
    if blocked:
        parts.append("Cards that are left as they are:\n" + _indented(blocked))
    switched = {one.card for one in made.created}
    if any(card["uuid"] in switched and card["placement_source"] == "guide" for card in cards):
        parts.append(FROM_GUIDE)
    if not made.is_exact:
        parts.append(NOT_EXACT)
    return "\n\n".join(parts)


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _blocked(card: MigCard) -> str:
    text = f"card {card['index']} ({card['model']}) {card['blocked']}"
    return printable(f"{text}. Run: {card['fix']}" if card["fix"] else text)


def _rows(
    cards: Sequence[MigCard], asked: Sequence[MigRequest], made: Layout
) -> Iterator[tuple[str, ...]]:
    by_uuid: Mapping[str, MigCard] = {card["uuid"]: card for card in cards}
    for card in cards:
        names = {one["id"]: one["name"] for one in card["profiles"]}
        sizes = {one["id"]: one["memory_bytes"] for one in card["profiles"]}
        for held in card["instances"]:
            request = made.reused.get(held["uuid"]) if held["uuid"] else None
            use = "(exists)" if request is None else f"{_for(asked[request])} (exists)"
            yield (
                *(str(card["index"]), names[held["profile_id"]], str(held["profile_id"])),
                *(f"{held['start']}:{held['size']}", format_size(sizes[held["profile_id"]]), use),
            )
        for new in sorted(made.created, key=lambda one: one.start):
            if by_uuid[new.card] is not card:
                continue
            yield (
                *(str(card["index"]), new.kind.name, str(new.kind.number)),
                *(f"{new.start}:{new.size}", format_size(sizes[new.kind.number])),
                _for(asked[new.request]),
            )


def _for(one: MigRequest) -> str:
    return printable(f"{one['name']} ({one['request']})")


group.add_command(plan)
