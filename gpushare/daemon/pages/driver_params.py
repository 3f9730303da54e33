# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's params file in containers: covered, so that their root makes no device nodes.

NVIDIA's libraries, run by root with CAP_MKNOD, create the nodes of any card, unless
/proc/driver/nvidia/params says `ModifyDeviceFiles: 0` (NVIDIA/nvidia-modprobe,
modprobe-utils/nvidia-modprobe-utils.c). Runtimes refuse mounts below /proc in a spec, so the
launcher mounts a read-only copy that says so once the runtime has made the container
(runtime/driver_params.c), before a program of the image runs.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.oci.bounded_read import replace_file
from gpushare.oci.spec import Spec

PARAMS: Final = Path("/proc/driver/nvidia/params")
_NAME: Final = "ModifyDeviceFiles:"
_OFF: Final = f"{_NAME} 0"


class DriverParams:
    """Has `path`, a file below /proc, covered in containers, with a copy that is kept at `copy`."""

    def __init__(self, copy: Path, path: Path = PARAMS) -> None:
        self._copy, self._path = copy, path
        self._is_needed = False

    def prepare(self) -> None:
        """Make the copy, unless the host has no such file, or one that says the same."""
        self._is_needed = False
        with suppress(OSError):  # without a copy, the launcher says that it could not cover it
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._is_needed = _OFF not in lines
            kept = [line for line in lines if not line.startswith(_NAME)]
            if self._is_needed:
                replace_file(self._copy, "\n".join([*kept, _OFF, ""]).encode(), 0o444)

    def to_cover(self, spec: Spec) -> dict[str, str]:
        """Return what the answer to a create tells its launcher; empty: there is nothing to cover.

        "covers": the file, by its path below /proc; "copy": the path of the copy.
        """
        if not self._is_needed or not may_make_nodes(spec):
            return {}
        return {"covers": str(self._path).removeprefix("/proc/"), "copy": str(self._copy)}


def may_make_nodes(spec: Spec) -> bool:
    """Whether root of the container may make device nodes, and the file can be covered for it.

    A container with CAP_SYS_ADMIN could uncover it. Without masked paths, a user namespace in the
    container could mount procfs no more if a part of it were covered (mount_too_revealing,
    fs/namespace.c). A mount namespace or a /proc that is not the container's own may be the host's,
    and what has an SELinux label may not read the copy.
    """
    own_proc = [
        mount.get("type") for mount in spec.entries("mounts") if mount.get("destination") == "/proc"
    ]
    return (
        spec.has_capability("CAP_MKNOD")
        and not spec.may_mount()
        and not spec.is_privileged()
        and spec.namespaces("mount") == [""]
        and not spec.namespaces("user")
        and own_proc == ["proc"]
        and bool(spec.at("linux", "maskedPaths"))
        and not spec.mount_label
    )
