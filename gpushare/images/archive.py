# SPDX-License-Identifier: Apache-2.0
"""An image in a file: what `docker save` and `podman save` write, or an OCI archive.

Of a tar only the names that are looked for are kept, as a tree of empty files. A tar is untrusted:
a name that leaves the tree, or goes through a link of it, is skipped, no content is kept, and the
number of names is bounded. The file is read twice: for its documents, and for the layers that they
name.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from gpushare.compatibility import image
from gpushare.images.tar_entries import (
    ArchiveError,
    ArchiveLimit,
    ByteReader,
    ReadBudget,
    TarEntry,
    tar_entries,
    unpack,
)
from gpushare.images.target import ImageTarget, NotFound, variables_of
from gpushare.quota.size import format_size

_MOST_NAMES: Final = 1 << 16
_DEEPEST: Final = 32
#: Links on the way to what is looked for: /usr/local/cuda-12.4/lib64 is one, so deep.
_LINKS_DEEPEST: Final = 4
_COMPAT: Final = re.compile(r"libcuda\.so\.[0-9]{3,}(\.[0-9]+)+", re.ASCII)
_TOO_MANY: Final = "it has over {} such names; the rest was ignored"
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_LONGEST_NAME: Final = 1024
_MOST_WHITEOUTS: Final = 1 << 18
_MOST_JSON: Final = 4 << 20
_MOST_JSON_IN_ALL: Final = 64 << 20
_MOST_BLOBS: Final = 1 << 16
_MOST_LAYERS: Final = 512  # docker stops at 127
_MOST_INDEXES: Final = 8  # one inside another
_MOST_LINKS: Final = 8


@dataclass
class LayerIndex:
    """A tree beneath `fd`; one layer is put over another by adding it later."""

    fd: int
    names: int = 0
    note: str = ""  # what could not be looked at

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[LayerIndex]:
        """Make an empty one in a temporary directory, which goes with it."""
        with tempfile.TemporaryDirectory(prefix="gpushare-compat-") as folder:
            fd = os.open(folder, _DIRECTORY)
            try:
                yield cls(fd)
            finally:
                os.close(fd)

    def add(self, entries: Iterable[TarEntry], budget: ReadBudget) -> None:
        """Put the names of a layer, or of a whole export, into the tree; ArchiveError."""
        for entry in entries:
            budget.spend_time()
            parts = _parts(entry)
            if parts is not None:
                # An entry that does not fit the others is the image's own loss.
                with contextlib.suppress(OSError):
                    self._put(entry, parts)
            if self.names > _MOST_NAMES:
                self.note = _TOO_MANY.format(_MOST_NAMES)
                return

    def _put(self, entry: TarEntry, parts: list[str]) -> None:
        name = parts[-1]
        if name == _OPAQUE:
            self._remove(parts[:-1])
        elif name.startswith(_WHITEOUT):
            self._remove([*parts[:-1], name.removeprefix(_WHITEOUT)])
        elif entry.kind == "symlink":
            if len(parts) > _LINKS_DEEPEST and not _is_wanted(name):
                return
            self._remove(parts)
            with self._folder(parts[:-1]) as fd:
                os.symlink(entry.target, name, dir_fd=fd)
        elif entry.kind in {"file", "hard link"}:
            if _is_wanted(name):
                with self._folder(parts[:-1]) as fd:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    os.close(os.open(name, flags, 0o600, dir_fd=fd))
            else:
                self._put_around(parts[:-1])
        elif entry.kind == "directory":
            self._put_around(parts)

    def _put_around(self, parts: list[str]) -> None:
        """Make that directory among `parts` that is looked for; what is in it is not."""
        for length in range(len(parts), 0, -1):
            if _is_wanted(parts[length - 1]):
                with self._folder(parts[:length]):
                    return

    @contextlib.contextmanager
    def _folder(self, parts: list[str], *, make: bool = True) -> Iterator[int]:
        """Open a directory of the tree, made where it is missing; OSError where a link is met."""
        fd = os.dup(self.fd)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=fd)
                        self.names += 1
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            self.names += 1
            yield fd
        finally:
            os.close(fd)

    def _remove(self, parts: list[str]) -> None:
        with contextlib.suppress(FileNotFoundError), self._folder(parts[:-1], make=False) as fd:
            if not parts:
                return
            try:
                os.unlink(parts[-1], dir_fd=fd)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(Path(f"/proc/self/fd/{fd}") / parts[-1])


def _is_wanted(name: str) -> bool:
    return image.is_relevant(name) or _COMPAT.fullmatch(name) is not None


def _parts(entry: TarEntry) -> list[str] | None:
    """Return the parts of an entry's name, None for a name that is not put into a tree."""
    if len(entry.name) > _LONGEST_NAME or len(entry.target) > _LONGEST_NAME:
        return None
    if "\0" in entry.name or "\0" in entry.target:
        return None
    parts = [part for part in entry.name.split("/") if part not in ("", ".")]
    return parts if parts and ".." not in parts and len(parts) <= _DEEPEST else None


def _matters(entry: TarEntry, parts: list[str]) -> bool:
    """Whether `LayerIndex` does anything for an entry that is no whiteout."""
    if entry.kind == "symlink":
        return len(parts) <= _LINKS_DEEPEST or _is_wanted(parts[-1])
    return any(map(_is_wanted, parts))


