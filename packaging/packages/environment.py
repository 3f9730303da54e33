# SPDX-License-Identifier: Apache-2.0
"""The private environment: gpushare and its dependencies, for one Python, in one folder.

It is a virtual environment (PEP 405) of a Python that is already on the machine, built without
running that Python: wheels are unpacked, and nothing is compiled. No other program imports from it,
and it imports nothing that is installed elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from email.parser import HeaderParser
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Final

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from .artifact import BundledPart
from .workspace import PackageError, Workspace, run

REQUIREMENTS: Final = Path("packaging/packages/requirements.txt")
#: Of the wheels of dependencies; the releases that we build for have a newer glibc.
_PLATFORMS: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
#: Distributions that have their licence at the beginning of a module only.
_IN_MODULES: Final = {"nvidia_ml_py": ("pynvml.py",)}
#: The licence names from before there were licence expressions.
_SPDX: Final = {
    "BSD": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
}


@dataclass(frozen=True)
class LicensedPart:
    """A part of the environment and the texts of its licence."""

    part: BundledPart
    texts: Sequence[str]


@dataclass(frozen=True)
class PrivateEnvironment:
    """An environment at `prefix` of the machine, which is built beneath `stage`.

    Attributes:
        prefix: the folder on the machine, for example /usr/lib/gpushare/0.1.0.
        stage: the folder that becomes the machine's root.
        python: the version of the interpreter, for example 3.11.
        interpreter: the interpreter on the machine.
    """

    prefix: Path
    stage: Path
    python: str
    interpreter: Path

    @property
    def place(self) -> Path:
        """The folder of the environment while it is built."""
        return self.stage / self.prefix.relative_to("/")

    @property
    def modules(self) -> Path:
        """The folder of Python modules while it is built."""
        return self.place / f"lib/python{self.python}/site-packages"

    def fill(self, workspace: Workspace, own: Path, architecture: str) -> list[LicensedPart]:
        """Install the wheel `own` and its dependencies; return the dependencies."""
        programs = self.place / "bin"
        wheels = self._download(workspace, architecture)
        for wheel in wheels:
            self._unpack(wheel)
        shutil.rmtree(programs, ignore_errors=True)  # commands of dependencies
        self._unpack(own)
        for name, module, function in _commands(self.modules):
            self._write_command(programs / name, module, function)
        interpreter = os.path.relpath(self.interpreter, self.prefix / "bin")
        (programs / "python3").symlink_to(interpreter)
        (self.place / "pyvenv.cfg").write_text(
            f"home = {self.interpreter.parent}\n"
            f"include-system-site-packages = false\nversion = {self.python}\n",
            encoding="utf-8",
        )
        return [self._part(wheel) for wheel in wheels]

    def _download(self, workspace: Workspace, architecture: str) -> list[Path]:
        """Return the wheels of all dependencies, which are downloaded once."""
        platforms = [f"--platform={name}_{architecture}" for name in _PLATFORMS]
        options = ("--implementation", "cp", "--python-version", self.python, *platforms)
        lock = (workspace.root / REQUIREMENTS).read_text(encoding="utf-8")
        return download(workspace, lock, f"{self.python}-{architecture}", *options)

    def _unpack(self, wheel: Path) -> None:
        modules = str(self.prefix / self.modules.relative_to(self.place))
        scheme = {
            "purelib": modules,
            "platlib": modules,
            "scripts": str(self.prefix / "bin"),
            "data": str(self.prefix),
            "headers": str(self.prefix / "include"),
        }
        destination = SchemeDictionaryDestination(
            scheme, interpreter="python3", script_kind="posix", destdir=str(self.stage)
        )
        with WheelFile.open(wheel) as source:
            install(source, destination, additional_metadata={"INSTALLER": b"gpushare\n"})

    def _write_command(self, path: Path, module: str, function: str) -> None:
        """Write a command that imports from this environment and Python's own library only."""
        path.unlink(missing_ok=True)
        path.write_text(
            f"#!{self.prefix}/bin/python3 -I\n"
            f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n",
            encoding="utf-8",
        )
        path.chmod(0o755)

    def _part(self, wheel: Path) -> LicensedPart:
        name, version = wheel.name.split("-")[:2]
        info = self.modules / f"{name}-{version}.dist-info"
        headers = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
        licence = (
            headers["License-Expression"]
            or headers["License"]
            or _classified(headers.get_all("Classifier", []))
        )
        texts = [path.read_text(encoding="utf-8").strip() for path in _licence_files(info)]
        texts = texts or [_header(self.modules / file) for file in _IN_MODULES.get(name, ())]
        if not licence or not texts:
            raise PackageError(f"{wheel.name} names no licence, or has no text of it")
        digest = sha256(wheel.read_bytes()).hexdigest()
        named = headers["Name"]
        expression = _SPDX.get(licence, licence)
        return LicensedPart(BundledPart(named, version, expression, sha256=digest), texts)


def download(workspace: Workspace, lock: str, name: str, *options: str) -> list[Path]:
    """Return the wheels in `lock`, lines with hashes; `name` tells apart what `options` select."""
    digest = sha256(lock.encode()).hexdigest()[:12]
    folder = workspace.cache / "wheels" / f"{name}-{digest}"
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        requirements = draft / "requirements.txt"
        requirements.write_text(lock, encoding="utf-8")
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "--only-binary=:all:",
                "--dest",
                str(draft),
                *options,
                "--requirement",
                str(requirements),
            ],
            cwd=workspace.root,
            env=workspace.environment(),
        )
        draft.rename(folder)
    return sorted(folder.glob("*.whl"))


def _classified(classifiers: Sequence[str]) -> str:
    words = [line.split(" :: ")[-1] for line in classifiers if line.startswith("License :: OSI")]
    return words[0] if words else ""


def _licence_files(info: Path) -> list[Path]:
    names = ("LICEN", "COPYING", "NOTICE", "COPYRIGHT")
    return sorted(
        path for path in info.rglob("*") if path.is_file() and path.name.upper().startswith(names)
    )


def _header(module: Path) -> str:
    """Return the comment at the beginning of a module."""
    lines = module.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line.strip("#").strip() for line in comment).strip()


def _commands(modules: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, module and function of each of gpushare's commands."""
    (entries,) = modules.glob("gpushare_runtime-*.dist-info/entry_points.txt")
    parser = ConfigParser()
    parser.read(entries, encoding="utf-8")
    for name, target in parser["console_scripts"].items():
        module, _, function = target.partition(":")
        yield name, module, function
