# SPDX-License-Identifier: Apache-2.0
"""Files in a folder that is the root of another system: links are followed within the folder.

Examples are the root of a driver container, and an image during setup. Both are trusted: this
module resolves links correctly, but does not defend against them (gpushare/oci/rootfs.py does).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40  # MAXSYMLINKS of the kernel


@dataclass(frozen=True)
class RootedTree:
    """The folder `top`, which the paths in it refer to as `/`."""

    top: Path = Path("/")

    def real(self, path: str) -> str | None:
        """Return `path` with links resolved, None if it does not exist or the links form a loop."""
        todo = _parts(path)
        done: list[str] = []
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                del done[-1:]
                continue
            place = self.top.joinpath(*done, name)
            if not place.is_symlink():
                done.append(name)
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            target = str(place.readlink())
            if target.startswith("/"):
                done.clear()
            todo += _parts(target)
        real_path = "/" + "/".join(done)
        return real_path if self.at(real_path).exists() else None

    def at(self, path: str) -> Path:
        """Return the path on this machine of `path`, which must not contain links."""
        return self.top / path.lstrip("/")

    def file(self, path: str) -> str | None:
        """Return the real path of a regular file that is not empty, otherwise None."""
        real = self.real(path)
        if real is None or not self.at(real).is_file() or not self.at(real).stat().st_size:
            return None
        return real

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that match `pattern`, sorted; links in folders are not followed."""
        matches = self.top.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.top)) for path in matches)

    def text(self, path: str) -> str:
        """Return the text of a small kernel file, empty if it does not exist."""
        try:
            return self.at(path).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
