# SPDX-License-Identifier: Apache-2.0
"""Whether a container's image fits the driver and the cards that it gets, and what comes of that.

By the node's policy, `compat`, or its namespace's: nothing is looked at, what does not fit is
noted, or the container is refused. Only of who gets a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpushare import compat
from gpushare.compat import driver as compat_driver
from gpushare.compat import image as images
from gpushare.compat.version import exact, parse
from gpushare.daemon.log import log
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.store.ledger import Entry
from gpushare.errors import UserError
from gpushare.oci.compat import Compat
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec

IGNORE: Final = "ignore"
BLOCK: Final = "block"

_MOST_NOTES: Final = 6


class Unfit(UserError):
    """The image does not fit, and the node's policy refuses such a container."""


def notes(
    original: Spec, rootfs: Rootfs, package: Compat | None, entry: Entry, node: Node
) -> list[str]:
    """Return what is noted of the container of `entry`; Unfit where it is refused.

    `package` is the image's own libcuda, which `parts` has looked for.
    """
    policy = node.config.terms_of(entry.namespace).compat
    if policy == IGNORE:
        return []
    image = images.look(rootfs, original.variables, _args(original), node.platform, package)
    found = compat.judge(image, machine(entry, node.loaded()))
    ill = [one for one in found if one.level != "ok" and one.rule != compat_driver.PACKAGE]
    for one in ill:
        _log(one, entry, refused=policy == BLOCK and one.level == "block")
    if policy == BLOCK and ill and ill[0].level == "block":
        where = f"compat: {BLOCK} of gpushare.yaml"
        raise Unfit(
            f"the image does not run here: {ill[0]}. This node refuses such a container "
            f"({where}); gpushare compat tells all of it"
        )
    return [str(one) for one in ill[:_MOST_NOTES]]


def machine(entry: Entry, driver: Loaded) -> compat.Machine:
    """Return what the container of `entry` gets: the driver, its cards and what holds them."""
    return compat.Machine(
        driver=parse(driver.nvml.driver_version) or (),
        cuda=parse(driver.nvml.cuda_version) or (),
        cards=tuple(_cards(entry, driver)),
        backend="interposer" if entry.shared else "exclusive",
    )


def _cards(entry: Entry, driver: Loaded) -> Iterator[compat.Card]:
    for holding in entry.holdings:
        card = driver.card(holding.uuid)
        if card is not None:
            capability = None if card.capability is None else exact(card.capability)
            yield compat.Card(card.model, capability, card.brand, datacenter=card.datacenter)


def _args(original: Spec) -> list[str]:
    said = original.at("process", "args")
    return [arg for arg in said if isinstance(arg, str)] if isinstance(said, list) else []


def _log(finding: compat.Finding, entry: Entry, *, refused: bool) -> None:
    figures: Mapping[str, str] = finding.numbers
    log(
        "tenant-unfit",
        "warning",
        tenant=entry.key,
        name=entry.title,
        rule=finding.rule,
        what=finding.what,
        figures=dict(figures),
        refused=refused,
    )
