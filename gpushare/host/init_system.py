# SPDX-License-Identifier: Apache-2.0
"""How a service is started or restarted on this machine: advice that its init system understands.

Source: sd_booted(3) for systemd, rc-service(8) for OpenRC, service(8) for System V scripts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: By hand, without an init system, where a signal suffices.
_BY_HAND: Final = {("reload", "docker"): "kill -HUP $(pidof dockerd)"}


def has_systemd(root: Path = Path("/")) -> bool:
    """Whether systemd is this machine's init system, and running."""
    return (root / "run/systemd/system").is_dir()


def advice(command: str, root: Path = Path("/")) -> str:
    """Return `systemctl VERB UNIT` in the words of this machine's init system.

    Without one, as in a container, the result says what to do by hand. Other commands are returned
    as they are.
    """
    words = command.split()
    if words[:1] != ["systemctl"] or len(words) != 3 or has_systemd(root):
        return command
    _, verb, unit = words
    if (root / "run/openrc").is_dir():
        return f"rc-service {unit} {verb}"
    if (verb, unit) in _BY_HAND:
        return _BY_HAND[verb, unit]
    if _runs_scripts(root) and os.access(root / "etc/init.d" / unit, os.X_OK):
        return f"service {unit} {verb}"
    return f"{verb} {unit} by hand (no init system runs)"


def _runs_scripts(root: Path) -> bool:
    try:
        return (root / "proc/1/comm").read_text(encoding="utf-8").strip() == "init"
    except OSError:
        return False