@contextmanager
def open_archive(path: Path) -> Iterator[ImageTarget]:
    """Open the image in the file `path`; NotFound. Only the names of its files are kept."""
    with LayerIndex.made() as skeleton:
        try:
            with path.open("rb") as file:
                config = _Archive(file, skeleton).read()
            variables = variables_of(config.get("Env"))
            words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        except ArchiveLimit as error:
            why = "Load it into an engine, for example with docker load, and name the image."
            raise NotFound(f"{path}: {error}. {why}") from error
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            why = f"is not an image saved by docker, podman or OCI tools ({error})"
            raise NotFound(f"{path} {why}. Create one with docker save.") from error
        yield ImageTarget(
            "archive", str(path), variables, tuple(map(str, words)), skeleton.fd, skeleton.note
        )


@dataclass
class _Archive:
    """The file of an image, whose layers' names go into `skeleton`."""

    file: IO[bytes]
    skeleton: LayerIndex
    budget: ReadBudget = field(default_factory=ReadBudget)
    links: dict[str, str] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """Return the image's own configuration; ArchiveLimit, and ValueError or alike."""
        self._find_documents()
        config, layers = self._config_and_layers()
        if len(layers) > _MOST_LAYERS:
            raise ArchiveLimit(f"it has more than {_MOST_LAYERS} layers")
        order = [self._resolved(_normal(layer)) for layer in layers]
        found = self._scan(set(order))
        for name in order:
            if name not in found:
                raise ArchiveError(f"{name} is missing")
            self.skeleton.add(found[name], self.budget)
        return config

    def _entries(self) -> Iterator[TarEntry]:
        size = os.fstat(self.file.fileno()).st_size
        self.file.seek(0)

        def skip(count: int) -> None:
            if self.file.tell() + count > size:
                raise ArchiveError("it is truncated")
            self.file.seek(count, os.SEEK_CUR)

        return tar_entries(unpack(ByteReader(self.file.read, skip), self.budget), self.budget)

    def _find_documents(self) -> None:
        """Read the first of each name that may be JSON, and where the links lead."""
        seen, left = 0, _MOST_JSON_IN_ALL
        for entry in self._entries():
            seen += 1
            if seen > _MOST_BLOBS:
                raise ArchiveLimit(f"it has more than {_MOST_BLOBS} files")
            name = _normal(entry.name)
            if len(name) > _LONGEST_NAME or len(entry.target) > _LONGEST_NAME:
                continue
            if entry.kind == "symlink":
                self.links[name] = _normal(posixpath.join(posixpath.dirname(name), entry.target))
            elif entry.kind == "hard link":
                self.links[name] = _normal(entry.target)
            elif entry.kind == "file" and entry.content.peek(1) in {b"{", b"["}:
                if entry.size > _MOST_JSON:
                    raise ArchiveLimit(f"{name} is larger than {format_size(_MOST_JSON)}")
                left -= entry.size
                if left < 0:
                    most = format_size(_MOST_JSON_IN_ALL)
                    raise ArchiveLimit(f"its documents are larger than {most} in all")
                self.documents.setdefault(name, entry.content.read(entry.size))

    def _config_and_layers(self) -> tuple[dict[str, Any], list[str]]:
        """Return the image's own configuration, and the names of its layers, the lowest first."""
        if "manifest.json" in self.documents:
            manifest = self._json("manifest.json")[0]
            config = self._json(manifest["Config"])
            return config.get("config") or {}, list(manifest["Layers"])
        if "index.json" not in self.documents:
            raise ValueError("it has neither a manifest.json nor an index.json")
        name, visited = "index.json", set[str]()
        manifest = self._json(name)
        while "manifests" in manifest:  # an index may be of indexes, one for each architecture
            visited.add(name)
            name = _blob_name(manifest["manifests"][0])
            if name in visited:
                raise ValueError("an index refers to itself")
            if len(visited) > _MOST_INDEXES:
                raise ArchiveLimit(f"its indexes are nested more than {_MOST_INDEXES} deep")
            manifest = self._json(name)
        config = self._json(_blob_name(manifest["config"]))
        return config.get("config") or {}, [_blob_name(layer) for layer in manifest["layers"]]

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.documents[self._resolved(_normal(name))])
        except KeyError as error:
            raise ValueError(f"{name} is missing or not JSON") from error
        except RecursionError as error:
            raise ArchiveLimit(f"{name} is nested too deeply") from error

    def _resolved(self, name: str) -> str:
        for _ in range(_MOST_LINKS):
            if name not in self.links:
                return name
            name = self.links[name]
        raise ValueError("a link leads to itself")

    def _scan(self, layers: set[str]) -> dict[str, list[TarEntry]]:
        """Return of each layer the entries that matter, in the order of the layer."""
        found: dict[str, list[TarEntry]] = {}
        names = whiteouts = 0
        for member in self._entries():
            name = _normal(member.name)
            if name not in layers or name in found or member.kind != "file":
                continue
            kept = found.setdefault(name, [])
            for entry in tar_entries(unpack(member.content, self.budget), self.budget):
                parts = _parts(entry)
                if parts is None:
                    continue
                if parts[-1].startswith(_WHITEOUT):
                    whiteouts += 1
                elif _matters(entry, parts):
                    names += 1
                else:
                    continue
                if names > _MOST_NAMES or whiteouts > _MOST_WHITEOUTS:
                    self.skeleton.note = _TOO_MANY.format(_MOST_NAMES)
                    break
                kept.append(entry)
        return found


def _normal(name: Any) -> str:
    return posixpath.normpath(str(name)).removeprefix("/")


def _blob_name(described: dict[str, Any]) -> str:
    kind, _, digest = str(described["digest"]).partition(":")
    return f"blobs/{kind}/{digest}"
