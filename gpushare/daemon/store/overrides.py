# SPDX-License-Identifier: Apache-2.0
"""The operator's settings of a container, a card or the node: they hold across stop and reboot.

One JSON file in state_dir, `{"<id>": {"memory": "6GiB"}}`, by the container's id, the card's UUID
or the label of the node, and replaced by rename and synced: it is the operator's word and outlives
everything else. Beside it, as FILE.last, is what was last read or written and good: a file that is
damaged, or that was edited into an invalid one, is set aside and that is taken instead.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.errors import UserError
from gpushare.quota.keys import KEYS, OPERATORS, read
from gpushare.quota.node_settings import NODE_SETTINGS
from gpushare.quota.request import ValueSource

_KNOWN: Final = {**KEYS, **OPERATORS, **NODE_SETTINGS}
_MOST: Final = 4096  # containers; the oldest is forgotten
_MOST_DAMAGED: Final = 4  # versions of one damaged file; the oldest is removed
#: Of a card: why nothing new is to be placed on it, in the operator's own words; empty: no reason.
CORDONED: Final = "cordoned"


class OverridesError(UserError):
    """The operator's settings cannot be read; going on would silently undo them."""


class Overrides:
    """The file `name` in `directory`, kept in memory; the decide thread's.

    `command` is the one that writes it. `notice` says what was set aside, "" where nothing was.
    OverridesError: neither the file nor the last one is good.
    """

    def __init__(
        self, directory: Path, name: str = "overrides.json", command: str = "gpushare set"
    ) -> None:
        self._file = directory / name
        self._last = directory / f"{name}.last"
        self._command = command
        self.notice = ""
        self._values = self._read()

    def of(self, identity: str) -> Mapping[str, str]:
        """Return what was set for `identity`, by canonical key."""
        return self._values.get(identity, {})

    def all(self) -> Mapping[str, Mapping[str, str]]:
        """Return what was set, by identity; the latest is the last."""
        return self._values

    def set(self, identity: str, settings: Mapping[str, str]) -> None:
        """Note `settings`, by canonical key, for `identity`; OSError when the disk fails."""
        values = {name: dict(keys) for name, keys in self._values.items()}
        values[identity] = {**values.pop(identity, {}), **settings}
        while len(values) > _MOST:
            del values[next(iter(values))]
        self._keep(values)
        self._values = values

    def forget(self, identity: str, *keys: str) -> None:
        """Note that `keys` are not set for `identity` any more; OSError when the disk fails."""
        kept = {name: text for name, text in self.of(identity).items() if name not in keys}
        if kept == self.of(identity):
            return
        values = {name: keys for name, keys in self._values.items() if name != identity}
        if kept:
            values[identity] = kept
        self._keep(values)
        self._values = values

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            values = _load(self._file)
        except ValueError as error:
            return self._instead(error)
        if values is None:
            last = self._read_last() or {}
            if last:
                self._say(
                    f"{self._file} is missing (to continue without it, remove also "
                    f"{self._last.name})"
                )
            return last
        if values != self._read_last():
            self._write_last(values)
        return values

    def _instead(self, error: ValueError) -> dict[str, dict[str, str]]:
        """Return what was last good; the damaged file is kept aside."""
        values = self._read_last()
        if values is None:
            raise OverridesError(
                f"{self._file} is damaged ({error}): it stores the settings of `{self._command}`. "
                "Correct it, or remove it to continue without them"
            ) from error
        try:
            aside = _set_aside(self._file)
            _write(self._file, values)
        except OSError as failed:
            self._say(f"{self._file} is damaged ({error}) and cannot be replaced ({failed})")
        else:
            self._say(f"{self._file} was damaged ({error}) and is kept as {aside}")
        return values

    def _say(self, reason: str) -> None:
        self.notice = f"{reason}; the last settings of `{self._command}` remain in effect"
        log("overrides-damaged", "error", file=str(self._file), reason=reason)

    def _read_last(self) -> dict[str, dict[str, str]] | None:
        try:
            return _load(self._last)
        except (ValueError, OverridesError):
            return None

    def _keep(self, values: Mapping[str, Mapping[str, str]]) -> None:
        _write(self._file, values)
        self._write_last(values)

    def _write_last(self, values: Mapping[str, Mapping[str, str]]) -> None:
        try:
            _write(self._last, values)
        except OSError as error:
            log("overrides-copy-failed", "warning", file=str(self._last), error=str(error))


def _load(file: Path) -> dict[str, dict[str, str]] | None:
    """Return what is in `file`, None where there is none; ValueError where it is damaged."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OverridesError(f"{file}: {error.strerror}") from error
    try:
        return {str(name): _checked(keys) for name, keys in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _set_aside(file: Path) -> Path:
    """Rename `file` to FILE.damaged-N, and return that; the highest N is the newest. OSError."""
    pattern = re.compile(re.escape(file.name) + r"\.damaged-([1-9]\d{0,8})")
    matches = (pattern.fullmatch(other.name) for other in file.parent.iterdir())
    numbers = sorted(int(match[1]) for match in matches if match)
    aside = file.with_name(f"{file.name}.damaged-{(numbers or [0])[-1] + 1}")
    file.rename(aside)
    for number in numbers[: max(0, len(numbers) + 1 - _MOST_DAMAGED)]:
        file.with_name(f"{file.name}.damaged-{number}").unlink(missing_ok=True)
    return aside


def _write(file: Path, values: Mapping[str, Mapping[str, str]]) -> None:
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as opened:
            json.dump(values, opened, indent=1)
            opened.write("\n")
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _checked(keys: Mapping[str, object]) -> dict[str, str]:
    """Return what was set for one id; ValueError for what no command of ours has written."""
    checked = {str(key): str(value) for key, value in keys.items()}
    for key, text in checked.items():
        if key != CORDONED:
            read(key, ValueSource("operator", key), text, _KNOWN)
    return checked
