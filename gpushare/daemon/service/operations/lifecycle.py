# SPDX-License-Identifier: Apache-2.0
"""Operations of a tenant's lifecycle, for the launcher, the hook and `gpushare run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.container_names import NAME
from gpushare.daemon.lifecycle import release, unbound
from gpushare.daemon.lifecycle.bind import bind, owned_record
from gpushare.daemon.lifecycle.create import LAUNCHER, NewContainer, create
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    Forbidden,
    MalformedRequest,
    Operation,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.errors import UserError
from gpushare.quota import PodIdentity


class CheckpointRefused(UserError):
    """The container uses a GPU."""


_IDENTITY: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MOST_UID: Final = 64  # characters; Kubernetes has 36
_MOST_PID: Final = 1 << 22  # PID_MAX_LIMIT


def _create(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    if len(request.fds) != 2:
        raise MalformedRequest("create needs two descriptors: the bundle and its root filesystem")
    bundle = NewContainer(
        identity=request.matched("id", _IDENTITY),
        path=request.text("bundle"),
        marker=request.text("marker"),
        bundle_fd=request.fds[0],
        rootfs_fd=request.fds[1],
        maker=request.peer.pid,
        binds=request.fields.get("bind") == LAUNCHER,
        is_restore=request.fields.get("verb") == "restore",
        is_abandoned=request.is_abandoned,
        tell_pod=lambda pod: request.subject.update(_named(pod)),
    )
    return reply(create(bundle, state))


def _named(pod: PodIdentity) -> dict[str, str]:
    """Return what the history calls a container of `pod` that is refused."""
    parts = (pod.namespace, pod.name, pod.container)
    name = "/".join(parts) if all(NAME.fullmatch(part) for part in parts) else ""
    return {"name": name, "pod_uid": pod.uid[:_MOST_UID]} if name else {}


def _checkpoint(request: ControlRequest, state: DaemonState) -> ControlReply:
    """Refuse the dump of a container with a GPU: it would end, and could not be restored."""
    request.root_only()
    identity = request.matched("id", _IDENTITY)
    for record in state.ledger.entries.values():
        if record.id == identity and record.allocations:
            raise CheckpointRefused(
                f"container {record.title} uses a GPU, and a checkpoint has no state of the "
                "driver. Let the program save its state itself."
            )
    return reply()


def _bind(request: ControlRequest, state: DaemonState) -> ControlReply:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_other_users(request, key, state)
    if request.fds:
        return _bind_made(request, key, identity, state)
    pid = request.number("pid", 1, _MOST_PID)
    if not request.peer.is_root and processes.owner_of(pid) != request.peer.uid:
        raise Forbidden(f"process {pid} is another user's")
    bind(key, identity, pid, request.peer.pid, state)
    return reply()


def _bind_made(
    request: ControlRequest, key: str, identity: str, state: DaemonState
) -> ControlReply:
    """Bind a container that its launcher has made, and of whose init it sends a pidfd."""
    request.root_only()
    if len(request.fds) != 1:
        raise MalformedRequest("bind takes one descriptor: a pidfd of the container's init process")
    pid = processes.pid_of(request.fds[0])
    if pid is None:
        raise MalformedRequest("the descriptor is not a pidfd")
    bind(key, identity, pid, request.peer.pid, state, pidfd=request.fds[0])
    return reply()


def _release(request: ControlRequest, state: DaemonState) -> ControlReply:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_other_users(request, key, state)
    if key not in state.ledger.entries:
        return reply()
    record = owned_record(key, identity, state)
    if record.state == "reserved":
        if not unbound.runs_unbound(record):  # else the end of its launcher counts
            release.release_tenant(key, state, "the runtime abandoned it")
    else:
        release.handle_process_end(key, state)
    return reply()


def _refuse_other_users(request: ControlRequest, key: str, state: DaemonState) -> None:
    """Refuse callers other than root and the user that opened a host process's tenant."""
    record = state.ledger.entries.get(key)
    if request.peer.is_root:
        return
    if record is None or record.engine != "host" or record.uid != request.peer.uid:
        raise Forbidden(f"{request.fields.get('op')} of this tenant requires root; use sudo")


def _open(request: ControlRequest, state: DaemonState) -> ControlReply:
    quota = request.fields.get("quota")
    if not isinstance(quota, dict) or not all(isinstance(text, str) for text in quota.values()):
        raise MalformedRequest("quota is not an object of strings")
    rootless = request.flag("rootless") or not request.peer.is_root
    name = str(request.fields.get("name") or "")[:128]
    command = HostCommand(name=name, uid=request.peer.uid, rootless=rootless)
    return reply({**open_tenant(command, quota, state)})


LIFECYCLE_OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": Operation(_create, "create"),
    "checkpoint": Operation(_checkpoint, "decide"),
    "bind": Operation(_bind, "decide"),
    "release": Operation(_release, "decide"),
    "open": Operation(_open, "decide"),
}
