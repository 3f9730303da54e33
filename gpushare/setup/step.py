# SPDX-License-Identifier: Apache-2.0
"""A step of `gpushare setup`, and the error that stops it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable


class SetupError(UserError):
    """Setup cannot continue; the message has the reason."""


@dataclass(frozen=True)
class SetupStep:
    """One step: its description, and `do`, which is None if the step is already done."""

    text: str
    do: Callable[[], object] | None = None
    detail: str = ""  # a diff
    yours: bool = False  # a step that the user has to perform
