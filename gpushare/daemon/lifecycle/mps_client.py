# SPDX-License-Identifier: Apache-2.0
"""What a container on a card in MPS mode gets beside its share: the way to the card's MPS server.

The interposer library sets the variables before the driver reads them, from a file beside the
tenant's pages: what the container's own environment says only lowers its limits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpushare import abi
from gpushare.daemon.cards.mps_state import MpsGrant
from gpushare.daemon.pages.status_page import disown_page
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.edits import Edits, Mount
from gpushare.oci.spec import Spec

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
#: The lock files and sockets in it are opened for writing.
_PIPES: Final = ("bind", "rw", "nosuid", "nodev", "noexec")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where the server and its clients look for cuda.shm.*
_DRAFT: Final = f".{abi.MPS_NAME}"


def with_server(edits: Edits, original: Spec, record: TenantRecord, state: DaemonState) -> Edits:
    """Return `edits` with what makes the container of `record` a client of its card's server.

    MpsRefused, OSError: it cannot be one.
    """
    grant = state.mps.admit(record.key, host_uid(original))
    write_variables(grant, state)
    mounts = [Mount(grant.folder, abi.MPS_DIR, _PIPES)]
    if grant.shared_memory:
        mounts.append(Mount(grant.shared_memory, _SHARED_MEMORY, _PIPES))
    return replace(
        edits,
        mounts=(*edits.mounts, *mounts),
        # For programs that reach the driver in another way: none of them is to find no server.
        env={**edits.env, PIPE_ENV: abi.MPS_DIR},
    )


def write_variables(grant: MpsGrant, state: DaemonState) -> None:
    """Write the variables of a tenant's processes to the file beside its pages; OSError."""
    pages = state.tenants.pages.get(grant.key)
    if pages is None:
        return
    text = "".join(f"{name}={value}\n" for name, value in variables_of(grant).items())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with pages.lock:
        if pages.closed:
            return
        fd = os.open(_DRAFT, flags, 0o644, dir_fd=pages.directory)
        try:
            os.fchmod(fd, 0o644)
            disown_page(fd)
            os.write(fd, text.encode())
        finally:
            os.close(fd)
        os.rename(_DRAFT, abi.MPS_NAME, src_dir_fd=pages.directory, dst_dir_fd=pages.directory)


def variables_of(grant: MpsGrant) -> Mapping[str, str]:
    """Return the variables of a tenant's processes; the pipe directory is where it is mounted."""
    return {**grant.variables, PIPE_ENV: abi.MPS_DIR}


def host_uid(original: Spec) -> int:
    """Return the host's uid of a container's first process: the MPS server sees that one."""
    user = original.at("process", "user") or {}
    uid = user.get("uid", 0) if isinstance(user, dict) else 0
    for mapping in original.entries("linux", "uidMappings"):
        first, size = mapping.get("containerID", 0), mapping.get("size", 0)
        if first <= uid < first + size:
            return int(mapping.get("hostID", 0)) + int(uid) - int(first)
    return int(uid)
