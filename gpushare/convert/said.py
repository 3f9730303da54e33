# SPDX-License-Identifier: Apache-2.0
"""What the user is told of a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpushare.errors import UserError
from gpushare.manifest import File

#: lost: the target has no word for it. left: it stays, and does no harm. note: to know or to do.
What: TypeAlias = Literal["lost", "left", "note"]


@dataclass(frozen=True)
class Saying:
    """One line for the user: which key of which line, and why."""

    line: int
    key: str
    what: What
    why: str


class CannotConvert(UserError):
    """A file that is left as it is; the text has a line for each reason."""

    def __init__(self, file: File, reasons: Sequence[tuple[int, str]]) -> None:
        shown = dict.fromkeys(f"{file.path}:{line}: {why}" for line, why in reasons)
        super().__init__("\n".join((*shown, "nothing was written")))
        self.reasons = tuple(reasons)
