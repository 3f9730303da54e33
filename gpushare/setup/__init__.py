# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: prepares a machine, records every change, and can undo exactly those changes.

`plan` has the steps, `low_level_runtime` finds the runtime that the launcher runs, `optional_unit`
has the steps of --metrics and --kubernetes. InstallRecord, in this module, is what `--undo`
removes, and nothing else. Each of its methods records an object before it creates it, so that an
interrupted setup can be undone too. Paths are those of the machine; `root` is its root during setup
(`/`, or the folder of an image).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

from gpushare.engines.config_files import under_root

RECORD: Final = Path("/var/lib/gpushare/setup.json")


class InstallRecord:
    """The files, links, folders, trees and registrations that setup created under `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.files: dict[str, str] = {}  # path to the sha256 of the content
        self.links: dict[str, str] = {}
        self.folders: list[str] = []  # in the order of creation
        self.trees: list[str] = []
        self.engines: dict[str, str] = {}  # engine to configuration file
        self.low_level = ""  # the low-level runtime that the user chose, a name or path

    @classmethod
    def read(cls, root: Path = Path("/")) -> InstallRecord:
        """Return the record under `root`, an empty one if gpushare is not set up."""
        made = cls(root)
        try:
            record: dict[str, Any] = json.loads(
                under_root(root, RECORD).read_text(encoding="utf-8")
            )
        except FileNotFoundError:
            return made
        made.files |= record["files"]
        made.links |= record["links"]
        made.folders += record["folders"]
        made.trees += record["trees"]
        made.engines |= record["engines"]
        made.low_level = record["low_level"]
        return made

    @property
    def empty(self) -> bool:
        """Whether the record is empty."""
        return not (self.files or self.links or self.folders or self.trees or self.engines)

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a new file, or one that setup wrote before."""
        self.folder(path.parent)
        self.files[str(path)] = _digest(text.encode())
        self._save()
        _replace(under_root(self.root, path), text, mode)

    def link(self, path: Path, target: Path) -> None:
        """Create a symbolic link, or replace one that setup created before."""
        self.folder(path.parent)
        self.links[str(path)] = str(target)
        self._save()
        place = under_root(self.root, path)
        draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        draft.symlink_to(target)
        draft.replace(place)

    def folder(self, path: Path) -> None:
        """Create a folder and its parents; the record is saved with the next object in it."""
        missing: list[Path] = []
        while not under_root(self.root, path).is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            self.folders.append(str(folder))
            if folder == RECORD.parent:
                self.trees.append(str(folder))  # with the files that the daemon writes there
            under_root(self.root, folder).mkdir(mode=0o755)

    def tree(self, path: Path) -> None:
        """Record a folder that is removed with everything in it."""
        self.folder(path.parent)
        if str(path) not in self.trees:
            self.trees.append(str(path))
        self._save()

    def engine(self, name: str, path: Path) -> None:
        """Record a registration."""
        self.engines[name] = str(path)
        self._save()

    def owns(self, path: Path) -> bool:
        """Whether the file at `path` exists and is unchanged since setup wrote it."""
        place = under_root(self.root, path)
        wrote = self.files.get(str(path))
        return wrote is not None and place.is_file() and _digest(place.read_bytes()) == wrote

    def edited(self) -> list[str]:
        """Return the files that another program has changed since."""
        return [
            name
            for name in self.files
            if under_root(self.root, Path(name)).exists()
            and not self.owns(Path(name))
            # In the state directory, gpushared updates files that setup wrote.
            and RECORD.parent not in Path(name).parents
        ]

    def remove(self) -> list[str]:
        """Remove everything that is unchanged; return messages about what remains, with reasons."""
        left: list[str] = []
        for name in self.files.keys() - set(self.edited()):
            under_root(self.root, Path(name)).unlink(missing_ok=True)
        for name, target in self.links.items():
            place = under_root(self.root, Path(name))
            if place.is_symlink() and str(place.readlink()) == target:
                place.unlink()
        for name in self.trees:
            shutil.rmtree(under_root(self.root, Path(name)), ignore_errors=True)
        under_root(self.root, RECORD).unlink(missing_ok=True)
        for name in reversed(self.folders):
            place = under_root(self.root, Path(name))
            try:
                place.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(f"{name} was not removed: {error.strerror}")
        return left

    def _save(self) -> None:
        self.folder(RECORD.parent)
        record = {
            "files": self.files,
            "links": self.links,
            "folders": self.folders,
            "trees": self.trees,
            "engines": self.engines,
            "low_level": self.low_level,
        }
        _replace(under_root(self.root, RECORD), json.dumps(record, indent=2) + "\n", 0o644)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _replace(place: Path, text: str, mode: int) -> None:
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # independent of the umask
        file.write(text)
    draft.replace(place)
