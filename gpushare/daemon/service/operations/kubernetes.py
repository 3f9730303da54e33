# SPDX-License-Identifier: Apache-2.0
"""Operations for gpushare-node, which speaks with the kubelet of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.lifecycle import scheduled
from gpushare.daemon.service.control_request import ControlReply, ControlRequest, Operation, reply
from gpushare.daemon.state import DaemonState
from gpushare.protocol.kubernetes import AllocationFolder

_MOST_BYTES: Final = 1 << 50  # of a card


def _allocation(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    uuid, memory_bytes = request.text("card", 96), request.number("memory_bytes", 1, _MOST_BYTES)
    folder = scheduled.make_folder(uuid, memory_bytes, state.loaded(), state.config)
    return reply({**AllocationFolder(folder=folder)})


KUBERNETES_OPERATIONS: Final[Mapping[str, Operation]] = {
    "allocation": Operation(_allocation, "decide"),
}
