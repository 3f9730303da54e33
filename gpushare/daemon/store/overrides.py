# SPDX-License-Identifier: Apache-2.0
"""What the operator set for a container, or for a card: it holds across stop, start and reboot.

One JSON file in state_dir, `{"<id>": {"memory": "6GiB"}}`, by the container's id or the card's
UUID, replaced by rename and synced: it is the operator's word and outlives everything else.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.errors import UserError
from gpushare.quota import Source
from gpushare.quota.keys import KEYS, OPERATORS, read

_MOST: Final = 4096  # containers; the oldest is forgotten


class OverridesError(UserError):
    """The operator's settings cannot be read; going on would silently undo them."""


class Overrides:
    """The file `name` in `directory`, kept in memory; the decide thread's.

    `command` is what it has the words of.
    """

    def __init__(
        self, directory: Path, name: str = "overrides.json", command: str = "gpushare set"
    ) -> None:
        self._file = directory / name
        self._command = command
        self._values = self._read()

    def of(self, identity: str) -> Mapping[str, str]:
        """Return what was set for `identity`, by canonical key."""
        return self._values.get(identity, {})

    def set(self, identity: str, asked: Mapping[str, str]) -> None:
        """Note `asked`, by canonical key, for `identity`; OSError when the disk fails."""
        values = {name: dict(keys) for name, keys in self._values.items()}
        values[identity] = {**values.pop(identity, {}), **asked}
        while len(values) > _MOST:
            del values[next(iter(values))]
        self._write(values)
        self._values = values

    def forget(self, identity: str) -> None:
        """Note that nothing is set for `identity` any more; OSError when the disk fails."""
        values = {name: keys for name, keys in self._values.items() if name != identity}
        if len(values) < len(self._values):
            self._write(values)
            self._values = values

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OverridesError(f"{self._file}: {error.strerror}") from error
        try:
            return {str(name): _checked(keys) for name, keys in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise OverridesError(
                f"{self._file} is damaged ({error}): it has what `{self._command}` was told; "
                "correct it, or remove it to go on without"
            ) from error

    def _write(self, values: Mapping[str, Mapping[str, str]]) -> None:
        draft = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}")
        try:
            with draft.open("x", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        directory = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _checked(keys: Mapping[str, object]) -> dict[str, str]:
    """Return what was set for one id; ValueError for what no command of ours has written."""
    said = {str(key): str(value) for key, value in keys.items()}
    for key, text in said.items():
        read(key, Source("operator", key), text, {**KEYS, **OPERATORS})
    return said
