# SPDX-License-Identifier: Apache-2.0
"""Which parts of the driver a container gets, and what its user should know of that.

By NVIDIA_DRIVER_CAPABILITIES, by the cuda-compat package that its image brings, and by the program
that it starts with. Nothing that was asked for is dropped in silence: it is noted, and `inspect`,
`ps` and the log show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon import backends
from gpushare.daemon.cards.card import Card
from gpushare.daemon.life import verdict
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.oci import capabilities, compat, program
from gpushare.oci.capabilities import Asked
from gpushare.oci.cdi import CdiError
from gpushare.oci.compat import Compat, CompatError
from gpushare.oci.driver import Driver as DriverFiles
from gpushare.oci.driver import with_compat
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec

_KNOWN: Final = ", ".join((*capabilities.ALL, "all"))
_UNMEDIATED: Final = (
    "what reaches the card without libcuda is not refused, and the audit charges it"
)


@dataclass(frozen=True)
class Parts:
    """What of the driver a container gets.

    `wanted` are the capabilities of whole cards, `extra` those of a share past the interposer.
    """

    files: DriverFiles
    wanted: frozenset[str]
    extra: frozenset[str]


def choose(original: Spec, rootfs: Rootfs, entry: Entry, node: Node) -> Parts:
    """Return what the container of `entry` gets, and keep in the ledger what there is to say.

    Unfit where the image does not run here, and the node refuses such a container.
    """
    asked = capabilities.asked(original.variables)
    notes = list(_of_capabilities(asked, entry, node.config))
    extra = frozenset[str]()
    if entry.shared:
        notes += _of_program(original, rootfs, node)
        if node.config.allow_uninterposed:
            extra = frozenset(asked.uninterposed)
    package = compat.find(rootfs)
    notes += verdict.notes(original, rootfs, package, entry, node)
    files, copy, said = _of_compat(rootfs, package, entry, node)
    notes += said
    if notes or extra or copy:
        _keep(entry, notes, extra, copy, node)
    return Parts(files, asked.wanted, extra)


def sweep_compat(node: Node) -> None:
    """Remove the copies of cuda-compat packages that no container has had for a day."""
    try:
        for name in compat.sweep(store(node.config), _used(node)):
            log("compat-removed", copy=name)
    except OSError as error:
        log("compat-left", "warning", error=str(error))


def store(config: Config) -> Path:
    """Return where copies of cuda-compat packages are."""
    return config.state_dir / "compat"


def _keep(entry: Entry, notes: list[str], extra: frozenset[str], copy: str, node: Node) -> None:
    node.ledger.describe(entry.key, notes, sorted(extra), copy)
    if extra and entry.isolation == backends.INTERPOSER:
        node.ledger.isolate(entry.key, backends.AUDIT)
    for note in notes:
        log("tenant-noted", tenant=entry.key, name=entry.title, note=note)


def _of_capabilities(asked: Asked, entry: Entry, config: Config) -> Iterator[str]:
    if asked.unknown:
        words = ", ".join(asked.unknown)
        yield f"{capabilities.VARIABLE}: no such capability: {words} (there are {_KNOWN})"
    past = ", ".join(asked.uninterposed)
    if not past or not entry.shared:
        return
    if config.allow_uninterposed:
        yield f"{past}: goes past the interposer; its memory is charged by the audit, afterwards"
    else:
        yield (
            f"not given: {past} ({capabilities.VARIABLE}); a share has compute and utility. For "
            "more take a whole card, or set allow_uninterposed in gpushare.yaml"
        )


def _of_program(original: Spec, rootfs: Rootfs, node: Node) -> Iterator[str]:
    said = original.at("process", "args")
    args = [arg for arg in said if isinstance(arg, str)] if isinstance(said, list) else []
    directory = original.at("process", "cwd")
    process = (args, original.variables, directory if isinstance(directory, str) else "/")
    found = program.entry(rootfs, process, node.platform)
    if found.kind == "musl":
        yield (
            f"{found.path} is a program of musl, and the driver is made for glibc: CUDA cannot be "
            f"loaded in it; {_UNMEDIATED}"
        )
    elif found.kind == "static":
        yield (
            f"{found.path} is a static program: no library is loaded into it, the interposer "
            f"neither; {_UNMEDIATED}. Programs that it starts are mediated if they are not static"
        )
    elif found.kind == "foreign":
        yield (
            f"{found.path} is a program of another machine or of 32 bits: it has no driver here; "
            f"{_UNMEDIATED}"
        )


def _of_compat(
    rootfs: Rootfs, found: Compat | None, entry: Entry, node: Node
) -> tuple[DriverFiles, str, list[str]]:
    """Return the driver with a newer libcuda of the image's, the name of its copy, and notes."""
    driver = node.loaded()
    files = driver.files
    if found is None or found.version <= compat.version(driver.nvml.driver_version):
        return files, "", []
    what = f"cuda-compat {found.text} of the image"
    than = f"is newer than the driver {driver.nvml.driver_version}"
    cards = [driver.card(holding.uuid) for holding in entry.holdings]
    other = next(
        (card.model for card in cards if isinstance(card, Card) and not card.datacenter), ""
    )
    if other:
        why = f"it is for cards of data centres, and {other} is none"
        return files, "", [f"{what} {than} and is not used: {why}"]
    try:
        folder = compat.keep(rootfs, found, store(node.config), _used(node))
        newer = with_compat(files, folder)
    except (CompatError, CdiError, OSError) as error:
        return files, "", [f"{what} {than} and is not used: it {error}"]
    log("compat-used", tenant=entry.key, name=entry.title, version=found.text, copy=folder.name)
    return newer, folder.name, [f"{what} {than}: its libcuda is the container's"]


def _used(node: Node) -> set[str]:
    return {entry.compat for entry in node.ledger.entries.values()}
