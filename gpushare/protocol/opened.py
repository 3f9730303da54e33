# SPDX-License-Identifier: Apache-2.0
"""What `gpushare run` is given, to become a tenant with."""

from __future__ import annotations

from typing import TypedDict


class MountRow(TypedDict):
    """One bind mount; `destination` is a path as the tenant sees it."""

    source: str
    destination: str
    read_only: bool


class Opened(TypedDict):
    """What a host process gets; `gpushare run` makes the mounts in a namespace of its own.

    `mounts`, in order: the driver's own libraries beneath /opt/gpushare/driver, the filters beneath
    /opt/gpushare/lib, the tenant's folder at /opt/gpushare/tenant and its `status` over that. The
    filters over the names of this host's own loader are the caller's to find. A whole card has no
    mounts. What is not a mount (CUDA_VISIBLE_DEVICES, a simulated device) is in `env`.

    The caller then joins the cgroup /gpushare/<id> of every hierarchy it can (host/cgroups.py)
    and sends `bind` with its own pid, and only then becomes the command; who releases the tenant
    removes that cgroup. A reservation that is never bound expires as a container's does.
    """

    key: str
    id: str  # "host-" and the key's first characters
    directory: str  # the tenant's, on the host: what a rootless process reads instead of the mounts
    mounts: list[MountRow]
    env: dict[str, str]
    isolation: str  # as Tenant's
