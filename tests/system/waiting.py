# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another program is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

#: More than a busy machine takes; who waits longer has failed.
PATIENCE_SECONDS = 120.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; AssertionError when it does not in PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)
