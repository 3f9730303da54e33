# SPDX-License-Identifier: Apache-2.0
"""Why a card is not taken, in words, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LESS: Final = "ask for less"
MORE: Final = "ask for more"


@dataclass(frozen=True)
class Obstacle:
    """`text` is the end of "card 0 ...", `fix` what the asker may do about it, "": nothing.

    `key` is the quota's key that it is about.
    """

    text: str
    fix: str = ""
    key: str = ""
