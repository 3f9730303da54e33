# SPDX-License-Identifier: Apache-2.0
"""Cards that the caller put into the spec before us: `docker run --gpus`, a CDI device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cards:
    """The cards that an engine already put into a spec, in the one form that was said.

    `count` N of any cards; or `devices`, indices or UUIDs; or `minors`, the N of /dev/nvidiaN; or
    `all_cards`. `source` is shown to the user, e.g. `docker run --gpus (nvidia hook)`.
    """

    source: str
    count: int | None = None
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    all_cards: bool = False
