# SPDX-License-Identifier: Apache-2.0
"""Files that engines on this host read or mount: CDI specs, with gpushare's own, and folders.

An engine reads every spec in these folders, and refuses devices that two files of one folder
define. gpushare's own specs have names that begin with `gpushare`, and are written again after a
driver change. gpushare reads all other specs, but never changes them.
Source: CDI SPEC.md, "CDI JSON spec" and "Conflict resolution".
"""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.errors import UserError
from gpushare.host.driver import GPU
from gpushare.oci import cdi
from gpushare.oci.bounded_read import replace_file
from gpushare.oci.cdi import CdiError, CdiSpec

FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
OWN: Final = Path("/etc/cdi/gpushare.json")
KEPT: Final = "driver.json"  # in the state directory, used if engines have no spec
_DRIVERS: Final = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml", "/etc/cdi/gpushare*.json")
_SUFFIXES: Final = (".json", ".yaml")


class CdiConflict(UserError):
    """Another spec of this machine defines the same devices; the message names it."""


def read_spec(path: Path) -> CdiSpec | None:
    """Return the spec at `path`; None where it cannot be read."""
    try:
        return cdi.load(path, yaml.safe_load)
    except (CdiError, yaml.YAMLError, OSError):
        return None


def driver_spec_path(configured: Path | None, state: Path) -> Path:
    """Return the path of the spec that gpushared uses: `configured`, or otherwise its own.

    `state` is the state directory.
    """
    if configured is not None:
        return configured
    for pattern in _DRIVERS:
        for file in sorted(glob.glob(pattern)):  # noqa: PTH207 - a pattern from the root
            return Path(file)
    return state / KEPT


def refuse_conflict(path: Path) -> None:
    """Raise CdiConflict if engines would find the cards both in `path` and in another spec."""
    if path.parent not in FOLDERS or not path.parent.is_dir():
        return
    for other in sorted(path.parent.iterdir()):
        if other == path or other.suffix not in _SUFFIXES or other.name.startswith("."):
            continue
        spec = read_spec(other)
        if spec is not None and spec.kind == GPU:
            raise CdiConflict(
                f"{other} already defines {GPU}, and engines refuse devices that two specs "
                "define. gpushare uses that spec unchanged. Remove it, or use another --output"
            )


def format_spec(document: dict[str, Any], *, as_yaml: bool = False) -> str:
    """Return a spec as the text of a file."""
    if as_yaml:
        return str(yaml.safe_dump(document, sort_keys=False))
    return json.dumps(document, indent=2) + "\n"


def write_spec(path: Path, text: str) -> bool:
    """Write `text` to `path` in one rename; False if the file is unchanged. OSError.

    An existing file that is not regular is written in place: /dev/null must stay a device.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return True
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    replace_file(path, text.encode(), 0o644)
    return True


def run_folder(run_dir: Path, *names: str) -> Path:
    """Return a folder beneath `run_dir`, without links, as an engine writes a mount's source."""
    return Path(os.path.realpath(run_dir), *names)


def make_run_folder(run_dir: Path, *names: str) -> Path:
    """Return such a folder, which is created if it is missing; every user may enter it. OSError."""
    folder = run_folder(run_dir)
    for name in names:
        folder /= name
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)  # independent of the umask
    return folder
