# SPDX-License-Identifier: Apache-2.0
"""Where a DRA driver's sockets are, also while two instances of it overlap in a rolling update.

Each instance has sockets of its own then, named by its pod's UID; the kubelet (1.33 and newer)
uses the newest. The names are those of kubernetes' kubeletplugin (draplugin.go).
"""

from __future__ import annotations

import base64
import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.kubernetes.names import DRIVER

PATH_BYTES: Final = 107  # of a Unix socket (sun_path, with a zero at the end)


@dataclass(frozen=True)
class PluginSockets:
    """The socket of the service, and the one by which the kubelet finds it."""

    service: Path
    registration: Path


def plugin_sockets(kubelet: Path, pod_uid: str = "") -> PluginSockets:
    """Return the sockets below the kubelet's root directory; without `pod_uid` of one instance."""
    data, registry = kubelet / "plugins" / DRIVER, kubelet / "plugins_registry"
    if not pod_uid:
        return PluginSockets(data / "dra.sock", registry / f"{DRIVER}-reg.sock")
    names = (
        f"{DRIVER}-{pod_uid}-reg.sock",
        f"{DRIVER}-{_short(pod_uid, 8)}-reg.sock",
        "dra-" + _short(f"{DRIVER}\0{pod_uid}", 16) + "-reg.sock",
    )
    paths = [registry / name for name in names]
    fits = [path for path in paths if len(str(path).encode()) <= PATH_BYTES]
    return PluginSockets(data / f"dra-{pod_uid}.sock", (fits or paths[-1:])[0])


def remove_abandoned(sockets: PluginSockets) -> None:
    """Remove the sockets of instances that were killed: the kubelet would go on calling them."""
    folders = (
        (sockets.service.parent, "dra*.sock"),
        (sockets.registration.parent, f"{DRIVER}-*reg.sock"),
    )
    for folder, pattern in folders:
        for path in folder.glob(pattern):
            if path.is_socket() and not _is_served(path):
                path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # its queue is full, say
    return True


def _short(text: str, count: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:count]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
