# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of this host: which files engines read, and which of them are gpushare's own.

An engine reads every spec in these folders; what two files of one folder both define it refuses to
give. gpushare's own are known by their name, which begins with `gpushare`, and are written again
when the driver has changed. Everybody else's are read and never touched.
Source: CDI SPEC.md, "CDI JSON spec" and "Conflict resolution".
"""

from __future__ import annotations

import glob
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.errors import UserError
from gpushare.host.driver import GPU
from gpushare.oci import cdi
from gpushare.oci.cdi import CdiError, CdiSpec

FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
OWN: Final = Path("/etc/cdi/gpushare.json")
KEPT: Final = "driver.json"  # in the state directory, where engines have no spec
_DRIVERS: Final = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml", "/etc/cdi/gpushare*.json")
_SUFFIXES: Final = (".json", ".yaml")


class CdiConflict(UserError):
    """Another spec of this machine has the same devices; names it."""


@dataclass(frozen=True)
class Found:
    """A spec of this machine. `spec` is None, and `fault` says why, where it cannot be read."""

    path: Path
    spec: CdiSpec | None = None
    fault: str = ""

    @property
    def is_own(self) -> bool:
        """Whether gpushare wrote it, and may again."""
        return self.path.name.startswith("gpushare")

    @property
    def missing(self) -> tuple[str, ...]:
        """The files that it mounts and that are not there: it is of an earlier driver."""
        mounts = () if self.spec is None else self.spec.everything.mounts
        return tuple(m.host_path for m in mounts if not Path(m.host_path).exists())


def read(path: Path) -> Found:
    """Return the spec at `path`."""
    try:
        return Found(path, cdi.load(path, yaml.safe_load))
    except (CdiError, yaml.YAMLError) as error:
        return Found(path, None, str(error))
    except OSError as error:
        return Found(path, None, f"{path}: {error.strerror}")


def found() -> list[Found]:
    """Return every spec that an engine reads, in the order of their folders and names."""
    paths = [
        path
        for folder in FOLDERS
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in _SUFFIXES and not path.name.startswith(".")
    ]
    return [read(path) for path in paths]


def of_node(configured: Path | None, state: Path) -> Path:
    """Return the spec that gpushared works by: `configured`, where one is, else its own.

    `state` is its state directory.
    """
    if configured is not None:
        return configured
    for pattern in _DRIVERS:
        for file in sorted(glob.glob(pattern)):  # noqa: PTH207 - a pattern from the root
            return Path(file)
    return state / KEPT


def refuse_conflict(path: Path) -> None:
    """Raise CdiConflict where engines would find the cards in `path` and in another spec."""
    if path.parent not in FOLDERS:
        return
    for other in found():
        if (
            other.path != path
            and other.path.parent == path.parent
            and other.spec is not None
            and other.spec.kind == GPU
        ):
            raise CdiConflict(
                f"{other.path} has {GPU} already, and engines refuse what two specs have; it is "
                "used as it is. Remove it, or write elsewhere with --output"
            )


def as_text(document: dict[str, Any], *, as_yaml: bool = False) -> str:
    """Return a spec as a file has it."""
    if as_yaml:
        return str(yaml.safe_dump(document, sort_keys=False))
    return json.dumps(document, indent=2) + "\n"


def write(path: Path, text: str) -> bool:
    """Put `text` at `path` in one rename; False where it was so already. OSError.

    What is there and no regular file is written to: /dev/null is not to become one.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return True
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask
            file.write(text)
        draft.rename(path)
    except BaseException:
        draft.unlink()
        raise
    return True
