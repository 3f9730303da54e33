# SPDX-License-Identifier: Apache-2.0
"""The clock that decisions are made by: a test gives a daemon one that it moves itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.daemon.core.loop import boottime


@dataclass(frozen=True)
class DaemonClock:
    """Functions that return seconds.

    `wall` counts from the epoch, `boot` from the boot of this machine, and nobody can set it back.
    """

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boottime
