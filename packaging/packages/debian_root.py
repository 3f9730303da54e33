# SPDX-License-Identifier: Apache-2.0
"""The Debian root that `./dev package` made: which packages it has, and the files of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from .artifact import BundledPart
from .workspace import PackageError, Workspace

NAME: Final = "source12"
_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class DebianRoot:
    """An unpacked Debian with dpkg's database."""

    path: Path

    @classmethod
    def of(cls, workspace: Workspace) -> DebianRoot:
        """Return the root that packages are made of; PackageError if it does not exist."""
        path = workspace.build / NAME
        if not (path / "var/lib/dpkg/status").is_file():
            raise PackageError(f"{path} is missing. Run ./dev setup --all, as root")
        return cls(path.resolve())

    @property
    def architecture(self) -> str:
        """The architecture, as uname(1) prints it."""
        return _ARCHITECTURES[self._status["libc6"]["Architecture"]]

    def part(self, package: str, licence: str) -> BundledPart:
        """Return a package's entry in a bill of materials."""
        version = self._field(package, "Version")
        return BundledPart(package, version, licence, "deb", "debian")

    def source(self, package: str) -> str:
        """Return the name of the source package that a package is built from."""
        named = self._status[package].get("Source") or package
        return named.partition(" ")[0]

    def stanza(self, package: str) -> str:
        """Return a package's entry in dpkg's database."""
        fields = self._status.get(package) or {}
        return "".join(f"{name}: {value}\n" for name, value in fields.items())

    def files(self, package: str) -> list[Path]:
        """Return the files and links of a package, as absolute paths of the root, sorted."""
        self._field(package, "Version")
        info = self.path / "var/lib/dpkg/info"
        lists = [info / f"{package}.list", *info.glob(f"{package}:*.list")]
        listed = next(path for path in lists if path.is_file()).read_text(encoding="utf-8")
        names = sorted(set(listed.splitlines()) - {"/."})
        return [Path(name) for name in names if not self._is_folder(name)]

    def at(self, path: Path) -> Path:
        """Return where `path` of the root is on this machine."""
        return self.path / path.relative_to("/")

    def licence(self, package: str) -> Path:
        """Return the file with a package's licences, on this machine."""
        return self.at(Path("/usr/share/doc") / package / "copyright").resolve()

    def _is_folder(self, name: str) -> bool:
        place = self.at(Path(name))
        if not place.is_symlink() and not place.exists():
            return True  # left out of the root
        return place.is_dir() and not place.is_symlink()

    def _field(self, package: str, name: str) -> str:
        try:
            return self._status[package][name]
        except KeyError:
            raise PackageError(
                f"{self.path} has no package {package}. Run ./dev setup --all"
            ) from None

    @cached_property
    def _status(self) -> dict[str, dict[str, str]]:
        text = (self.path / "var/lib/dpkg/status").read_text(encoding="utf-8")
        stanzas = [_fields(stanza) for stanza in text.split("\n\n") if stanza.strip()]
        return {fields["Package"]: fields for fields in stanzas}


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.strip("\n").splitlines():
        if line.startswith(" "):
            fields[name] += f"\n{line}"
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields
