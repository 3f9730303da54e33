# SPDX-License-Identifier: Apache-2.0
"""The control socket's language: who may ask what, and what comes back.

Transport: `SOCK_SEQPACKET` on `<run_dir>/control.sock`, one JSON object per packet. A request is at
most `MAX_REQUEST_BYTES`, a reply packet at most `MAX_REPLY_BYTES`. The daemon answers
`{"ack": true}` at once (a client gives up when that takes `ACK_SECONDS`), then any number of
`{"row": {...}}`, then one final `{"ok": true, ...}` or `{"ok": false, "code": ..., "error": ...}`
within `REPLY_SECONDS`. The C side of the same is `runtime/client.c`.

| op | from | fields | rows / result |
|---|---|---|---|
| create | launcher, root | id, bundle (path), verb, marker ("strong" or "weak"); fds: bundle, rootfs | given ("none", "shared", "whole"), key |
| bind | hook, root | key, id, pid | - |
| release | hook, root | key, id | - |
| open | `gpushare run`, root or own uid | quota {NAME: text}, name, pid, rootless | key, directory, mounts, env |
| cards | anyone | - | Card rows |
| tenants | anyone | all (also what got no GPU, and why) | Tenant rows |
| tenant | anyone | name | tenant |
| set | root | name, memory (text) | tenant |
| status | anyone | - | Status |
"""

from __future__ import annotations

import json
from typing import Any, Final, TypedDict

VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 65536
ACK_SECONDS: Final = 1.0
REPLY_SECONDS: Final = 10.0

CODE_REFUSED: Final = "refused"  # the quota cannot be given: no room, bad key, bad value
CODE_USAGE: Final = "usage"  # the request itself is malformed
CODE_UNKNOWN: Final = "unknown"  # no such tenant, or several: `candidates` lists them
CODE_FORBIDDEN: Final = "forbidden"  # not for this caller
CODE_ERROR: Final = "error"  # the daemon could not do it


class ProtocolError(ValueError):
    """A packet that is not one JSON object of this protocol."""


class ForeignProcess(TypedDict):
    pid: int
    name: str
    bytes: int


class Card(TypedDict):
    index: int
    uuid: str
    model: str
    memory_bytes: int  # NVML's total less what the driver reserves
    reserve_bytes: int  # kept back by the node's configuration
    promised_bytes: int
    foreign_bytes: int  # processes of no tenant, high-water mark
    foreign: list[ForeignProcess]
    free_bytes: int
    cores_free: int  # percent of the card
    tenants: int
    tenants_max: int
    mode: str  # "shared" | "exclusive" | "free"
    health: str  # "ok" or what is wrong


class TenantCard(TypedDict):
    index: int
    uuid: str
    memory_bytes: int  # quota
    used_bytes: int  # as the formula in gpushare_abi.h
    buffer_bytes: int
    overhead_bytes: int  # contexts and modules
    contexts: int
    cores: int  # percent asked; 0: none
    cores_got: float | None  # percent over the last second, None: not known
    denied: int


class TenantProcess(TypedDict):
    pid: int  # the host's
    container_pid: int
    name: str
    bytes: int | None


class Tenant(TypedDict):
    key: str
    id: str
    name: str
    engine: str  # docker | containerd | podman | runc | host
    state: str  # reserved | bound | none (all=True: asked for nothing)
    why: str  # for state none: what to add to get a GPU
    pid: int
    policy: str
    isolation: str  # interposer | advice | exclusive
    throttled: float  # fraction of time at the gate, 0..1
    created: float  # seconds since the epoch
    cards: list[TenantCard]
    processes: list[TenantProcess]
    quota: dict[str, str]  # canonical keys as asked, each with its source after a space


class Status(TypedDict):
    version: str
    pid: int
    driver_version: str
    cuda_version: str
    cards: int
    tenants: int
    simulated: bool
    config: str
    libraries: str
    run_dir: str
    warnings: list[str]


class MountRow(TypedDict):
    source: str
    destination: str
    read_only: bool


def encode(message: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> bytes:
    """Return the packet of `message`; ProtocolError when it is longer than `limit` bytes."""
    packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > limit:
        raise ProtocolError(f"a packet of {len(packet)} bytes is over the limit of {limit}")
    return packet


def decode(packet: bytes) -> dict[str, Any]:
    """Return the object in `packet`; duplicate keys, NaN and deep nesting are ProtocolErrors."""
    try:
        message = json.loads(packet, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("not a JSON object")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{key}" is there twice')
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")
