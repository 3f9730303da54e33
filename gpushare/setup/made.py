# SPDX-License-Identifier: Apache-2.0
"""What `gpushare setup` made on a machine, kept so that `--undo` removes that and nothing else.

Every method first records, then makes: what was interrupted can be undone too. Paths are those of
the machine; `root` is where it lies while it is set up (`/`, or the folder of an image).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

from gpushare.engines.place import beneath

RECORD: Final = Path("/var/lib/gpushare/setup.json")


class Made:
    """The files, links, folders, whole trees and registrations that setup made beneath `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.files: dict[str, str] = {}  # sha256 of what was written
        self.links: dict[str, str] = {}
        self.folders: list[str] = []  # in the order they were made
        self.trees: list[str] = []
        self.engines: dict[str, str] = {}  # engine to configuration file

    @classmethod
    def read(cls, root: Path = Path("/")) -> Made:
        """Return the record beneath `root`; an empty one where nothing was set up."""
        made = cls(root)
        try:
            record: dict[str, Any] = json.loads(beneath(root, RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return made
        made.files |= record["files"]
        made.links |= record["links"]
        made.folders += record["folders"]
        made.trees += record["trees"]
        made.engines |= record["engines"]
        return made

    @property
    def empty(self) -> bool:
        """Whether nothing was made."""
        return not (self.files or self.links or self.folders or self.trees or self.engines)

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a file that was not there, or that setup wrote before."""
        self.folder(path.parent)
        self.files[str(path)] = _digest(text.encode())
        self._save()
        _replace(beneath(self.root, path), text, mode)

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link, in place of one that setup made before."""
        self.folder(path.parent)
        self.links[str(path)] = str(target)
        self._save()
        place = beneath(self.root, path)
        draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        draft.symlink_to(target)
        draft.replace(place)

    def folder(self, path: Path) -> None:
        """Make a folder and those above it; recorded with what is made in it next."""
        missing: list[Path] = []
        while not beneath(self.root, path).is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            self.folders.append(str(folder))
            if folder == RECORD.parent:
                self.trees.append(str(folder))  # with what the daemon will keep there
            beneath(self.root, folder).mkdir(mode=0o755)

    def tree(self, path: Path) -> None:
        """Record a folder that is ours with everything in it."""
        self.folder(path.parent)
        if str(path) not in self.trees:
            self.trees.append(str(path))
        self._save()

    def engine(self, name: str, path: Path) -> None:
        """Record a registration."""
        self.engines[name] = str(path)
        self._save()

    def owns(self, path: Path) -> bool:
        """Whether the file at `path` is there as setup wrote it."""
        place = beneath(self.root, path)
        wrote = self.files.get(str(path))
        return wrote is not None and place.is_file() and _digest(place.read_bytes()) == wrote

    def edited(self) -> list[str]:
        """Return the files that somebody else has written since."""
        return [
            name
            for name in self.files
            if beneath(self.root, Path(name)).exists()
            and not self.owns(Path(name))
            # In our own folder gpushared renews what setup wrote first.
            and RECORD.parent not in Path(name).parents
        ]

    def remove(self) -> list[str]:
        """Remove everything that is as it was made; return what else is left, with the reason."""
        left: list[str] = []
        for name in self.files.keys() - set(self.edited()):
            beneath(self.root, Path(name)).unlink(missing_ok=True)
        for name, target in self.links.items():
            place = beneath(self.root, Path(name))
            if place.is_symlink() and str(place.readlink()) == target:
                place.unlink()
        for name in self.trees:
            shutil.rmtree(beneath(self.root, Path(name)), ignore_errors=True)
        beneath(self.root, RECORD).unlink(missing_ok=True)
        for name in reversed(self.folders):
            place = beneath(self.root, Path(name))
            try:
                place.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(f"{name} stays: {error.strerror}")
        return left

    def _save(self) -> None:
        self.folder(RECORD.parent)
        record = {
            "files": self.files,
            "links": self.links,
            "folders": self.folders,
            "trees": self.trees,
            "engines": self.engines,
        }
        _replace(beneath(self.root, RECORD), json.dumps(record, indent=2) + "\n", 0o644)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _replace(place: Path, text: str, mode: int) -> None:
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # whatever the umask
        file.write(text)
    draft.replace(place)
