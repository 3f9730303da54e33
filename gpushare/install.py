# SPDX-License-Identifier: Apache-2.0
"""Copies the C programs and libraries into a versioned folder that never changes.

An engine must not use files in a virtual environment, and a library must not change while a
container has it mapped. gpushare therefore uses a copy, `<prefix>/<version>-<sha12>/{bin,lib}`,
whose name is a hash of its content, file names and launcher configuration. Installing the same
version again changes nothing; an upgrade creates a second folder. Engines use `<prefix>/current`,
which is switched in one rename, so that no engine needs a restart. `previous` is the version before
it, for a rollback. The others are removed then. A container keeps the libraries that are mounted in
it: a mount has the file, not its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gpushare
from gpushare.errors import UserError

PREFIX: Final = Path("/usr/local/lib/gpushare")
CURRENT: Final = "current"
PREVIOUS: Final = "previous"
CONFIGURATION: Final = "gpushare-runtime.conf"
_PROGRAMS: Final = ("gpushare-runtime", "gpushare-hook", "gpushare-scheduler")
_DRIVER: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
# Of a version, or of a draft of one whose installation was killed.
_FOLDER: Final = re.compile(r"[^/]+-[0-9a-f]{12}(\.[0-9a-f]{8})?")
_YOUNG_SECONDS: Final = 3600.0  # another `gpushare setup` may be about to make it the current one
_LIBRARIES: Final = (*_DRIVER, *(f"host/{name}" for name in _DRIVER), "gpushare-probe")


class InstallError(UserError):
    """A file to install is missing, or the destination is not writable."""


@dataclass(frozen=True)
class Installation:
    """One versioned folder and the paths in it."""

    root: Path

    @property
    def launcher(self) -> Path:
        """The program that engines run."""
        return self.root / "bin" / "gpushare-runtime"

    @property
    def hook(self) -> Path:
        """The OCI hook that the daemon adds to a container's spec."""
        return self.root / "bin" / "gpushare-hook"

    @property
    def libraries(self) -> Path:
        """The folder with the interposer libraries; `host` in it has those of the host."""
        return self.root / "lib"

    @property
    def probe(self) -> Path:
        """The program that `verify` runs as a tenant."""
        return self.root / "lib" / "gpushare-probe"

    @property
    def simulator(self) -> Path:
        """The folder with the simulated driver."""
        return self.root / "lib" / "simulator"


@dataclass(frozen=True)
class InstallSource:
    """The folders of the built or unpacked programs and libraries."""

    programs: Path
    libraries: Path

    @classmethod
    def of_package(cls) -> InstallSource:
        """Return the folders of this Python package's C programs and libraries.

        An editable installation has its sources in one folder and its build results in another;
        both are in the package's search path.
        """
        programs = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
        libraries = [Path(folder) / "lib" for folder in gpushare.__path__]
        return cls(
            _first(programs, _PROGRAMS[0]),
            _first(libraries, _LIBRARIES[0]),
        )


def install(
    prefix: Path = PREFIX, *, runtime: Path, socket: Path, source: InstallSource | None = None
) -> Installation:
    """Copy everything to `prefix`, for a launcher that runs `runtime` and connects to `socket`.

    `runtime` is the absolute path of the low-level runtime (runc, crun). InstallError if a file is
    missing or `prefix` is not writable; OSError if the disk is full.
    """
    files = _files(runtime, socket, source)
    installation = _named(prefix, files)
    if installation.root.is_dir():
        _verify(installation.root, files)
        # Protect it from removal like a new one; a folder that is not writable is not removed.
        with suppress(OSError):
            os.utime(installation.root)
        return installation
    draft = prefix / f".{installation.root.name}.{secrets.token_hex(4)}"
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        _write(draft, files)
        _publish(draft, installation.root, files)
    except PermissionError as error:
        raise InstallError(f"{error.filename} is not writable. Use sudo") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return installation


def planned(
    prefix: Path = PREFIX, *, runtime: Path, socket: Path, source: InstallSource | None = None
) -> Installation:
    """Return the installation that `install` would create or reuse, without writing anything."""
    return _named(prefix, _files(runtime, socket, source))


def activate(installation: Installation) -> Installation:
    """Point `<prefix>/current` to this installation and return it under that name.

    `<prefix>/previous` then points to the installation before, if it was a different one. Older
    ones are removed, but for those of the last hour.
    """
    prefix, name = installation.root.parent, installation.root.name
    before = (prefix / CURRENT).readlink().name if (prefix / CURRENT).is_symlink() else name
    _link(prefix / CURRENT, name)
    if before != name:
        _link(prefix / PREVIOUS, before)
        for folder in prefix.iterdir():
            is_old = time.time() - folder.lstat().st_mtime >= _YOUNG_SECONDS
            if is_old and _FOLDER.fullmatch(folder.name) and folder.name not in {name, before}:
                shutil.rmtree(folder, ignore_errors=True)  # of a link, it removes nothing
    return Installation(prefix / CURRENT)


def current(prefix: Path = PREFIX) -> Installation | None:
    """Return the active installation in `prefix`, None if there is none."""
    installation = Installation(prefix / CURRENT)
    return installation if installation.launcher.exists() else None


def _first(folders: list[Path], name: str) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder
    looked = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    raise InstallError(f"{name} is not in {looked}. Reinstall the package with its C programs")


def _link(place: Path, name: str) -> None:
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    draft.symlink_to(name)
    draft.replace(place)


def _files(runtime: Path, socket: Path, source: InstallSource | None) -> dict[Path, bytes]:
    files = _contents(source or InstallSource.of_package())
    files[Path("bin") / CONFIGURATION] = _configuration(runtime, socket)
    return files


def _named(prefix: Path, files: dict[Path, bytes]) -> Installation:
    return Installation(prefix / f"{gpushare.__version__}-{_digest(files)[:12]}")


def _contents(source: InstallSource) -> dict[Path, bytes]:
    """Return every file to install by its path beneath the versioned folder."""
    wanted = {Path("bin") / name: source.programs / name for name in _PROGRAMS}
    wanted |= {Path("lib") / name: source.libraries / name for name in _LIBRARIES}
    simulator = source.libraries / "simulator"
    if simulator.is_dir():
        wanted |= {Path("lib/simulator") / name: simulator / name for name in _DRIVER}
    contents: dict[Path, bytes] = {}
    for path, origin in wanted.items():
        if not origin.is_file():
            raise InstallError(f"{origin} is missing. Reinstall the package with its C programs")
        contents[path] = origin.read_bytes()
    return contents


def _configuration(runtime: Path, socket: Path) -> bytes:
    """Return the launcher's flat file (runtime/launcher.c reads it)."""
    for name, path in (("runtime", runtime), ("socket", socket)):
        if not path.is_absolute() or "\n" in str(path):
            raise InstallError(f"{name}: {path} is not an absolute path")
    return f"runtime = {runtime}\nsocket = {socket}\n".encode()


def _digest(files: dict[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    return digest.hexdigest()


def _write(root: Path, files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o755 if content.startswith(b"\x7fELF") else 0o644
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)  # independent of the umask
            os.fsync(descriptor)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)


def _publish(draft: Path, root: Path, files: dict[Path, bytes]) -> None:
    """Rename the finished draft; if another process was faster, its identical folder is used."""
    try:
        draft.rename(root)
    except OSError:
        if not root.is_dir():
            raise
        _verify(root, files)


def _verify(root: Path, files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        target = root / path
        if not target.is_file() or target.read_bytes() != content:
            raise InstallError(
                f"{target} has changed since it was installed. Remove {root} and try again"
            )
