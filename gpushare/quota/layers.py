# SPDX-License-Identifier: Apache-2.0
"""One source beneath another: it may ask for less than what is granted above it, never for more.

What is granted is more than the keys that are set: who is given whole cards has all of them, and
who is given memory and says no more has one card, without cores set aside for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpushare.quota.errors import printable, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.quota import Asked, Layer

_OTHER_FORM: Final = {"memory": "memory-percent", "memory-percent": "memory"}
_PARTS_OF_A_CARD: Final = frozenset({"memory", "memory-percent", "memory-limit", "cores"})
_MODEST: Final = {"class": "offline", "oversubscribe": "none"}


@dataclass
class Granted:
    """What the sources read so far grant, and what those below them did not get.

    `cards` names whoever put cards into the spec before any source was read; empty: nobody.
    """

    layer: Layer
    notes: list[str]
    cards: str = ""

    @property
    def something(self) -> bool:
        """Whether anything is granted at all."""
        return bool(self.layer or self.cards)

    @property
    def whole(self) -> bool:
        """Whether whole cards are granted."""
        if "cores" in self.layer:
            return self.layer["cores"].value == 100
        asks_cards = bool(self.cards) or not self.layer.keys().isdisjoint(("count", "devices"))
        return asks_cards and not self.has_memory

    @property
    def has_memory(self) -> bool:
        """Whether memory is granted, in either form."""
        return not self.layer.keys().isdisjoint(_OTHER_FORM)

    def merge(self, lower: Layer, *, shrink_only: bool = False) -> None:
        """Put `lower` beneath what is granted; `shrink_only`: it may not ask where nobody else did.

        Of the keys of one layer none comes before another: each is held against what was granted
        above all of them.
        """
        higher = Granted(dict(self.layer), [], self.cards)
        for name, asked in lower.items():
            refusal = higher.why_not(name, asked, shrink_only=shrink_only)
            if refusal is not None:
                self.note(asked, refusal)
            elif name not in higher.layer:
                self.layer[name] = asked
            else:
                value = KEYS[name].narrow(higher.layer[name].value, asked.value)
                if value != higher.layer[name].value:
                    self.layer[name] = Asked(asked.text, value, asked.source, asked.written)

    def override(self, operator: Layer) -> None:
        """Put the operator's values in place of others', and leave the rest as it was asked.

        He set them on a container that was given the rest: nothing of it is smaller, or larger,
        when the container starts the next time.
        """
        for name, asked in operator.items():
            for replaced in (name, _OTHER_FORM.get(name)):
                below = self.layer.pop(replaced, None) if replaced else None
                if below is not None and below.source.kind != "default":
                    self.note(below, f"{asked.source} {quoted(asked.shown)} is above it")
            self.layer[name] = asked

    def note(self, asked: Asked, why: str) -> None:
        """Keep that `asked` was not taken: nothing is dropped silently."""
        shown = f"{printable(str(asked.source))} {quoted(asked.shown)}"
        self.notes.append(f"{shown} was not taken: {why}")

    def why_not(self, name: str, asked: Asked, *, shrink_only: bool) -> str | None:
        """Return why a lower source's value is not taken; None when it is, or says the same."""
        if name in self.layer:
            above = self.layer[name]
            if asked.value != above.value == KEYS[name].narrow(above.value, asked.value):
                return f"{above.source} {quoted(above.shown)} is above it"
            return None
        part = self.whole and name in _PARTS_OF_A_CARD
        if shrink_only and not part:
            return "the environment may only shrink what an annotation grants (trust.env)"
        other = _OTHER_FORM.get(name)
        if other in self.layer:
            return f"{self.layer[other].source} says memory in the other form"
        if self.something and self._enlarges(name, asked):
            return f"it would enlarge what {self._who()} grants"
        return None

    def _who(self) -> str:
        return str(next(iter(self.layer.values())).source) if self.layer else self.cards

    def _enlarges(self, name: str, asked: Asked) -> bool:
        """Whether a key that nobody above set would give more than what is granted."""
        if name in {"memory", "memory-percent", "allow", "deny", "placement", "numa"}:
            return False
        if name in _MODEST:
            return asked.value != _MODEST[name]
        if name in {"count", "devices"} and self.cards:
            return False  # what was put into the spec cannot be added to: give() refuses more
        if name == "devices":
            assert isinstance(asked.value, tuple)
            return len(asked.value) > self._count()
        if name in {"memory-limit", "cores"}:
            return not self.whole and (self.has_memory or asked.value == 100)
        return self.has_memory if name == "policy" else True

    def _count(self) -> int:
        """Return the cards that are granted; a source that says nothing of them means one."""
        count = self.layer["count"].value if "count" in self.layer else 1
        assert isinstance(count, int)
        return count
