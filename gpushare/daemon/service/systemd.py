# SPDX-License-Identifier: Apache-2.0
"""What systemd and its services tell each other: sd_notify(3), sd_listen_fds(3), the watchdog.

Without systemd none of the variables is set, and nothing here does anything.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from gpushare.daemon.log import log

_FIRST_FD: Final = 3  # SD_LISTEN_FDS_START


def notify(state: str) -> None:
    """Tell systemd, where it asked; `state` is e.g. `READY=1`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        try:
            notifying.connect(address)
            notifying.send(state.encode())
        except OSError as error:
            log("notify-failed", "warning", error=str(error))


def watchdog_seconds() -> float | None:
    """Return after how long without a word systemd ends this process, None where it does not."""
    period = os.environ.get("WATCHDOG_USEC", "")
    if not period.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(period) / 1_000_000


def inherited_listener(path: Path) -> socket.socket | None:
    """Return the listening socket at `path` that systemd made, None where there is none."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    for fd in range(_FIRST_FD, _FIRST_FD + int(os.environ.get("LISTEN_FDS") or 0)):
        with socket.socket(fileno=os.dup(fd)) as found:
            known = (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if known and found.getsockname() == str(path):
                os.set_inheritable(fd, False)
                return socket.socket(fileno=fd)
    return None
