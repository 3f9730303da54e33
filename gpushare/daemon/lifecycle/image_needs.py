# SPDX-License-Identifier: Apache-2.0
"""Which cards run a container's image, on a node whose cards differ: before one is chosen.

Cards that run it worse than the best ones are avoided while the best have room. If the node's
policy refuses images that do not run on their cards (`compatibility: refuse`), such cards are not
used at all. An image that runs on none of the cards is left to the check after placement, which
knows what the container gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from gpushare import compatibility
from gpushare.daemon.lifecycle import driver_files
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import CardCapacity, Links
from gpushare.daemon.placement.request import ImageNeed, NoRoom, PlacedCard, PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.oci import cuda_compat
from gpushare.oci.image_view import ImageView
from gpushare.oci.spec import Spec

_LEVELS: Final = compatibility.LEVELS


def find_image_needs(
    original: Spec, rootfs_fd: int, policy: str, state: DaemonState, *, shared: bool
) -> Mapping[str, ImageNeed]:
    """Return by UUID the cards that run the image worse than others, and why.

    It reads the image, so it is never the decide thread's, and only where the cards differ.
    """
    driver = state.loaded()
    if policy == driver_files.IGNORE or len(_kinds(state)) < 2:
        return {}
    with closing(ImageView(rootfs_fd)) as rootfs:
        image = driver_files.image_facts(original, rootfs, cuda_compat.find(rootfs), state)
    found = {}
    for card in driver.cards:
        machine = driver_files.machine_facts([card], driver, shared=shared)
        ill = driver_files.problems(compatibility.evaluate_image(image, machine))
        found[card.uuid] = ill
    best = min(_LEVELS.index(compatibility.worst(ill)) for ill in found.values())
    return {
        uuid: ImageNeed(
            f"{ill[0].what} ({ill[0].rule})",
            ill[0].fix,
            is_refused=policy == driver_files.REFUSE and ill[0].level == "refuse",
        )
        for uuid, ill in found.items()
        if _LEVELS.index(compatibility.worst(ill)) > best
    }


def _kinds(state: DaemonState) -> set[tuple[object, ...]]:
    """Return what differs between the node's cards that an image can need."""
    return {(card.capability, card.brand, card.datacenter) for card in state.loaded().cards}


def place_suitably(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links
) -> tuple[PlacedCard, ...]:
    """Return a place on cards that run the image best, or else on others that run it; NoRoom."""
    required = {uuid: need for uuid, need in request.image_needs.items() if need.is_refused}
    if required != request.image_needs:
        with suppress(NoRoom):
            return place_request(request, capacities, links)
    return place_request(replace(request, image_needs=required), capacities, links)
