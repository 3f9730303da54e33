# SPDX-License-Identifier: Apache-2.0
"""A tenant's life, as launcher, hook and `gpushare run` tell it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.life import release
from gpushare.daemon.life.bind import bind, owned_entry
from gpushare.daemon.life.create import Bundle, create
from gpushare.daemon.life.host import Command, open_tenant
from gpushare.daemon.node import Node
from gpushare.daemon.service.request import (
    Answer,
    BadRequest,
    Forbidden,
    Operation,
    Request,
    answer,
)

_IDENTITY: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MOST_PID: Final = 1 << 22  # PID_MAX_LIMIT


def _create(request: Request, node: Node) -> Answer:
    request.root_only()
    if len(request.fds) != 2:
        raise BadRequest("create needs two descriptors: the bundle and its root filesystem")
    bundle = Bundle(
        identity=request.matched("id", _IDENTITY),
        path=request.text("bundle"),
        marker=request.text("marker"),
        bundle_fd=request.fds[0],
        rootfs_fd=request.fds[1],
        maker=request.peer.pid,
    )
    return answer(create(bundle, node))


def _bind(request: Request, node: Node) -> Answer:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    pid = request.number("pid", 1, _MOST_PID)
    _refuse_stranger(request, key, node)
    if not request.peer.is_root and processes.owner_of(pid) != request.peer.uid:
        raise Forbidden(f"process {pid} is another user's")
    bind(key, identity, pid, request.peer.pid, node)
    return answer()


def _release(request: Request, node: Node) -> Answer:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_stranger(request, key, node)
    if key not in node.ledger.entries:
        return answer()
    entry = owned_entry(key, identity, node)
    if entry.state == "reserved":
        release.end(key, node, "the runtime gave it up")
    else:
        release.process_ended(key, node)
    return answer()


def _refuse_stranger(request: Request, key: str, node: Node) -> None:
    """Let root, and who opened a host process's tenant, speak for it; nobody else."""
    entry = node.ledger.entries.get(key)
    if request.peer.is_root:
        return
    if entry is None or entry.engine != "host" or entry.uid != request.peer.uid:
        raise Forbidden(f"{request.fields.get('op')} of this tenant is for root; use sudo")


def _open(request: Request, node: Node) -> Answer:
    quota = request.fields.get("quota")
    if not isinstance(quota, dict) or not all(isinstance(text, str) for text in quota.values()):
        raise BadRequest("quota is not an object of texts")
    rootless = request.flag("rootless") or not request.peer.is_root
    name = str(request.fields.get("name") or "")[:128]
    command = Command(name=name, uid=request.peer.uid, rootless=rootless)
    return answer({**open_tenant(command, quota, node)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": Operation(_create, changes=True),
    "bind": Operation(_bind, changes=True),
    "release": Operation(_release, changes=True),
    "open": Operation(_open, changes=True),
}
