# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_VISIBLE_DEVICES: a weak request.

CUDA's base images carry `NVIDIA_VISIBLE_DEVICES=all`, so the variable alone says nothing about what
the caller wants: it gives no GPU, and is the reason shown by `gpushare ps -a`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"


def visible_devices(env: Mapping[str, str]) -> str | None:
    """Return what the variable asks for; None where it is unset, empty, `void` or `none`."""
    value = env.get(VISIBLE_DEVICES, "").strip()
    return None if value in ("", "void", "none") else value
