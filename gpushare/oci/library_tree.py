# SPDX-License-Identifier: Apache-2.0
"""The libraries of a share as one mount, in place of one for each of them.

They are the same for every container with a share, so gpushared mounts them ahead of need
(daemon/pages/library_trees.py). A container gets this tree at OURS, where it would otherwise get a
tmpfs and single mounts. It keeps those where a file is not the tree's: whole cards, libraries past
the interposer, an image with a newer cuda-compat, a volume or files of the image in OURS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpushare.oci import container
from gpushare.oci import driver_files as drivers
from gpushare.oci.container import TENANT_DIR
from gpushare.oci.driver_files import CUDA, NVML, DriverFiles
from gpushare.oci.edits import Mount
from gpushare.oci.loader import Filters
from gpushare.oci.mount_points import OURS, PRIVATE, PlacedEdits

# As the tree is mounted on the host: a user namespace must not leave one of these out. `ro` here is
# the topmost mount's only, and each mount in the tree is read-only by itself. `rprivate`: what is
# unmounted on the host stays in the container.
_OPTIONS: Final = ("rbind", "rprivate", "ro", "nosuid", "nodev", "noexec")


@dataclass(frozen=True)
class LibraryTree:
    """A tree that is mounted at `path` on the host; `files` are its sources, by destination."""

    path: str
    files: Mapping[str, str]


def files(driver: DriverFiles, filters: Filters) -> dict[str, str]:
    """Return the sources of the libraries of every share of `driver`, by destination."""
    found = {mount.destination: mount.source for mount in container.driver_mounts(driver)}
    found[f"{PRIVATE}/{CUDA}"] = filters.cuda
    found[f"{PRIVATE}/{NVML}"] = filters.nvml
    for library in drivers.shared_libraries(driver, frozenset()):
        found[f"{PRIVATE}/{library.soname}"] = library.host_path
    return found


def with_tree(placed: PlacedEdits, tree: LibraryTree) -> PlacedEdits:
    """Return `placed` with `tree` in place of its mounts in OURS; as it is where they differ."""
    edits = placed.wanted.edits
    if not edits.mounts or (edits.mounts[0].type, edits.mounts[0].destination) != ("tmpfs", OURS):
        return placed
    others = edits.mounts[1:]
    libraries = [mount for mount in others if _is_in_tree(mount)]
    if any(tree.files.get(mount.destination) != mount.source for mount in libraries):
        return placed
    top = Mount(tree.path, OURS, _OPTIONS)
    mounts = (top, *(mount for mount in others if mount not in libraries))
    return replace(placed, wanted=replace(placed.wanted, edits=replace(edits, mounts=mounts)))


def _is_in_tree(mount: Mount) -> bool:
    is_tenant = f"{mount.destination}/".startswith(f"{TENANT_DIR}/")
    return mount.destination.startswith(f"{OURS}/") and not is_tenant
