# SPDX-License-Identifier: Apache-2.0
"""Checks of MPS: the cards in MPS mode, and control daemons that gpushare did not start.

What is wrong with a card's own control daemon is among gpushared's warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpushare.checks import Check
from gpushare.protocol import CardStatus

#: Where a control daemon listens that was started without a folder of its own (Multi-Process
#: Service manual, release 615, "Environment Variables").
DEFAULTS: Final = (Path("/tmp/nvidia-mps"), Path("/run/nvidia-mps"))  # noqa: S108


def check_mps(
    cards: Sequence[CardStatus], warnings: Iterable[str], folders: Iterable[Path] = DEFAULTS
) -> Iterator[Check]:
    """Check the cards in MPS mode, and look for other control daemons; `warnings` are gpushared's.

    A control daemon of somebody else is only in the way of a card in MPS mode.
    """
    found = [card for card in cards if card["mode"] == "mps"]
    faults = " ".join(warnings)
    for card in found:
        if f"card {card['index']} is in MPS mode, and " not in faults:
            tenants = f"{card['tenants']} of at most {card['max_tenants']} containers"
            yield Check(
                "ok", f"card {card['index']} is in MPS mode, its control daemon runs, {tenants}"
            )
    for folder in folders if found else ():
        if (folder / "control").exists():
            yield Check(
                "warn",
                f"{folder} belongs to an MPS control daemon that gpushare did not start: a server "
                "of it on a card in MPS mode keeps containers off that card",
                f"echo quit | CUDA_MPS_PIPE_DIRECTORY={folder} nvidia-cuda-mps-control",
            )
