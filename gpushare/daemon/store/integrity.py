# SPDX-License-Identifier: Apache-2.0
"""Whether all reservations are known; if not, new ones are refused until an operator intervenes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpushare.daemon.core.log import log
from gpushare.errors import UserError


class IntegrityLost(UserError):
    """A reservation is not known any more: a new one could be of the same memory."""


class IntegrityCheck:
    """Refuses new reservations while one is not known, until an operator intervenes.

    `file` (`<run_dir>/integrity-lost`) has the reasons, for boot `boot_id`. An operator removes it
    to confirm that no unknown container uses a GPU. Any thread may read `why`, a sentence for the
    operator, "" if all reservations are known; the rest is the decide thread's.
    """

    def __init__(self, file: Path, boot_id: str) -> None:
        self._file = file
        self._boot_id = boot_id
        self.is_kept = True  # in the file, so the next daemon finds it
        self._set_reasons(self._read())

    def add(self, reason: str) -> None:
        """Refuse new reservations, for `reason`."""
        if reason in self._reasons:
            return
        self._set_reasons((*self._reasons, reason))
        log("integrity-lost", "error", reason=reason)
        self._keep()

    def look(self) -> None:
        """Allow new reservations if an operator has removed the file."""
        if not self.is_kept:
            self._keep()
        elif self._reasons and not self._file.exists():
            self._set_reasons(())
            log("integrity-confirmed", "warning", file=str(self._file))

    def refuse(self) -> None:
        """Raise IntegrityLost if new reservations are refused."""
        self.look()
        if self._reasons:
            raise IntegrityLost(self.why)

    def _set_reasons(self, reasons: tuple[str, ...]) -> None:
        self._reasons = reasons
        self.why = ""
        if reasons:
            self.why = (
                f"new reservations are refused: {'; '.join(reasons)}. Stop the containers that "
                f"use a GPU and are not in gpushare ps, then rm {self._file}"
            )

    def _keep(self) -> None:
        """Write the file. On a full disk this fails, and the next daemon finds the same damage."""
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
            boot_id, reasons = self._boot_id, ["the reasons of an earlier gpushared are damaged"]
        if boot_id != self._boot_id:
            self._file.unlink(missing_ok=True)
            return ()
        return tuple(reasons)
