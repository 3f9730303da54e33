# SPDX-License-Identifier: Apache-2.0
"""A machine of simulated cards: a device file, and a CDI spec beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.simulator.cdi import cdi_spec
from gpushare.simulator.device import card_uuid, content_of, instance_uuid, write
from gpushare.simulator.layout import CARDS_MOST
from gpushare.simulator.profile import (
    ProfileError,
    check_instances,
    libraries,
    load_profile,
    versions,
)

DEVICE_ENV: Final = "GPUSHARE_SIM_DEVICE"


@dataclass(frozen=True)
class Simulator:
    """What `create` made."""

    device: Path
    cdi: Path
    uuids: tuple[str, ...]
    instances: tuple[str, ...] = ()  # the UUIDs of MIG instances, card by card

    @property
    def env(self) -> dict[str, str]:
        """The variable by which a process of the host finds the cards."""
        return {DEVICE_ENV: str(self.device)}


def create(  # noqa: PLR0913 - all but the first have defaults, and the last two are rare
    directory: str | os.PathLike[str],
    profile: str | Path = "h200",
    cards: int = 1,
    driver_version: str | None = None,
    slow_motion: float = 1,
    *,
    cuda_version: str | None = None,
    mig: Sequence[str] = (),
    folder: Path | None = None,
) -> Simulator:
    """Write `device` and `cdi.json` into `directory`, for `cards` cards of one profile.

    `driver_version` ("570.86.10") and `cuda_version` ("12.8") replace the profile's; either is
    enough for a version in the table. Every duration is multiplied by `slow_motion`. Each card is
    partitioned into the instances `mig` ("1g.18gb"), in that order. `folder` has
    the simulated libraries, the package's own by default. ProfileError for what cannot be
    simulated, OSError for what cannot be written.
    """
    if not 1 <= cards <= CARDS_MOST:
        raise ProfileError(f"cards: {cards} is not between 1 and {CARDS_MOST}")
    if not 0 < slow_motion <= 1000:
        raise ProfileError(f"slow_motion: {slow_motion} is not above 0 and at most 1000")
    folder = folder or libraries()
    loaded = load_profile(profile, folder / "profiles")
    check_instances(loaded, cards, mig)
    content = content_of(
        loaded, cards, versions(loaded, driver_version, cuda_version), slow_motion, mig
    )
    seed = str(loaded["uuid_seed"])
    uuids = tuple(f"GPU-{card_uuid(seed, index)}" for index in range(cards))

    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    instances = tuple(
        f"MIG-{instance_uuid(seed, card, index)}"
        for card in range(cards)
        for index in range(len(mig))
    )
    made = Simulator(root / "device", root / "cdi.json", uuids, instances)
    write(made.device, content)
    spec = cdi_spec(made.device, folder.absolute(), uuids)
    made.cdi.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return made
