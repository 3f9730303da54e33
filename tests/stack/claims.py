# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as the scheduler of a cluster allocates them, in a stand-in API server."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.protocol.kubernetes import DRIVER, device_name

from .api_server import StandInApiServer

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


@dataclass
class AllocatedPart:
    """A card, by its UUID, and what the scheduler gives of it."""

    card: str
    memory: str = "4Gi"
    cores: str = "40"
    request: str = "gpu"


@dataclass
class ScheduledClaim:
    """A claim in the cluster; `uid` is new with each."""

    cluster: StandInApiServer
    name: str
    node: str
    parts: Sequence[AllocatedPart]
    namespace: str = "ai"
    parameters: dict[str, str] = field(default_factory=dict)
    uid: str = field(default_factory=lambda: f"claim-{secrets.token_hex(8)}")

    @property
    def reference(self) -> dict[str, str]:
        """How a kubelet names it to a driver."""
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}

    def reserve(self, *pods: str) -> None:
        """Write it with its allocation, for the pods with these UIDs."""
        path = CLAIMS.format(namespace=self.namespace, name=self.name)
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        metadata["uid"] = self.uid
        kept = self.cluster.objects.get(path, {"metadata": {}})["metadata"]
        reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
        devices = {"results": [self._result(part) for part in self.parts], "config": self._config()}
        status = {"reservedFor": reserved, "allocation": {"devices": devices}}
        self.cluster.put(path, {"metadata": {**kept, **metadata}, "status": status})

    def _result(self, part: AllocatedPart) -> dict[str, Any]:
        return {
            "request": part.request,
            "driver": DRIVER,
            "pool": self.node,
            "device": device_name(part.card),
            "shareID": f"share-{self.uid}",
            "consumedCapacity": {"memory": part.memory, "cores": part.cores},
        }

    def _config(self) -> list[dict[str, Any]]:
        if not self.parameters:
            return []
        kind = {"apiVersion": "gpu.gpushare.io/v1", "kind": "GpuShare"}
        opaque = {"driver": DRIVER, "parameters": {**kind, **self.parameters}}
        return [{"source": "FromClaim", "requests": [], "opaque": opaque}]
