# SPDX-License-Identifier: Apache-2.0
"""The runtime in docker's daemon.json.

Source: dockerd(8), "runtimes" and "default-runtime"; both are read again on SIGHUP.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.engines import json_text
from gpushare.engines.errors import BadConfiguration
from gpushare.engines.place import NAME, text_of

_RUNTIMES: Final = "runtimes"
_DEFAULT: Final = "default-runtime"


@dataclass(frozen=True)
class DaemonJson:
    """The file; what dockerd's flags say already, and it may not say again, is given as reasons."""

    runtimes_taken: str = ""
    default_taken: str = ""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime in it, as docker's default where that is asked."""
        found = _read(text)
        taken = self.runtimes_taken or (self.default_taken if default else "")
        if taken:
            raise BadConfiguration(taken)
        edited = text if text.strip() else "{\n}\n"
        if found.get(_RUNTIMES, {}).get(NAME) != {"path": str(launcher)}:
            edited = json_text.put(edited, [_RUNTIMES, NAME], {"path": str(launcher)})
        if default and found.get(_DEFAULT) != NAME:
            edited = json_text.put(edited, [_DEFAULT], NAME)
        return edited

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the runtime; the default becomes what it is in `original`."""
        found = _read(text)
        edited = text
        if found.get(_DEFAULT) == NAME:
            before = _read(original).get(_DEFAULT)
            if before in {None, NAME}:
                edited = json_text.drop(edited, [_DEFAULT])
            else:
                edited = json_text.put(edited, [_DEFAULT], before)
        if set(found.get(_RUNTIMES, {})) == {NAME}:
            return json_text.drop(edited, [_RUNTIMES])
        return json_text.drop(edited, [_RUNTIMES, NAME])

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""
        entry = _read(text).get(_RUNTIMES, {}).get(NAME)
        return Path(str(entry.get("path", ""))) if isinstance(entry, dict) else None

    def is_default(self, text: str) -> bool:
        """Return whether containers get the runtime without asking for it."""
        return _read(text).get(_DEFAULT) == NAME

    def remarks(self, text: str) -> list[str]:  # noqa: ARG002 - other syntaxes take it
        """Return nothing: there is nothing to know."""
        return []

    def default_program(self, file: Path) -> str | None:
        """Return the program of the default runtime in `file`; None for docker's own, or ours."""
        try:
            found = _read(text_of(file))
        except BadConfiguration:
            return None  # `register` says what is wrong
        chosen = found.get(_DEFAULT)
        entry = found.get(_RUNTIMES, {}).get(chosen) if chosen != NAME else None
        if isinstance(entry, dict) and entry.get("path"):
            return str(entry["path"])
        return str(chosen) if chosen not in {None, NAME, "runc"} else None


def forgotten_by_reload(before: str, after: str) -> bool:
    """Return whether a reload takes back what `before` says of the runtime and `after` does not.

    A key that is in the file no more changes nothing: dockerd keeps the runtimes and the default
    that it has. Source: moby daemon/reload_unix.go; tried with 20.10 and 26.1.
    """
    left = _read(after)
    was_default = _read(before).get(_DEFAULT) == NAME
    return bool(left.get(_RUNTIMES)) and (not was_default or _DEFAULT in left)


def _read(text: str) -> dict[str, Any]:
    found = json_text.parse(text) if text.strip() else {}
    if not isinstance(found.get(_RUNTIMES, {}), dict):
        raise BadConfiguration(f'"{_RUNTIMES}" is not an object')
    return found
