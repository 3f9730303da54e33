# SPDX-License-Identifier: Apache-2.0
"""The checks of `gpushare doctor`: each one checks a single subject and suggests a fix.

A check changes nothing, does not need root, and reports "not known" instead of guessing.
gpushare/cli/doctor.py runs them in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CheckLevel = Literal["ok", "warn", "fail"]
SETUP: Final = "gpushare setup"


@dataclass(frozen=True)
class Check:
    """The result of a check; `fix` is a command or a sentence, empty if no action is needed."""

    level: CheckLevel
    text: str
    fix: str = ""
