# SPDX-License-Identifier: Apache-2.0
"""What a container of an image gets, kept for the next container of the same image.

Most of a create is spent on questions about the image of which the answers are known: where its
loader is, which of its names lead to the driver, what its loader cache lists. They are kept with
all that they depended on (`Seen`), and that is compared before each use. So no list has to say what
an image is: another image, or this one after a change, does not match.

An entry depends on the driver and the configuration too: those that it was made under are compared
by identity, and all is forgotten when there are others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from gpushare.oci.container import ContainerEdits, devices
from gpushare.oci.edits import Edits, Hook, Mount
from gpushare.oci.image_view import Created, ImageView, Seen
from gpushare.oci.loader import MergedCache

_MOST: Final = 64  # entries; one has a few hundred names and at most 512 KiB of files


@dataclass(frozen=True)
class PreparedImage:
    """What was worked out for a container of an image.

    `wanted` are its edits with every mount where it goes, for a tenant whose folder was
    `tenant_directory`; `created` are the mount points that were missing in its layer.
    """

    seen: Seen
    created: Created
    wanted: ContainerEdits
    cache: MergedCache | None
    tenant_directory: str

    def edits_of(self, tenant_directory: str, hooks: tuple[Hook, ...]) -> Edits:
        """Return the edits for the tenant whose folder is `tenant_directory`.

        The numbers of devices are read anew: they change with the driver's modules. CdiError where
        the host does not have a device any more.
        """
        edits = self.wanted.edits
        return replace(
            edits,
            mounts=tuple(self._of_tenant(mount, tenant_directory) for mount in edits.mounts),
            devices=devices(self.wanted.nodes),
            hooks=hooks,
        )

    def _of_tenant(self, mount: Mount, tenant_directory: str) -> Mount:
        before = self.tenant_directory
        if mount.source != before and not mount.source.startswith(f"{before}/"):
            return mount
        return replace(mount, source=tenant_directory + mount.source.removeprefix(before))


class PreparedImages:
    """The entries that were used last, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_under: tuple[object, ...] = ()
        self._entries: OrderedDict[Hashable, PreparedImage] = OrderedDict()

    def find(
        self, made_under: tuple[object, ...], request: Hashable, image: ImageView
    ) -> PreparedImage | None:
        """Return what was kept for `request`, where `image` is what it was made for.

        `made_under` are the objects that all entries depend on: other ones, and all are forgotten.
        """
        with self._lock:
            if not self._is_under(made_under):
                return None
            found = self._entries.get(request)
            if found is not None:
                self._entries.move_to_end(request)
        return found if found is not None and image.matches(found.seen) else None

    def keep(
        self, made_under: tuple[object, ...], request: Hashable, prepared: PreparedImage
    ) -> None:
        """Keep `prepared` in place of an earlier entry for `request`."""
        with self._lock:
            if not self._is_under(made_under):
                self._made_under = made_under
                self._entries.clear()
            self._entries[request] = prepared
            self._entries.move_to_end(request)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)

    def _is_under(self, made_under: tuple[object, ...]) -> bool:
        if len(made_under) != len(self._made_under):
            return False
        return all(a is b for a, b in zip(made_under, self._made_under, strict=True))
