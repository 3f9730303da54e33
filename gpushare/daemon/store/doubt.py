# SPDX-License-Identifier: Apache-2.0
"""When it cannot be known what is promised, nothing new is: until an operator says that it is well.

`<run_dir>/doubt` says why, and holds for this boot. Removing the file is the operator's word.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpushare.daemon.log import log
from gpushare.errors import UserError


class InDoubt(UserError):
    """Something was promised that is not known any more: a new promise could be of the same."""


class Doubt:
    """The file `file`, of boot `boot_id`; the decide thread's, `why` may be read by any."""

    def __init__(self, file: Path, boot_id: str) -> None:
        self._file = file
        self._boot_id = boot_id
        self._is_written = False
        self._reasons: tuple[str, ...] = self._read()

    @property
    def why(self) -> str:
        """A sentence for the operator, "" where there is no doubt."""
        if not self._reasons:
            return ""
        return (
            f"nothing new is promised: {'; '.join(self._reasons)}. End the containers that use a "
            f"GPU and are not in gpushare ps, then rm {self._file}"
        )

    def add(self, reason: str) -> None:
        """Promise nothing more, for `reason`."""
        if reason in self._reasons:
            return
        self._reasons = (*self._reasons, reason)
        log("state-in-doubt", "error", why=reason)
        # On a full disk it holds as long as this daemon, and the next one finds the same.
        with contextlib.suppress(OSError):
            self._file.write_text("\n".join((self._boot_id, *self._reasons)) + "\n")
            self._is_written = True

    def look(self) -> None:
        """Notice that the operator has removed the file."""
        if self._reasons and self._is_written and not self._file.exists():
            self._reasons = ()
            log("state-cleared", "warning", file=str(self._file))

    def refuse(self) -> None:
        """Raise InDoubt where there is any."""
        self.look()
        if self._reasons:
            raise InDoubt(self.why)

    def _read(self) -> tuple[str, ...]:
        try:
            boot_id, *reasons = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError):
            boot_id, reasons = self._boot_id, ["what an earlier daemon was in doubt of is damaged"]
        if boot_id != self._boot_id:
            self._file.unlink(missing_ok=True)
            return ()
        self._is_written = True
        return tuple(reasons)
