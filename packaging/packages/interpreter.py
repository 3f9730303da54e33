# SPDX-License-Identifier: Apache-2.0
"""The Python of the rpm and of the image: Debian 12's, with the libraries that it needs.

It has its own dynamic loader and libc, at the absolute path where it is installed, so it needs
nothing of a host but the kernel. It finds them by its run path, which child processes do not
inherit. docs/adr/0029-a-python-of-its-own-in-the-rpm-and-the-image.md has the reasons.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from .debian_root import DebianRoot
from .workspace import Workspace, run

LOADER: Final = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
VERSION: Final = "3.11"
PYTHON: Final = f"python{VERSION}"
#: Packages with the interpreter and its standard library.
_PYTHON_PARTS: Final = {
    "libpython3.11-minimal": "PSF-2.0",
    "libpython3.11-stdlib": "PSF-2.0",
    "python3.11-minimal": "PSF-2.0",
}
#: Packages with shared libraries.
_LIBRARY_PARTS: Final = {
    "libbz2-1.0": "bzip2-1.0.6",
    "libc6": "LGPL-2.1-or-later",
    "libexpat1": "MIT",
    "libffi8": "MIT",
    "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "liblzma5": "LicenseRef-liblzma-public-domain",
    "libncursesw6": "X11-distribute-modifications-variant",
    "libsqlite3-0": "blessing",
    "libssl3": "Apache-2.0",
    "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libtinfo6": "X11-distribute-modifications-variant",
    "libuuid1": "BSD-3-Clause",
    "zlib1g": "Zlib",
}
LICENCES: Final = _PYTHON_PARTS | _LIBRARY_PARTS
_LIBRARIES_LEFT_OUT: Final = frozenset(
    {
        "libBrokenLocale.so.1",
        "libanl.so.1",
        "libc_malloc_debug.so.0",
        "libmemusage.so",
        "libmvec.so.1",
        "libnsl.so.1",
        "libnss_compat.so.2",
        "libnss_hesiod.so.2",
        "libbz2.so.1",
        "libexpatw.so.1",
        "libformw.so.6",
        "libmenuw.so.6",
        "libpcprofile.so",
        "libthread_db.so.1",
        "libtic.so.6",
    }
)
#: Of the standard library.
_LEFT_OUT: Final = (
    "EXTERNALLY-MANAGED",
    "config-*",
    "ctypes/macholib",
    "dbm",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
    "turtle.py",
    "turtledemo",
)
#: Extension modules: those whose libraries are not in the package, and those for Python's tests.
_EXTENSIONS_LEFT_OUT: Final = (
    "_crypt",
    "_dbm",
    "nis",
    "ossaudiodev",
    "readline",
    "_ctypes_test",
    "_test*",
    "_xx*",
    "xx*",
)


def make(workspace: Workspace, root: DebianRoot, staged: Path, place: Path) -> None:
    """Create the interpreter in the folder `staged`; it works when that folder is `place`."""
    library = Path("/usr/lib") / PYTHON
    for package in _PYTHON_PARTS:
        for path in root.files(package):
            if path.is_relative_to(library) and not root.at(path).is_symlink():
                _copy(root.at(path), staged / path.relative_to("/usr"))
    extensions = (f"lib-dynload/{name}.*" for name in _EXTENSIONS_LEFT_OUT)
    for pattern in (*_LEFT_OUT, *extensions):
        for path in (staged / "lib" / PYTHON).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for package in _LIBRARY_PARTS:
        for path in root.files(package):
            if ".so" in path.name and path.parent.name.endswith("-linux-gnu"):
                _copy_library(root.at(path), staged / "lib")
    program = staged / "bin/python3"
    _copy(root.at(Path("/usr/bin") / PYTHON), program)
    command: list[str | Path] = [
        "patchelf",
        "--set-interpreter",
        place / "lib" / LOADER[root.architecture],
    ]
    command += ["--force-rpath", "--set-rpath", place / "lib", program]
    run(command, cwd=workspace.root, env=workspace.environment())


def argv(root: DebianRoot, staged: Path) -> list[str | Path]:
    """Return the command that runs the interpreter before it is in its place."""
    loader = staged / "lib" / LOADER[root.architecture]
    python = staged / "bin/python3"
    return [loader, "--library-path", staged / "lib", "--argv0", python, python]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode & 0o755)


def _copy_library(source: Path, folder: Path) -> None:
    """Copy a library under the name by which programs load it."""
    if source.name in _LIBRARIES_LEFT_OUT:
        return
    # libz.so.1 is a link to libz.so.1.2.13, which nothing loads; libc.so.6 is a file.
    is_versioned = source.name.partition(".so.")[2].count(".") > 0
    if not is_versioned or source.name == "libbz2.so.1.0":
        _copy(source, folder / source.name)
