# SPDX-License-Identifier: Apache-2.0
"""Where packages are built: the source tree, the build folder, and the time of the commit."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Changes to these change no package other than the sdist.
NOT_PACKAGED: Final = ("tests/", "docs/", ".ci/")
_LINES_SHOWN: Final = 30


class PackageError(Exception):
    """A package cannot be built. The message has the reason and, if known, the fix."""


@dataclass(frozen=True)
class Workspace:
    """A source tree, a folder for everything that is built, and a time.

    Attributes:
        root: the source tree.
        build: the folder for results (`dist`), caches and scratch files.
        epoch: the time of every file in a package, in seconds since 1970.
    """

    root: Path
    build: Path
    epoch: int

    @classmethod
    def of(cls, root: Path, build: Path) -> Workspace:
        """Return the workspace of a source tree; PackageError if the time is unknown.

        The time is SOURCE_DATE_EPOCH, or otherwise that of the commit.
        """
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
        if epoch.isdecimal():
            return cls(root, build, int(epoch))
        try:
            told = run(["git", "log", "-1", "--format=%ct"], cwd=root)
        except PackageError as error:
            raise PackageError(
                f"{root} is not a clone, so the time of its commit is unknown. "
                "Set SOURCE_DATE_EPOCH to a time in seconds"
            ) from error
        return cls(root, build, int(told))

    @property
    def version(self) -> str:
        """The version of gpushare."""
        text = (self.root / "gpushare/__init__.py").read_text(encoding="utf-8")
        match = re.search(r'(?m)^__version__ = "([^"]+)"$', text)
        if match is None:
            raise PackageError(f"{self.root}/gpushare/__init__.py has no __version__")
        return match[1]

    @property
    def dist(self) -> Path:
        """The folder for finished packages."""
        return self.build / "dist"

    @property
    def cache(self) -> Path:
        """The folder for downloads."""
        return self.build / "cache"

    def scratch(self, name: str) -> Path:
        """Return a folder for the intermediate results of `name`."""
        return self.build / "packages" / name

    def stamp(self, name: str) -> Path:
        """Return the file that keeps the inputs of what was built last as `name`."""
        folder = self.build / "stamps"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"package-{name}"

    def publish(self, path: Path) -> Path:
        """Copy a finished package into `dist`, and return it there."""
        return Path(shutil.copyfile(path, self.dist / path.name))

    def inputs(self, *, everything: bool) -> str:
        """Return a digest of the source files and their time; `everything` includes the tests."""
        listed = run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=self.root
        )
        names = sorted(set(listed.split("\0")) - {""})
        if not everything:
            names = [name for name in names if not name.startswith(NOT_PACKAGED)]
        return digest_of(self.root, names, str(self.epoch))

    def environment(self) -> dict[str, str]:
        """Return the environment for build tools."""
        zig = str(self.cache / "zig")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return os.environ | {
            "LC_ALL": "C.UTF-8",
            "PATH": path,
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "ZIG_GLOBAL_CACHE_DIR": zig,
            "ZIG_LOCAL_CACHE_DIR": zig,
        }


def digest_of(root: Path, names: Iterable[str], salt: str) -> str:
    """Return a digest of files beneath `root`: names, contents and executable bits."""
    digest = hashlib.sha256(salt.encode())
    for name in names:
        path = root / name
        if path.is_file():
            executable = os.access(path, os.X_OK)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name}\0{executable}\0{content}\n".encode())
    return digest.hexdigest()


def run(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run `command` and return its output; PackageError with the last lines if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            umask=0o022,
        )
    except FileNotFoundError as error:
        raise PackageError(f"{error.filename} is missing. Run ./dev setup --all") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).rstrip().splitlines()[-_LINES_SHOWN:]
        shown = " ".join(words)[:300]
        raise PackageError("\n".join([f"$ {shown}", *lines, f"exit status {done.returncode}"]))
    return done.stdout
