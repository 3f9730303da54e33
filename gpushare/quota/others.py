# SPDX-License-Identifier: Apache-2.0
"""Which other systems' requests a node takes: `dialects` in gpushare.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["strict", "lenient"]
Others: TypeAlias = Literal["refuse", "ignore"]


@dataclass(frozen=True)
class Dialects:
    """How other systems' requests are read.

    `accept` has the names of the dialects that are taken, None: all. A request in another one is
    refused, or with `others` "ignore" is as if it were not there: what is asked and cannot be held
    must not look as if it were, so who wants that has to say so. `where` has for each key of the
    file where the file says it.
    """

    mode: Mode = "lenient"
    accept: frozenset[str] | None = None
    others: Others = "refuse"
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    def takes(self, name: str) -> bool:
        """Whether requests in dialect `name` are taken."""
        return self.accept is None or name in self.accept

    def said(self, key: str) -> str:
        """Return `dialects.accept`, and where the file has it where that is known."""
        return f"dialects.{key}" + (f" ({self.where[key]})" if key in self.where else "")
