# SPDX-License-Identifier: Apache-2.0
"""One request to the control socket: its fields as they must be, who sent it, what answers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.daemon.identity.caller import Place
from gpushare.daemon.node import Node
from gpushare.quota.errors import quoted


class BadRequest(ValueError):
    """A field that is missing or is not what it has to be."""


class Forbidden(Exception):
    """Not for this caller; the text says for whom."""


class UnknownTenant(Exception):
    """No tenant, or several, by that name."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = list(candidates)


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says (SO_PEERCRED); and where it lives."""

    pid: int
    uid: int
    place: Place = "host"

    @property
    def is_root(self) -> bool:
        """Whether it may change what others have."""
        return self.uid == 0


@dataclass(frozen=True)
class Request:
    """One request: its fields, who sent it, and the descriptors that came with it."""

    fields: Mapping[str, Any]
    peer: Peer
    fds: tuple[int, ...] = ()

    def text(self, name: str, most: int = 4096) -> str:
        """Return a text field; BadRequest where it is none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value or len(value) > most or "\0" in value:
            raise BadRequest(f"{name} is not a text of 1 to {most} characters")
        return value

    def number(self, name: str, low: int, high: int) -> int:
        """Return a whole number of `low`..`high`; BadRequest where it is none."""
        value = self.fields.get(name)
        if type(value) is not int or not low <= value <= high:
            raise BadRequest(f"{name} is not a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return a true or false; false where it is not there."""
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise BadRequest(f"{name} is neither true nor false")
        return value

    def matched(self, name: str, pattern: re.Pattern[str]) -> str:
        """Return a text field that is all `pattern`."""
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise BadRequest(f"{name} {quoted(value)} is not like {pattern.pattern}")
        return value

    def refuse_tenants(self) -> None:
        """Raise Forbidden where a container's process asks, or one that is gone."""
        if self.peer.place == "tenant":
            raise Forbidden(
                "this socket is the host's, and not for containers: unmount it there; what a "
                "container has is what nvidia-smi shows in it"
            )
        if self.peer.place == "gone":
            raise Forbidden("the process that connected has ended: nobody knows who asks")

    def root_only(self) -> None:
        """Raise Forbidden where the caller is not root."""
        if not self.peer.is_root:
            raise Forbidden(f"{self.fields.get('op')} is for root; use sudo")


# An answer: rows, and what stands beside `ok` in the final packet.
Answer = tuple[Iterator[Mapping[str, Any]], Mapping[str, Any]]
_NO_ROWS: Final[tuple[Mapping[str, Any], ...]] = ()


@dataclass(frozen=True)
class Operation:
    """What an op does, and whether it changes anything."""

    run: Callable[[Request, Node], Answer]
    changes: bool = False


def answer(fields: Mapping[str, Any] | None = None) -> Answer:
    """Return an answer of no rows, with `fields` beside `ok`."""
    return iter(_NO_ROWS), fields or {}
