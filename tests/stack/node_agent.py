# SPDX-License-Identifier: Apache-2.0
"""gpushare-node beside a stack's gpushared, with a kubelet's folder of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from .api_server import StandInApiServer
from .program import ServiceProcess
from .stack import Stack

PROGRAM = Path(sys.executable).parent / "gpushare-node"


class NodeAgent:
    """Runs between `start` and `stop`; `folder` stands for /var/lib/kubelet.

    Its path is short: a socket's has at most 107 bytes.
    """

    def __init__(self, stack: Stack, *options: str) -> None:
        self._stack, self._options = stack, options
        self._made = tempfile.TemporaryDirectory(prefix="kubelet-")
        self.folder = Path(self._made.name)
        self.process: ServiceProcess | None = None

    def __enter__(self) -> NodeAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._made.cleanup()

    def start(self) -> ServiceProcess:
        argv = [
            str(PROGRAM),
            "--socket",
            str(self._stack.socket),
            "--kubelet-dir",
            str(self.folder),
            *self._options,
        ]
        self.process = self._stack.start("gpushare-node", argv)
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def log(self) -> str:
        return (self._stack.root / "gpushare-node.log").read_text()


def write_kubeconfig(path: Path, cluster: StandInApiServer, **user: Any) -> Path:
    """Write a kubeconfig for the stand-in API server; return its path."""
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
    }
    path.touch(0o600)
    path.write_text(json.dumps(document))
    return path
