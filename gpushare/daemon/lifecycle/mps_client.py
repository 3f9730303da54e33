# SPDX-License-Identifier: Apache-2.0
"""What a container on a card in MPS mode gets beside its share: the way to the card's MPS server.

The interposer library sets the variables before the driver reads them, from a file beside the
tenant's pages: what the container's own environment says only lowers its limits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpushare.daemon.mps.variables import PIPE_ENV, PIPES
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.edits import Edits, Mount
from gpushare.oci.spec import Spec

#: The control daemon, as the host's root, writes to files in it: a container must not replace one.
#: A client connects to a socket in it without a writable mount (unix_find_bsd, net/unix/af_unix.c).
_PIPE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_SHARED_OPTIONS: Final = ("bind", "rw", "nosuid", "nodev", "noexec")
_NOTHING: Final = "/dev/null"
_NOTHING_OPTIONS: Final = ("bind", "ro", "nosuid", "noexec")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - fixed: where CUDA looks for cuda.shm.*


def with_server(edits: Edits, original: Spec, record: TenantRecord, state: DaemonState) -> Edits:
    """Return `edits` with what makes the container of `record` a client of its card's server.

    MpsRefused: it cannot be one.
    """
    grant = state.mps.admit(record.key, host_uid(original))
    mounts = [Mount(grant.folder, PIPES, _PIPE_OPTIONS)]
    # A device without a use: no socket is behind it.
    mounts += [Mount(_NOTHING, f"{PIPES}/{name}", _NOTHING_OPTIONS) for name in grant.hidden]
    if grant.shared_memory:
        mounts.append(Mount(grant.shared_memory, _SHARED_MEMORY, _SHARED_OPTIONS))
    return replace(
        edits,
        mounts=(*edits.mounts, *mounts),
        # For programs that reach the driver in another way: they are to find the server too.
        env={**edits.env, PIPE_ENV: PIPES},
    )


def host_uid(original: Spec) -> int:
    """Return the host's uid of a container's first process: that is what the MPS server sees."""
    user = original.at("process", "user") or {}
    uid = user.get("uid", 0) if isinstance(user, dict) else 0
    for mapping in original.entries("linux", "uidMappings"):
        first, size = mapping.get("containerID", 0), mapping.get("size", 0)
        if first <= uid < first + size:
            return int(mapping.get("hostID", 0)) + int(uid) - int(first)
    return int(uid)
