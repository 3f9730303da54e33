# SPDX-License-Identifier: Apache-2.0
"""One finding of `gpushare doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warn", "fail"]
SETUP: Final = "gpushare setup"


@dataclass(frozen=True)
class Check:
    """What was found; `fix` is a command or a sentence, empty when all is well."""

    level: Level
    text: str
    fix: str = ""
