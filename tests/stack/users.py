# SPDX-License-Identifier: Apache-2.0
"""Commands of other users."""

from __future__ import annotations

from typing import Final

NOBODY: Final = 65534


def as_user(uid: int = NOBODY) -> list[str]:
    """Return what runs a command without rights, but to read this checkout wherever it lies."""
    return [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
