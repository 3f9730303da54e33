# SPDX-License-Identifier: Apache-2.0
"""Names that a cluster sees of this node."""

from __future__ import annotations

from typing import Final

DRIVER: Final = "gpu.gpushare.io"  # of dynamic resource allocation
RESOURCE: Final = "gpushare.io/memory-gib"  # of the device plugin, with its default unit
MODE_LABEL: Final = "gpushare.io/mode"


def device_name(uuid: str) -> str:
    """Return the name of a card in ResourceSlices, a DNS label: `card-5f3c...`."""
    return "card-" + uuid.lower().removeprefix("gpu-")
