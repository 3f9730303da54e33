# SPDX-License-Identifier: Apache-2.0
"""The control socket's protocol: operations, callers and replies.

Transport: `SOCK_SEQPACKET` on `<run_dir>/control.sock`, one JSON object per packet. A request is at
most `MAX_REQUEST_BYTES`, or `MAX_ROOT_REQUEST_BYTES` from root, a reply packet at most
`MAX_REPLY_BYTES`. The daemon answers `{"ack": true}` at once, or `{"starting": true}` and the
acknowledgement when it is ready (within `START_SECONDS`), then any number of `{"row": {...}}`, then
one final `{"ok": true, ...}` or `{"ok": false, "code": ..., "error": ...}` within `REPLY_SECONDS`.
The codes are those of the commands' errors (gpushare/errors.py, exit-status.md): `refused` has the
`key`, `value` and `fix` of a bad value, `not-found` the `key` of what does not exist, and
`candidates`. While other requests are before it, the daemon repeats the acknowledgement every two
seconds, for at most `START_SECONDS`, and `REPLY_SECONDS` begin anew with each. It also does so
while other containers are evicted for a create, likewise, and during evict, restore and move, which
take as long as their copy does. The C side of the same is `runtime/client.c`.

A client without an acknowledgement gives up once the daemon has not served any client for
`ACK_SECONDS`. The daemon sets the modification time of its socket while it serves clients.

`hello` is answered without an acknowledgement. The launcher sends it before `create`: descriptors
that lie in the queue of a daemon that hangs keep the container's mounts busy. `create` has two
descriptors, of the bundle and of its root filesystem. A `bind` by the launcher that created the
container has a pidfd of its process and no `pid`, and is root's.

Versions: a newer version may add operations, and keys to requests and replies, which an older one
ignores. It removes none and gives none another meaning.

A ticket ends with the process that took it. `open` with a `ticket`, its secret, takes over what was
granted to it.

`marker` is "strong" or "weak"; `mode` is "none", "shared", "exclusive" or "remote".

A request with half of a surrogate pair in a key or text is `invalid`.

A user other than root has at most 64 connections at a time, 20 requests a second that change
something (256 at once) and 50 that only read (512 at once). Others are `refused` without an
acknowledgement.

The operations are declared in gpushare/protocol/operations.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypedDict

from gpushare.protocol.kubernetes import NodeMode
from gpushare.protocol.rows import UnifiedCard

if TYPE_CHECKING:
    from gpushare.quota.node_settings import NodeSetting

ACK_SECONDS: Final = 1.0
START_SECONDS: Final = 30.0
REPLY_SECONDS: Final = 10.0

MAX_REQUEST_BYTES: Final = 4096
MAX_ROOT_REQUEST_BYTES: Final = 32768  # a claim of 32 devices and 256 pods
MAX_REPLY_BYTES: Final = 65536

HISTORY_ROWS: Final = 500  # maximum per reply; a reply with fewer rows is the last

SET_FIELDS: Final = (
    "memory",
    "memory_limit",
    "cores",
    "policy",
    "weight",
    "priority",
    "class",
    "idle_after",
    "time_limit",
    "over_quota_action",
)

#: Signals that `stop` may send to a container's first process; KILL kills all processes at once.
STOP_SIGNALS: Final = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")
STOP_TIMEOUT_MAX_SECONDS: Final = 3600


class ProtocolError(ValueError):
    """A packet that is not one JSON object of this protocol."""


def encode(message: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> bytes:
    """Return the packet of `message`; ProtocolError when it is longer than `limit` bytes."""
    packet = _encode(message).encode()
    if len(packet) > limit:
        raise ProtocolError(f"a packet of {len(packet)} bytes is over the limit of {limit}")
    return packet


def decode(packet: bytes) -> dict[str, Any]:
    """Return the object in a packet of the daemon, which checks requests itself; ProtocolError."""
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("not a JSON object")
    return message


#: Made once: a node of 200 containers has 2,000 packets a minute. What is sent is a tree.
_encode: Final = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


class DaemonStatus(TypedDict):
    """The state of the daemon."""

    version: str
    pid: int
    generation: int  # number of gpushared starts since boot
    scheduler_pid: int  # the process that enforces compute shares; 0: none
    driver_version: str
    cuda_version: str
    isolation: str  # what can enforce a share's memory quota: driver | interposer; empty: no driver
    cards: int
    tenants: int
    simulated: bool
    time_scale: float  # factor for durations of a simulated card; otherwise 1
    config: str
    library_dir: str
    run_dir: str
    node_name: str  # in Kubernetes; empty: not known to gpushared
    kubernetes_mode: NodeMode  # annotations | plugin | dra: what decides about the GPU of a pod
    default_placement: str  # defaults.placement; empty: the one of the request
    accepts_node_labels: bool  # kubernetes.node_labels
    node_settings: dict[str, NodeSetting]  # that labels of the node set, by key of gpushare.yaml
    eviction_fault: str  # why no container can be evicted; empty: they can
    warnings: list[str]
    unified_cards: list[UnifiedCard]


class HistoryEvent(TypedDict):
    """An event of the node's history (docs/reference/events.md); numbers only grow."""

    number: int
    time: float  # seconds since the epoch, by the clock at the time
    boot_id: str  # the boot's id (random(4))
    generation: int  # number of gpushared starts on this history
    event: str
    level: str
    key: str  # the tenant's; empty: no tenant
    id: str
    name: str  # of a container that still exists, the one it has now
    card: str  # UUID; empty: no card
    fields: dict[str, Any]  # the remaining fields of the log line


class MountRow(TypedDict):
    """One bind mount; `destination` is a path as the tenant sees it."""

    source: str
    destination: str
    read_only: bool


class HostProcessGrant(TypedDict):
    """The allocation of a host process; `gpushare run` mounts it in a separate mount namespace.

    `mounts`, in order: the driver's own libraries under /opt/gpushare/driver, the interposer under
    /opt/gpushare/lib, the tenant's folder at /opt/gpushare/tenant and its `status` over that. The
    caller itself mounts the interposer over the names that this host's own loader uses. A whole
    card has no mounts. `closed` are the device nodes of other cards, which the command is not to
    open. `env` has CUDA_VISIBLE_DEVICES and a simulated device.

    The caller then joins the cgroup /gpushare/<id> in every hierarchy that it can (host/cgroups.py)
    and sends `bind` with its own pid, and only then executes the command. Whoever releases the
    tenant removes that cgroup. A reservation that is never bound expires as a container's does.
    """

    key: str
    id: str  # "host-" and the key's first characters
    directory: str  # the tenant's, on the host: a rootless process reads it instead of the mounts
    mounts: list[MountRow]
    closed: list[str]
    env: dict[str, str]
    isolation: str  # as in TenantStatus
