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
        self.is_kept = True  # so that the next daemon has it too
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
        self._keep()

    def look(self) -> None:
        """Notice that the operator has removed the file."""
        if not self.is_kept:
            self._keep()
        elif self._reasons and not self._file.exists():
            self._reasons = ()
            log("state-cleared", "warning", file=str(self._file))

    def refuse(self) -> None:
        """Raise InDoubt where there is any."""
        self.look()
        if self._reasons:
            raise InDoubt(self.why)

    def _keep(self) -> None:
        """Write the file. On a full disk the doubt is this daemon's; the next finds the same."""
        draft = self._file.with_name(f".{self._file.name}")
        self.is_kept = False
        with contextlib.suppress(OSError):
            draft.write_text("\n".join((self._boot_id, *self._reasons)) + "\n", encoding="utf-8")
            draft.rename(self._file)
            self.is_kept = True

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
        return tuple(reasons)
