# SPDX-License-Identifier: Apache-2.0
"""Copies the C programs and libraries into a versioned folder that is never rewritten.

An engine must not point into a virtual environment, and a library that a container has mapped must
not change beneath it, so what is used is a copy: `<prefix>/<version>-<sha12>/{bin,lib}`, named by
everything in it (content, names, the launcher's configuration). Installing the same again changes
nothing; an upgrade makes a second folder beside the first. `<prefix>/current` is the one that
engines are told: it is switched in one rename and so needs no restart of an engine. `previous` is
the one before, to go back to; gpushared removes the others once nobody uses them
(daemon/store/installations.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1", "gpushare-probe")
_SIMULATOR: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


class InstallError(UserError):
    """Something to install is not there, or the place for it is not ours to write."""


@dataclass(frozen=True)
class Installation:
    """One versioned folder and what is in it."""

    root: Path

    @property
    def launcher(self) -> Path:
        """The program that engines are told to run."""
        return self.root / "bin" / "gpushare-runtime"

    @property
    def hook(self) -> Path:
        """The OCI hook that the daemon writes into a container's spec."""
        return self.root / "bin" / "gpushare-hook"

    @property
    def scheduler(self) -> Path:
        """The program that opens and closes the tenants' gates; gpushared starts it."""
        return self.root / "bin" / "gpushare-scheduler"

    @property
    def libraries(self) -> Path:
        """The folder with the filter libraries."""
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
class Source:
    """Where the programs and the libraries were built or unpacked to."""

    programs: Path
    libraries: Path

    @classmethod
    def of_package(cls) -> Source:
        """Return where this Python package was installed with its C parts.

        An editable installation keeps its sources in one folder and what it built in another; both
        are in the package's search path.
        """
        programs = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
        libraries = [Path(folder) / "lib" for folder in gpushare.__path__]
        return cls(
            _first(programs, _PROGRAMS[0]),
            _first(libraries, _LIBRARIES[0]),
        )


def install(
    prefix: Path = PREFIX, *, runtime: Path, socket: Path, source: Source | None = None
) -> Installation:
    """Copy everything beneath `prefix`, for a launcher of `runtime` that asks on `socket`.

    `runtime` is the low-level runtime (runc, crun) by its absolute path. InstallError when a file
    is missing or `prefix` cannot be written; OSError for a disk that is full.
    """
    files = _files(runtime, socket, source)
    installation = _named(prefix, files)
    with _not_swept(prefix):
        if installation.root.is_dir():
            _verify(installation.root, files)
            # From now on it is as young as a new one; one that is not ours to write stays anyway.
            with suppress(OSError):
                os.utime(installation.root)
            return installation
    draft = prefix / f".{installation.root.name}.{secrets.token_hex(4)}"
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        _write(draft, files)
        _publish(draft, installation.root, files)
    except PermissionError as error:
        raise InstallError(f"{error.filename} cannot be written; use sudo") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return installation


def planned(
    prefix: Path = PREFIX, *, runtime: Path, socket: Path, source: Source | None = None
) -> Installation:
    """Return what `install` would make, which may be there already; nothing is written."""
    return _named(prefix, _files(runtime, socket, source))


def activate(installation: Installation) -> Installation:
    """Make `<prefix>/current` name this installation; return it by that name.

    `<prefix>/previous` is what it named before, if that was another.
    """
    prefix, name = installation.root.parent, installation.root.name
    before = (prefix / CURRENT).readlink().name if (prefix / CURRENT).is_symlink() else name
    _link(prefix / CURRENT, name)
    if before != name:
        _link(prefix / PREVIOUS, before)
    return Installation(prefix / CURRENT)


def current(prefix: Path = PREFIX) -> Installation | None:
    """Return the active installation beneath `prefix`, None when there is none."""
    installation = Installation(prefix / CURRENT)
    return installation if installation.launcher.exists() else None


def _first(folders: list[Path], name: str) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder
    looked = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    raise InstallError(
        f"{name} is in none of {looked}; install the package again, with its C parts"
    )


def _link(place: Path, name: str) -> None:
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    draft.symlink_to(name)
    draft.replace(place)


@contextmanager
def _not_swept(prefix: Path) -> Iterator[None]:
    """Have nobody remove a version meanwhile (flock(2) on the prefix, if it is there)."""
    try:
        descriptor = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _files(runtime: Path, socket: Path, source: Source | None) -> dict[Path, bytes]:
    files = _contents(source or Source.of_package())
    files[Path("bin") / CONFIGURATION] = _configuration(runtime, socket)
    return files


def _named(prefix: Path, files: dict[Path, bytes]) -> Installation:
    return Installation(prefix / f"{gpushare.__version__}-{_digest(files)[:12]}")


def _contents(source: Source) -> dict[Path, bytes]:
    """Return every file to install by its path beneath the versioned folder."""
    wanted = {Path("bin") / name: source.programs / name for name in _PROGRAMS}
    wanted |= {Path("lib") / name: source.libraries / name for name in _LIBRARIES}
    simulator = source.libraries / "simulator"
    if simulator.is_dir():
        wanted |= {Path("lib/simulator") / name: simulator / name for name in _SIMULATOR}
    contents: dict[Path, bytes] = {}
    for path, origin in wanted.items():
        if not origin.is_file():
            raise InstallError(f"{origin} is missing; install the package again, with its C parts")
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
            os.fchmod(descriptor, mode)  # whatever the umask
            os.fsync(descriptor)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)


def _publish(draft: Path, root: Path, files: dict[Path, bytes]) -> None:
    """Give the finished draft its name; another's that was faster is as good, if it is the same."""
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
                f"{target} is not what was installed there; remove {root} and try again"
            )
