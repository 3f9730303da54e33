# SPDX-License-Identifier: Apache-2.0
"""The XIDs that gpushared knows (gpushare/xid.py), as entries; and any other."""

from __future__ import annotations

from typing import Final

from gpushare import xid
from gpushare.topics.entry import Entry

GROUP: Final = "XIDs"
_WHERE: Final = (
    "The driver writes it into the kernel's log; `gpushare history --since 1h` has it with the "
    "processes that were on the card, for the driver does not always say which one it was."
)
_PLACED: Final = (
    "The card is unwell from then on: nobody new is placed there and nobody is ended. It is well "
    "again after a reset that gpushared sees, or a restart of gpushared."
)
_NOT_PLACED: Final = (
    "It is logged and counted, and the card stays in use. Neighbours have contexts of their own "
    "and go on."
)
_SEE: Final = ("docs/how-to/card-is-lost.md",)


def entries() -> list[Entry]:
    """Return an entry for each XID that has words of its own, by number."""
    found = {
        **{number: _fatal(number, *said) for number, said in xid.FATAL.items()},
        **{number: _of_a_program(number, what) for number, what in xid.OF_A_PROGRAM.items()},
    }
    return [found[number] for number in sorted(found)]


def unknown(number: int) -> Entry:
    """Return the entry of an XID that gpushare has no words for."""
    what = "An XID for which gpushare has no words of its own."
    do = "- Look the number up in NVIDIA's catalog of XID errors; `dmesg` has the whole line."
    return _entry(number, what, {"why": _WHERE, "here": _NOT_PLACED, "do": do})


def _fatal(number: int, meaning: str, act: str) -> Entry:
    do = (
        "- `gpushare ls` shows the card's health; `sudo gpushare card drain 0` empties it.\n"
        f"- {act[0].upper()}{act[1:]}."
    )
    parts = {"why": _WHERE, "here": _PLACED, "do": do}
    return _entry(number, f"The card's fault: {meaning}.", parts)


def _of_a_program(number: int, meaning: str) -> Entry:
    do = (
        "- Look at the programs that were on the card: one of them has ended with an error of "
        "CUDA.\n- `compute-sanitizer PROGRAM` finds the kernel."
    )
    parts = {"why": _WHERE, "here": _NOT_PLACED, "do": do}
    return _entry(number, f"A program's doing: {meaning}.", parts)


def _entry(number: int, what: str, parts: dict[str, str]) -> Entry:
    return Entry(f"xid-{number}", GROUP, what, number, see=_SEE, parts=parts)
