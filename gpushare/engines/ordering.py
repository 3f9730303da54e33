# SPDX-License-Identifier: Apache-2.0
"""An engine is started after gpushared's socket: a drop-in of its unit, gone with the runtime.

Containers that restart with the machine then find the socket there, and the launcher waits for the
daemon behind it. After the daemon itself no engine is ordered: one that cannot start, or has to
wait for a driver, would keep those containers down that ask for no GPU.
Source: systemd.unit(5), "drop-in"; `After=` of a unit that is not there orders nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.engines import unit
from gpushare.engines.place import File, beneath

SOCKET: Final = "gpushared.socket"
_FOLDER: Final = Path("/etc/systemd/system")
_NAME: Final = "gpushare.conf"
_TEXT: Final = f"""\
# Made with the registration of {{launcher}}, and goes with it.
# A container that is started with the machine finds gpushared's socket there.
[Unit]
Wants={SOCKET}
After={SOCKET}
"""
_LAUNCHER: Final = re.compile(r"^# Made with the registration of (.+), and goes", re.MULTILINE)


@dataclass(frozen=True)
class DropIn:
    """The whole file is ours."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:  # noqa: ARG002
        """Return the drop-in."""
        return _TEXT.format(launcher=launcher)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002
        """Return `original`: nothing of ours can be left in it."""
        return original

    def registered(self, text: str) -> Path | None:
        """Return the launcher with whose registration it was made, None: it is not ours."""
        found = _LAUNCHER.search(text)
        return Path(found[1]) if found else None

    def is_default(self, text: str) -> bool:  # noqa: ARG002
        """Return False: the order holds for every container."""
        return False

    def remarks(self, text: str) -> list[str]:  # noqa: ARG002
        """Return nothing: there is nothing to know."""
        return []


def files(services: tuple[str, ...], root: Path = Path("/")) -> tuple[File, ...]:
    """Return the drop-ins for those of `services` that have a unit beneath `root`."""
    return tuple(
        File(beneath(root, _FOLDER / f"{service}.service.d" / _NAME), DropIn())
        for service in services
        if unit.is_there(service, root)
    )
