# SPDX-License-Identifier: Apache-2.0
"""A container whose GPU is another machine's: it gets an engine's client libraries.

They are mounted over the driver's names, as the interposer library is for a share. The container
has no device node, and nothing is reserved here: the engine's server is a tenant of its own node.

What is mounted is what was read, and whose digest was logged: a file that has changed since then is
refused until the configuration is read again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gpushare.daemon.engine_libraries import EngineLibraries
from gpushare.daemon.lifecycle import container_edits
from gpushare.daemon.node import Node
from gpushare.oci import container, loader
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.edits import Edits
from gpushare.oci.image_view import ImageView
from gpushare.oci.spec import Spec
from gpushare.quota.request import REMOTE, QuotaRequest
from gpushare.remote_gpu import RemoteEngine, RemoteServer


@dataclass(frozen=True)
class RemoteAccess:
    """The remote GPU that a container requests, by the name of its server."""

    name: str
    server: RemoteServer
    engine: RemoteEngine
    files: DriverFiles

    @property
    def why(self) -> str:
        """What is recorded of the container, and shown."""
        return f"remote server {self.name} ({self.server.address})"

    def edits(self, original: Spec, image: ImageView, node: Node) -> tuple[Edits, tuple[str, ...]]:
        """Return the edits of the container, and notes; CoveredPath, OSError: it cannot have it."""
        searched = container_edits.searched(original, image)
        wanted = container.remote(
            self.files,
            node.platform,
            self.engine.variables(self.server.address, secrets.token_hex(16)),
            rootfs=image,
            searched=searched,
        )
        placed = container.place(wanted, original, image, self.files)
        cache = container.merged_cache(placed, image, node.platform)
        edits = container.with_cache(placed, cache, image, node.config.state_dir / "ldcache")
        filters = loader.Filters(self.files.cuda.host_path, self.files.nvml.host_path)
        edits, notes = container_edits.cover_volumes(
            edits, original, image, filters, lambda: searched
        )
        return edits, (*placed.notes, *notes)


def find(quota: QuotaRequest, node: Node) -> RemoteAccess:
    """Return the remote GPU of a request; QuotaError where it cannot be had."""
    name, source = str(quota.remote), str(quota.requested[REMOTE].source)
    server = node.config.remote.server(name, source)
    loaded = node.remote.get(server.engine, EngineLibraries(fault="it was not read yet"))
    if loaded.files is None:
        why = loaded.fault
    elif not loaded.is_unchanged:
        why = "a library has changed since gpushared read it"
    else:
        return RemoteAccess(name, server, node.config.remote.engines[server.engine], loaded.files)
    raise quota.refuse(
        REMOTE,
        f"the engine {server.engine} of this server cannot be used on this node: {why}",
        "correct that, then run sudo gpushare config reload",
    )
