# SPDX-License-Identifier: Apache-2.0
"""Operations for gpushare-node, which speaks with the kubelet of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare.daemon.lifecycle import claims, scheduled
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    MalformedRequest,
    Operation,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import UID, ClaimedDevice, ClaimRecord
from gpushare.protocol.kubernetes import (
    CLAIM_DEVICES_MAX,
    CLAIM_PODS_MAX,
    AllocationFolder,
    ClaimDevice,
    ClaimStatus,
)
from gpushare.quota.errors import quoted

_MOST_BYTES: Final = 1 << 50  # of a card
_MOST_PARAMETERS: Final = 16
#: The name of a namespace, or of a claim (RFC 1123).
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def _allocation(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    uuid, memory_bytes = request.text("card", 96), request.number("memory_bytes", 1, _MOST_BYTES)
    folder = scheduled.allocation_folder(uuid, memory_bytes, state.loaded(), state.config)
    return reply({**AllocationFolder(folder=folder)})


def _prepare(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    claim = ClaimRecord(
        request.matched("claim", UID),
        request.matched("namespace", _NAME),
        request.matched("name", _NAME),
        _pods(request),
        tuple(_devices(request)),
        _parameters(request),
    )
    return reply({**claims.prepare(claim, state)})


def _set_pods(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    claims.set_pods(request.matched("claim", UID), _pods(request), state)
    return reply()


def _unprepare(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    claims.unprepare(request.matched("claim", UID), state)
    return reply()


def _claims(_request: ControlRequest, state: DaemonState) -> ControlReply:
    return (dict(_row(claim, state)) for claim in state.ledger.claims.values()), {}


def _row(claim: ClaimRecord, state: DaemonState) -> ClaimStatus:
    return ClaimStatus(
        claim=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        pods=list(claim.pods),
        devices=[
            ClaimDevice(
                request=device.request,
                card=device.card,
                memory_bytes=device.memory_bytes,
                cores=device.cores,
                share=device.share,
            )
            for device in claim.devices
        ],
        parameters=dict(claim.parameters),
        tenants=[
            record.id for record in state.ledger.entries.values() if record.claim == claim.uid
        ],
    )


def _pods(request: ControlRequest) -> tuple[str, ...]:
    """Return the UIDs of the pods in a request; MalformedRequest."""
    found = request.fields.get("pods")
    if not isinstance(found, list) or len(found) > CLAIM_PODS_MAX:
        raise MalformedRequest(f"pods is not a list of at most {CLAIM_PODS_MAX} UIDs")
    for uid in found:
        if not isinstance(uid, str) or not UID.fullmatch(uid):
            raise MalformedRequest(f"pods: {quoted(str(uid))} is not the UID of a pod")
    return tuple(dict.fromkeys(found))


def _devices(request: ControlRequest) -> Iterator[ClaimedDevice]:
    """Yield the devices in a request; MalformedRequest."""
    found = request.fields.get("devices")
    if not isinstance(found, list) or not 1 <= len(found) <= CLAIM_DEVICES_MAX:
        raise MalformedRequest(f"devices is not a list of 1 to {CLAIM_DEVICES_MAX}")
    for fields in found:
        if not isinstance(fields, dict):
            raise MalformedRequest("devices has an entry that is not an object")
        device = ControlRequest(fields, request.peer)
        yield ClaimedDevice(
            device.text("request", 253),
            device.text("card", 96),
            device.number("memory_bytes", 1, _MOST_BYTES),
            device.number("cores", 0, 100),
            device.text("share", 253) if fields.get("share") else "",
        )


def _parameters(request: ControlRequest) -> dict[str, str]:
    """Return the parameters in a request, by canonical key; MalformedRequest."""
    found: Any = request.fields.get("parameters", {})
    if not isinstance(found, dict) or len(found) > _MOST_PARAMETERS:
        raise MalformedRequest(f"parameters is not an object of at most {_MOST_PARAMETERS} keys")
    return {key: ControlRequest(found, request.peer).text(key, 64) for key in sorted(found)}


KUBERNETES_OPERATIONS: Final[Mapping[str, Operation]] = {
    "allocation": Operation(_allocation, "decide"),
    "claim-prepare": Operation(_prepare, "decide"),
    "claim-pods": Operation(_set_pods, "decide"),
    "claim-unprepare": Operation(_unprepare, "decide"),
    "claims": Operation(_claims),
}
