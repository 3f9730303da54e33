# SPDX-License-Identifier: Apache-2.0
"""The mode of a node of Kubernetes, and the refusal of what is for a node of another one.

A node has one mode, because two schedulers that do not know of each other would allocate the same
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.protocol.kubernetes import MODE_LABEL, NodeMode
from gpushare.quota import QuotaError

_DECIDES: Final[Mapping[NodeMode, str]] = {
    "annotations": "annotations of the pod request the GPU",
    "plugin": "the device plugin allocates GPUs",
    "dra": "ResourceClaims allocate GPUs",
}
#: What to do to get a GPU on a node of each mode.
USE: Final[Mapping[NodeMode, str]] = {
    "annotations": "request the GPU with annotations",
    "plugin": "request a resource of the device plugin in the limits of the container",
    "dra": "request the GPU with a ResourceClaim",
}


def require_mode(wanted: NodeMode, mode: NodeMode, what: str) -> None:
    """Raise QuotaError unless a node of `mode` takes `what`, which is for nodes of `wanted`."""
    if mode != wanted:
        rule = f"is for nodes on which {_DECIDES[wanted]}, and this one has kubernetes.mode: {mode}"
        raise QuotaError(what, None, rule, f"set kubernetes.mode to {wanted}")


def of_another_mode(where: str, value: str | None, means: NodeMode, mode: NodeMode) -> QuotaError:
    """Return the error for a pod that requests by `means` on a node of `mode`."""
    rule = f"cannot be used on this node: {_DECIDES[mode]} here (kubernetes.mode: {mode})"
    fix = f"{USE[mode]}, or select nodes with the label {MODE_LABEL}={means}"
    return QuotaError(where, value, rule, fix)
