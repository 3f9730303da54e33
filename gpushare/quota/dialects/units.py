# SPDX-License-Identifier: Apache-2.0
"""How the texts of vendors are read: each unit a constant that tables name.

An amount is in the canonical key's own unit: bytes of memory, percent of a card, cards. What is no
number is the canonical text. None: the text is fine and says nothing (HAMi's `0m` is no limit).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Final, TypeAlias

from gpushare.quota.errors import BadValue
from gpushare.quota.keys import MAX_CARDS, parse_capabilities
from gpushare.quota.size import MAX_BYTES

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class ByCard:
    """An amount for each of several cards, by their index in the container."""

    amounts: Mapping[int, Fraction]


@dataclass(frozen=True)
class ByContainer:
    """An amount for each container of a pod, in their order."""

    amounts: tuple[Fraction, ...]


Amount: TypeAlias = "Fraction | str | ByCard | ByContainer | None"


@dataclass(frozen=True)
class Unit:
    """A unit: its name for people, and `read`, which raises BadValue.

    `step` is what a total must divide into on each card: 1 GiB where the vendor counts in GiB.
    """

    name: str
    read: Callable[[str], Amount]
    step: Fraction = Fraction(1)


_INTEGER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def _whole(text: str, what: str, fix: str = "write a whole number") -> int:
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped):
        raise BadValue(f"is not {what}", fix)
    return int(stripped)


def _memory(size: int, shown: str, *, zero_is_nothing: bool = False) -> Unit:
    def read(text: str) -> Amount:
        amount = _whole(text, f"a whole number of {shown}")
        if not amount:
            if zero_is_nothing:
                return None
            raise BadValue(
                "must be greater than zero", "write 1 or more, or omit the key to request no GPU"
            )
        if amount * size > MAX_BYTES:
            raise BadValue("exceeds the memory of any card", f"write a number of {shown}")
        return Fraction(amount * size)

    return Unit(shown, read, Fraction(size))


def _number(low: int, high: int, what: str, *, zero_is_nothing: bool = False) -> Unit:
    def read(text: str) -> Amount:
        fix = f"write a whole number from {low} to {high}"
        amount = _whole(text, what, fix)
        if zero_is_nothing and not amount:
            return None
        if not low <= amount <= high:
            raise BadValue(f"is not {what}", fix)
        return Fraction(amount)

    return Unit(what, read)


def _choice(name: str, values: Mapping[str, str | None]) -> Unit:
    """Return a unit of words; each is the canonical text, or None where it says nothing."""

    def read(text: str) -> Amount:
        stripped = text.strip()
        if stripped in values:
            return values[stripped]
        close = get_close_matches(stripped.casefold(), values, n=1, cutoff=0.6)
        fix = f"did you mean {close[0]}?" if close else "write one of " + ", ".join(values)
        raise BadValue("is not a valid value", fix)

    return Unit(name, read)


def _names(text: str) -> Amount:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise BadValue("has an empty item in its list", "separate the names with single commas")
    return ",".join(dict.fromkeys(items))


# --- memory ---

MIBS: Final = _memory(MIB, "MiB")
MIBS_OR_ALL: Final = _memory(MIB, "MiB", zero_is_nothing=True)
GIBS: Final = _memory(GIB, "GiB")
UNITS_OF_256_MIB: Final = _memory(256 * MIB, "units of 256 MiB")
UNITS_OF_128_MIB: Final = _memory(128 * MIB, "units of 128 MiB")
BYTES: Final = _memory(1, "bytes")

_LETTERS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB}
_BINARY: Final = re.compile(r"([0-9]{1,19})([kKmMgG]?)", re.ASCII)


def _binary_size(text: str) -> Amount:
    match = _BINARY.fullmatch(text.strip())
    if match is None:
        raise BadValue("is not a size", "write e.g. 4g, 4096m or 4194304k")
    size = int(match[1]) * _LETTERS[match[2].lower()]
    if size > MAX_BYTES:
        raise BadValue("exceeds the memory of any card", "write e.g. 4g")
    return Fraction(size) if size else None


#: HAMi's: `1g`, `1024m`, `1048576k`, or bytes; all binary; 0 is no limit.
BINARY_SIZE: Final = Unit("g, m, k or bytes, binary", _binary_size)


_PINNED: Final = re.compile(r"([0-9]{1,3})=([0-9]{1,19})([kKmMgG])[bB]?", re.ASCII)


def _pinned(text: str) -> Amount:
    amounts: dict[int, Fraction] = {}
    for item in text.strip().strip("'").split(","):
        match = _PINNED.fullmatch(item.strip())
        if match is None:
            raise BadValue("is not a size for each card by its index", "write e.g. 0=4G,1=512M")
        size = int(match[2]) * _LETTERS[match[3].lower()]
        if not 0 < size <= MAX_BYTES:
            raise BadValue("is not a memory size", "write e.g. 0=4G,1=512M")
        if int(match[1]) in amounts:
            raise BadValue("sets two sizes for one card", "write each card once")
        amounts[int(match[1])] = Fraction(size)
    return ByCard(amounts)


#: MPS: `0=1G,1=512MB`, binary, by the index of the card in the container.
PINNED_BY_CARD: Final = Unit("sizes by card, 0=1G,1=512M, binary", _pinned)

# Quantities of Kubernetes, apimachinery pkg/api/resource.
_SUFFIXES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": 1 << 40,
}
_QUANTITY: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?", re.ASCII)


def _quantity(text: str) -> Amount:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise BadValue("is not a quantity", "write e.g. 4Gi or 4096Mi")
    size = Fraction(match[1]) * _SUFFIXES[match[2] or ""]
    if not size or size > MAX_BYTES:
        raise BadValue("is not a size of memory", "write e.g. 4Gi or 4096Mi")
    return Fraction(int(size))


#: As Kubernetes reads it: `4Gi` binary, `4G` decimal, a bare number bytes.
QUANTITY: Final = Unit("a Kubernetes quantity", _quantity)


def _quantity_or_part(text: str) -> Amount:
    stripped = text.strip()
    return None if re.fullmatch(r"0?\.[0-9]+|1(\.0*)?", stripped) else _quantity(stripped)


#: As QUANTITY; up to `1` it is a part of a card, which is no size.
QUANTITY_OR_PART: Final = Unit("a Kubernetes quantity, or a fraction of a card", _quantity_or_part)


def without_suffix(text: str) -> str:
    """Return a count in full: an API server writes a round thousand as `3k`.

    No card has a million of any unit: 3M is a mistake.
    """
    match = re.fullmatch(r"([0-9]{1,6})k", text.strip(), re.ASCII)
    return text if match is None else f"{match[1]}000"


# --- parts of a card ---

PERCENT: Final = _number(1, 100, "percent of a card")
PERCENT_OR_ANY: Final = _number(1, 100, "percent of a card, 0 for any", zero_is_nothing=True)
#: 1..100 is a part of a card, N x 100 are N whole cards.
PERCENT_OR_CARDS: Final = _number(1, 1600, "percent of a card, or N x 100 for N whole cards")


#: A number that only means something beside another (Row.over).
PARTS: Final = _number(1, 10**9, "a whole number")


def _decimal(text: str, what: str, fix: str) -> Fraction:
    stripped = text.strip()
    if not _DECIMAL.fullmatch(stripped):
        raise BadValue(f"is not {what}", fix)
    return Fraction(stripped)


def _below_one(text: str) -> Amount:
    part = _decimal(text, "a part of a card", "write e.g. 0.5")
    if not 0 < part < 1:
        raise BadValue("is not above 0 and below 1", "write e.g. 0.5")
    return part * 100


#: `0.5` is half of a card's memory; a whole card is asked for otherwise.
PART: Final = Unit("a part of a card, below 1", _below_one)


def _up_to_one(text: str) -> Amount:
    part = _decimal(text, "a part of a card", "write 0 to 1, e.g. 0.5")
    if part > 1:
        raise BadValue("is more than one card", "write 0 to 1, e.g. 0.5")
    return part * 100 or None


#: `0.5` is half a card, `1.0` all of it, `0` nothing in particular.
PART_UP_TO_ONE: Final = Unit("a part of a card, 0 to 1", _up_to_one)


def _cap(text: str) -> Amount:
    percent = _decimal(text, "percent of a card", "write 1 to 100")
    if not 0 < percent <= 100:
        raise BadValue("is not percent of a card", "write 1 to 100")
    return None if percent == 100 else percent


#: A bound and no share: 100 bounds nothing, and is no whole card.
PERCENT_CAP: Final = Unit("percent of a card, 100 for no limit", _cap)


def _part_beside_cards(text: str) -> Amount:
    stripped = text.strip()
    if not _DECIMAL.fullmatch(stripped) or Fraction(stripped) >= 1:
        return None  # WHOLE_CARDS says what is wrong with it
    return Fraction(stripped) * 100 or None


#: `0.5`; a whole number is another row's.
PART_BESIDE_CARDS: Final = Unit("a part of a card, below 1", _part_beside_cards)


def _whole_cards(text: str) -> Amount:
    stripped = text.strip()
    if _DECIMAL.fullmatch(stripped) and Fraction(stripped) < 1:
        return None
    return CARDS.read(stripped)


#: As CARDS; 0 is none, and `0.5` another row's.
WHOLE_CARDS: Final = Unit("a number of cards", _whole_cards)

# --- the rest ---

CARDS_MOST: Final = MAX_CARDS
CARDS: Final = _number(1, CARDS_MOST, "a number of cards")
WEIGHT: Final = _number(1, 1000, "a weight")
#: Containers of one card.
CLIENTS: Final = _number(2, 48, "a number of containers from 2 to 48")


def _mig_instances(text: str) -> Amount:
    count = _whole(text, "a number of MIG instances")
    if count > 1:
        rule = f"requests {count} MIG instances, but a program can use only one"
        raise BadValue(rule, "write 1, and a larger profile or more containers")
    return Fraction(count) if count else None


#: CUDA gives a program one instance, whatever it is allocated (MIG user guide, "Device Names").
MIG_INSTANCES: Final = Unit("one MIG instance", _mig_instances)


def _cards_or_all(text: str) -> Amount:
    if text.strip().casefold() == "all":
        raise BadValue(
            "means every card of the node, but gpushare requires a number", "write e.g. 8"
        )
    return CARDS.read(text)


#: As CARDS; `all` is refused with the reason.
CARDS_OR_ALL: Final = Unit("a number of cards", _cards_or_all)


def _access(text: str) -> Amount:
    return "best-effort" if _whole(text, "a number of turns") else None


#: So many replicas of a shared card: several are no larger share than one.
ACCESS: Final = Unit("a number of time slices on a card", _access)


def _visible(text: str) -> Amount:
    """Read NVIDIA_VISIBLE_DEVICES, also as a list of CDI names or a directory of mounts."""
    stripped = text.strip()
    if stripped in ("", "all", "none", "void") or stripped.startswith("/"):
        return None
    if re.fullmatch(r"no-gpu-has-[0-9]+[A-Za-z]*-to-run", stripped):
        rule = "is an error of ACK's device plugin, which found no card with that memory"
        raise BadValue(rule, "request less, or see the plugin's log on the node")
    # As NVIDIA's toolkit: it passes over an empty item, and a card may be listed twice
    # (libnvidia-container, src/cli/common.c).
    items = [item.rpartition("=")[2].strip() for item in stripped.split(",")]
    names = dict.fromkeys(item for item in items if item)
    return None if "all" in names else ",".join(names) or None


#: Images set `all` themselves, which is no user's choice of cards.
VISIBLE: Final = Unit("indices or UUIDs; all, none and void select none", _visible)
NAMES: Final = Unit("names, separated by commas", _names)
CAPABILITIES: Final = Unit(
    "compute capabilities: 8.0+, or comparisons such as >=8.0",
    lambda text: ",".join(parse_capabilities(text)),
)
TEXT: Final = Unit("text", lambda text: text.strip() or None)


def _by_container(text: str) -> Amount:
    places = [_whole(place, "a number of cards for each container") for place in text.split(",")]
    if max(places) > CARDS_MOST:
        raise BadValue(
            "exceeds the maximum number of cards of a container", f"write {CARDS_MOST} or less"
        )
    return ByContainer(tuple(map(Fraction, places)))


#: `2,0,3`: cards for each container of the pod, in their order.
CARDS_BY_CONTAINER: Final = Unit("a number of cards for each container", _by_container)

_MGPU_CARDS: Final = 8  # of a container, at most
_HUNDREDTHS: Final = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}", re.ASCII)


def _percent_or_hundredths(text: str) -> Amount:
    stripped = text.strip()
    if "." not in stripped:
        amount = PERCENT_OR_CARDS.read(stripped)
        if isinstance(amount, Fraction) and amount <= _MGPU_CARDS:
            rule = f"may be {amount} percent of a card, and the number of cards"
            raise BadValue(rule, f"write 0.0{amount} for percent, or {amount}00 for cards")
        return amount
    if not _HUNDREDTHS.fullmatch(stripped) or not Fraction(stripped):
        fix = "write percent, e.g. 30, or cards with two decimals at most, e.g. 0.3"
        raise BadValue("is neither a percentage nor a number of cards", fix)
    return Fraction(stripped) * 100


#: `30` percent of a card, `200` two cards; or cards as a console has it, `0.3`. There `2` is two
#: cards too, and in Volcano's design 2 percent: neither is guessed.
PERCENT_OR_HUNDREDTHS: Final = Unit("percent of a card, or cards as 0.3", _percent_or_hundredths)


def _switch(text: str) -> Amount:
    stripped = text.strip().casefold()
    if stripped not in {"1", "true", "0", "false", ""}:
        raise BadValue("is not a valid value", "write 1 or 0")
    return "on" if stripped in {"1", "true"} else None


#: A switch that says nothing where it is off.
SWITCH: Final = Unit("1 or true, 0 or false", _switch)


def first_of(name: str, values: Mapping[str, str | None]) -> Unit:
    """Return a unit of words with commas between: the first that says something holds."""
    single = _choice(name, values)

    def read(text: str) -> Amount:
        amounts = [single.read(word) for word in str(_names(text)).split(",")]
        return next((amount for amount in amounts if amount is not None), None)

    return Unit(name, read)


def choice(name: str, values: Mapping[str, str | None]) -> Unit:
    """Return a unit of a vendor's own words, each with the canonical text that it comes to."""
    return _choice(name, values)
