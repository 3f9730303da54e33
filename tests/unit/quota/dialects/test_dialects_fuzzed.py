# SPDX-License-Identifier: Apache-2.0
"""Whatever other systems' keys say: a request for no more than that, or a refusal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypeAlias

from gpushare.quota.dialects import DIALECTS, TABLES
from gpushare.quota.dialects.parse import DialectRequest, combine
from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.vendor_key import LOCATIONS, KeyLocation, VendorKey, VendorValue
from gpushare.quota.errors import BadValue, printable
from gpushare.quota.keys import KEYS

PLACES: Final = {
    "{card}": "0123",
    "{container}": ("a", "b"),
    "{model}": ("a10", "t4_16g"),
    "{any}": ("CUDA",),
}
AMOUNTS: Final = ("memory", "memory-percent", "memory-limit", "cores", "count")

CANDIDATES: Final = (
    *map(str, (*range(13), 20, 25, 30, 50, 64, 96, 99, 100, 101, 150, 200, 256, 300, 512)),
    *map(str, (1000, 1024, 2048, 4096, 4097, 8192, 1 << 20, 1 << 30, 5 << 30, 1 << 63, 10**40)),
    "0.5",
    "1.0",
    "0.125",
    "0.25",
    "0.99",
    "0.001",
    "1.5",
    "4Gi",
    "8Gi",
    "4G",
    "6000M",
    "1e9",
    "4g",
    "512m",
    "0m",
    "2048k",
    "0=1G",
    "0=2G,1=512MB",
    "0=4G,1=4G,2=4G",
    "2,1,3",
    "1,0",
    "-1",
    "0,2",
    "GPU-1,GPU-2",
    "all",
    "void",
    "",
    "true",
    "false",
    "online",
    "offline",
    "A10,T4",
    "fixed-share",
    "force",
    "default",
    "bs",
    "fs",
    "sm-sharing",
    "binpack",
    "spread",
    "mps",
)
ROUNDS: Final = 2500

Key: TypeAlias = "tuple[KeyLocation, str, str]"


def reads(row: VendorKey, text: str) -> bool:
    try:
        return row.read(text) is not None
    except BadValue:
        return False


#: What each row reads: what is refused at once shows little.
GOOD: Final = {
    id(row): [text for text in CANDIDATES if reads(row, text)] or CANDIDATES
    for dialect in DIALECTS.values()
    for row in dialect.rows
}


def words(rng: random.Random) -> list[Key]:
    """Return a few keys of one to three vendors, mostly of those that gpushare has a key for."""
    keys = []
    for dialect in rng.sample(list(DIALECTS.values()), rng.choice((1, 1, 2, 3))):
        giving = [row for row in dialect.rows if row.key] or dialect.rows
        for _ in range(rng.randint(1, 5)):
            row = rng.choice(giving if rng.random() < 0.9 else dialect.rows)
            keys.append((row.where, _name(row, rng), _text(row, rng)))
    return keys


def _name(row: VendorKey, rng: random.Random) -> str:
    name = row.name
    for place, texts in PLACES.items():
        name = name.replace(place, rng.choice(texts))
    return name


def _text(row: VendorKey, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.92:
        return rng.choice(GOOD[id(row)])
    if kind < 0.97:
        return rng.choice(CANDIDATES)
    return "".join(rng.choice("0123456789=,.:-gGmMi%\n\0 \u0663\ud800x") for _ in range(5))


def found(keys: list[Key]) -> list[VendorValue]:
    texts: dict[KeyLocation, dict[str, str]] = {where: {} for where in LOCATIONS}
    for where, name, text in keys:
        texts[where][name] = text
    return [word for where in LOCATIONS for word in TABLES.find(where, texts[where])]


def test_any_values_are_a_request_for_at_most_their_amounts_or_a_refusal_by_name() -> None:
    rng, given = random.Random(0), 0
    for _ in range(ROUNDS):
        keys = words(rng)
        strict, position = rng.random() < 0.3, rng.choice((None, 0, 1, 7))
        said = combine(
            found(keys), strict=strict, position=position, container=rng.choice(("", "a", "b"))
        )
        for spoken in said:
            for problem in spoken.problems:
                told = str(problem.error)
                assert problem.source is not None
                assert printable(problem.source.name) in told
                assert printable(problem.error.value or "", 80).replace('"', '\\"') in told
            for key, asked in spoken.layer.items():
                assert asked.value == KEYS[key].parse(asked.text)
                assert asked.source in {word.source for word in spoken.words}
            if not spoken.problems:
                refuse_more(spoken, position)
                given += bool(spoken.layer)
    assert given > ROUNDS // 4, "nearly all is refused: this shows nothing"


def refuse_more(spoken: DialectRequest, position: int | None) -> None:
    """Fail where a card, or all of them together, get more than one of the words says."""
    count = spoken.layer.get("count")
    cards = 1 if count is None else int(count.text)
    for word, amount in amounts(spoken, position):
        asked = spoken.layer.get(word.row.key)
        if asked is None or not isinstance(asked.value, (int, Fraction)) or word.row.fraction_of:
            continue
        given = asked.value * cards if word.row.summed else asked.value
        assert given <= amount, f"{word.name}={word.text} gives {spoken.layer}"


def amounts(spoken: DialectRequest, position: int | None) -> Iterator[tuple[VendorValue, Fraction]]:
    """Yield what each word of an amount says by itself: of several by card the least."""
    for word in spoken.words:
        if word.row.key not in AMOUNTS or "nothing" in spoken.meant.get(word.name, ""):
            continue
        try:
            amount = word.row.read(word.text)
        except BadValue:
            continue
        if isinstance(amount, ByContainer):
            if position is None or position >= len(amount.amounts):
                continue
            amount = amount.amounts[position]
        if isinstance(amount, ByCard):
            amount = min(amount.amounts.values())
        if isinstance(amount, Fraction):
            yield word, amount
