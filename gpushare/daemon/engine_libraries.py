# SPDX-License-Identifier: Apache-2.0
"""The client libraries of remote engines: read, compared with the configuration, and digested.

That is when gpushared starts and when its configuration is read again. A container gets the files
that were read: is_unchanged() compares what the kernel says of them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.errors import UserError
from gpushare.oci import cdi, elf
from gpushare.oci.driver_files import CUDA, NVML, DriverFiles, Library
from gpushare.oci.elf import Platform
from gpushare.remote_gpu import RemoteEngine


@dataclass(frozen=True)
class EngineLibraries:
    """The client libraries of an engine as they were read; without `files`, `fault` says why."""

    files: DriverFiles | None = None
    stamps: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    fault: str = ""

    @property
    def is_unchanged(self) -> bool:
        """Whether no file was written or replaced since it was read."""
        try:
            return all(_stamp(path) == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False


class BadEngine(UserError):
    """The libraries of an engine cannot be used."""


def load_engines(config: Config, platform: Platform) -> dict[str, EngineLibraries]:
    """Return the engines of the configuration; of one that cannot be used, why."""
    return {name: _load(name, engine, platform) for name, engine in config.remote.engines.items()}


def _load(name: str, engine: RemoteEngine, platform: Platform) -> EngineLibraries:
    try:
        files, stamps = _files(engine.libraries, platform), {}
        for library in files.libraries:
            path = Path(library.host_path)
            stamps[path] = _stamp(path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            log("remote-engine-read", engine=name, file=str(path), sha256=digest)
            if library is files.cuda:
                _refuse_another(path, digest, f"remote.engines.{name}.version", engine.version)
    except (BadEngine, OSError) as error:
        log("remote-engine-unusable", "error", engine=name, reason=str(error))
        return EngineLibraries(fault=str(error))
    return EngineLibraries(files, stamps)


def _refuse_another(path: Path, digest: str, key: str, version: str) -> None:
    if not digest.startswith(version):
        raise BadEngine(
            f"{path} is another version: its SHA-256 is {digest[:16]}..., and {key} is {version}. "
            "Install that version, or change the key"
        )


def _files(folder: Path, platform: Platform) -> DriverFiles:
    """Return the libraries in a folder as a driver without devices; BadEngine, OSError."""
    if folder.resolve() != folder:
        raise BadEngine(f"{folder} leads through a symbolic link; write {folder.resolve()}")
    for above in (folder, *folder.parents):
        _refuse_writable(above, may_be_sticky=above != folder)
    directory = platform.library_directories[0]
    libraries = tuple(_libraries(folder, directory))
    found = {library.soname: library for library in libraries}
    for name in (CUDA, NVML):
        if name not in found:
            raise BadEngine(f"{folder} has no {name}; install the engine's client libraries there")
    nothing = cdi.CdiSpec("0.6.0", "gpushare/remote", cdi.CdiEdits(), {})
    return DriverFiles(nothing, found[CUDA], found[NVML], libraries)


def _libraries(folder: Path, directory: str) -> Iterator[Library]:
    """Yield each library that programs look for by the name of a file in `folder`."""
    for path in sorted(folder.iterdir()):
        if ".so" not in path.name:
            continue
        real = path.resolve()
        if real.parent != folder or not real.is_file():
            raise BadEngine(f"{path} leads to {real}, which is no file in {folder}; copy it there")
        _refuse_writable(real)
        soname = None
        with suppress(elf.ElfError):
            soname = elf.soname(str(real))
        if soname in (None, path.name):
            yield Library(str(real), f"{directory}/{path.name}", path.name)


def _refuse_writable(path: Path, *, may_be_sticky: bool = False) -> None:
    """Raise BadEngine for what others than root can write, or replace beneath `path`."""
    status = path.stat()
    # In a folder such as /tmp, only root replaces what belongs to root.
    is_sticky = may_be_sticky and status.st_mode & stat.S_ISVTX
    if status.st_uid not in {0, os.geteuid()} or (status.st_mode & 0o022 and not is_sticky):
        raise BadEngine(
            f"{path} can be written by others than root; chown root {path} and chmod go-w {path}"
        )


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
