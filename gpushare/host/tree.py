# SPDX-License-Identifier: Apache-2.0
"""Files of a tree that is, or will be, somebody's root: links in it are followed within it.

A driver container's root lies in a folder of the host, an image that is set up in another. Both are
trusted: this is about where a link leads, not about who made it (gpushare/oci/rootfs.py is for
that).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40  # MAXSYMLINKS of the kernel


@dataclass(frozen=True)
class Tree:
    """The folder `top`, called `/` by the paths in it."""

    top: Path = Path("/")

    def real(self, path: str) -> str | None:
        """Return `path` without links, None where nothing is there or the links go in a circle."""
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
        found = "/" + "/".join(done)
        return found if self.at(found).exists() else None

    def at(self, path: str) -> Path:
        """Return where `path`, which has no links, is on this machine."""
        return self.top / path.lstrip("/")

    def file(self, path: str) -> str | None:
        """Return the real path of a regular file with something in it, else None."""
        real = self.real(path)
        if real is None or not self.at(real).is_file() or not self.at(real).stat().st_size:
            return None
        return real

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that match `pattern`, sorted; links in folders are not followed."""
        found = self.top.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.top)) for path in found)

    def text(self, path: str) -> str:
        """Return the text of a small file of the kernel's; empty where there is none."""
        try:
            return self.at(path).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
