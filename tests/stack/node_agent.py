# SPDX-License-Identifier: Apache-2.0
"""gpushare-node beside a stack's gpushared, with a kubelet's folder of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import yaml

from gpushare.client import Client, DaemonUnreachable

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


def set_mode(stack: Stack, mode: str, **more: str) -> None:
    """Set the node's mode, and `more` in that section; a gpushared that runs reads it again."""
    settings = yaml.safe_load(stack.config.read_text()) or {}
    settings["kubernetes"] = {"mode": mode, **more}
    stack.config.write_text(yaml.safe_dump(settings))
    with suppress(DaemonUnreachable):
        Client(stack.socket).reload()


def write_kubeconfig(path: Path, cluster: StandInApiServer) -> Path:
    """Write a kubeconfig for the stand-in API server; return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.touch(0o600)
    path.write_text(json.dumps(document))
    return path
