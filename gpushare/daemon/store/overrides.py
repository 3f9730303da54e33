# SPDX-License-Identifier: Apache-2.0
"""The operator's settings of a container, a card or the node: they hold across stop and reboot.

One JSON file in state_dir, `{"<id>": {"memory": "6GiB"}}`, by the container's id, the card's UUID
or the label of the node, and replaced by rename and synced: it is the operator's word and outlives
everything else. gpushared does not start with a file that is damaged, or was edited into an invalid
one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.errors import UserError
from gpushare.oci.bounded_read import replace_file
from gpushare.quota.keys import KEYS, OPERATORS, read
from gpushare.quota.node_settings import NODE_SETTINGS
from gpushare.quota.request import ValueSource

_KNOWN: Final = {**KEYS, **OPERATORS, **NODE_SETTINGS}
_MOST: Final = 4096  # containers; the oldest is forgotten
#: Of a card: why nothing new is to be placed on it, in the operator's own words; empty: no reason.
CORDONED: Final = "cordoned"


class OverridesError(UserError):
    """The operator's settings cannot be read; going on would silently undo them."""


class Overrides:
    """The file `name` in `directory`, kept in memory; the decide thread's.

    `command` is the one that writes it. OverridesError: the file cannot be read.
    """

    def __init__(
        self, directory: Path, name: str = "overrides.json", command: str = "gpushare set"
    ) -> None:
        self._file = directory / name
        try:
            self._values = _load(self._file)
        except ValueError as error:
            raise OverridesError(
                f"{self._file} is damaged ({error}): it stores the settings of `{command}`. "
                "Correct it, or remove it to continue without them"
            ) from error

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

    def forget(self, identity: str, *keys: str) -> None:
        """Note that `keys` are not set for `identity` any more; OSError when the disk fails."""
        kept = {name: text for name, text in self.of(identity).items() if name not in keys}
        if kept == self.of(identity):
            return
        values = {name: keys for name, keys in self._values.items() if name != identity}
        if kept:
            values[identity] = kept
        self._keep(values)

    def _keep(self, values: dict[str, dict[str, str]]) -> None:
        content = json.dumps(values, indent=1) + "\n"
        replace_file(self._file, content.encode(), 0o600, synced=True)
        directory = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._values = values


def _load(file: Path) -> dict[str, dict[str, str]]:
    """Return what is in `file`, which may be missing; ValueError where it is damaged."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OverridesError(f"{file}: {error.strerror}") from error
    try:
        return {str(name): _checked(keys) for name, keys in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _checked(keys: Mapping[str, object]) -> dict[str, str]:
    """Return what was set for one id; ValueError for what no command of ours has written."""
    checked = {str(key): str(value) for key, value in keys.items()}
    for key, text in checked.items():
        if key != CORDONED:
            read(key, ValueSource("operator", key), text, _KNOWN)
    return checked
