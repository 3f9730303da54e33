# SPDX-License-Identifier: Apache-2.0
"""The wheels: one for each architecture, for every Python from 3.10 and glibc from 2.17."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .artifact import Artifact, BundledPart
from .workspace import PackageError, Workspace, run

ARCHITECTURES: Final = ("x86_64", "aarch64")
POLICY: Final = "manylinux_2_17"
#: The interposer libraries load the real driver by these paths (libhook/CMakeLists.txt). They exist
#: for a tenant only, so auditwheel must not look for them.
EXCLUDED: Final = (
    "/.gpushare/driver/libcuda.so.1",
    "/.gpushare/driver/libnvidia-ml.so.1",
    "/opt/gpushare/driver/libcuda.so.1",
    "/opt/gpushare/driver/libnvidia-ml.so.1",
)
#: Linked into the static programs by zig, and what the dashboard's pages draw graphs with.
STATIC_PARTS: Final = (
    BundledPart("musl", "1.2.5", "MIT", "generic"),
    BundledPart("zig-compiler-rt", version("ziglang"), "MIT", "generic"),
    BundledPart("uplot", "1.6.32", "MIT", "npm"),
)
#: Where the wheel has the licence of each.
LICENCES: Final = {
    "musl": "gpushare/licences/musl.txt",
    "zig-compiler-rt": "gpushare/licences/zig.txt",
    "uplot": "gpushare/dashboard/static/vendor/LICENSE",
}


def make(workspace: Workspace) -> list[Artifact]:
    """Build the wheels of all architectures."""
    wheels = [up_to_date(workspace, architecture) for architecture in ARCHITECTURES]
    return [Artifact(workspace.publish(path), STATIC_PARTS) for path in wheels]


def up_to_date(workspace: Workspace, architecture: str) -> Path:
    """Return the wheel of one architecture; it is built only if its inputs have changed."""
    stamp = workspace.stamp(f"wheel-{architecture}")
    inputs = workspace.inputs(everything=False)
    wheels = sorted(_folder(workspace, architecture).glob("done/*.whl"))
    if wheels and stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs:
        return wheels[0]
    built = make_one(workspace, architecture)
    stamp.write_text(inputs, encoding="utf-8")
    return built


def _folder(workspace: Workspace, architecture: str) -> Path:
    return workspace.scratch(f"wheel-{architecture}")


def make_one(workspace: Workspace, architecture: str) -> Path:
    """Build the wheel of one architecture.

    This machine's C parts are the ones that ./dev setup has built already.
    """
    here = architecture == platform.machine()
    build = workspace.build / ("cmake" if here else f"cmake-{architecture}")
    raw, repaired = (_folder(workspace, architecture) / name for name in ("raw", "done"))
    for folder in (raw, repaired):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--wheel-dir",
        raw,
        f"--config-settings=build-dir={build}",
        f"--config-settings=cmake.define.GPUSHARE_ARCHITECTURE={architecture}",
        workspace.root,
    ]
    # Names the architecture in the wheel's tag.
    target = {} if here else {"_PYTHON_HOST_PLATFORM": f"linux-{architecture}"}
    run(command, cwd=workspace.root, env=workspace.environment() | target)
    excluded = [word for path in EXCLUDED for word in ("--exclude", path)]
    # `auto`: otherwise, it accepts this machine's architecture only. `none`: nothing is copied into
    # the wheel, so nothing has to be patched.
    repair = ["auditwheel", "repair", "--plat", "auto", "--patcher", "none", *excluded]
    run(
        [*repair, "--wheel-dir", repaired, only_file(raw, "*.whl")],
        cwd=workspace.root,
        env=workspace.environment(),
    )
    return only_file(repaired, f"*{POLICY}_{architecture}.whl")


def only_file(folder: Path, pattern: str) -> Path:
    """Return the one file of `folder` that matches; PackageError if there is another number."""
    matches = sorted(folder.glob(pattern))
    if len(matches) != 1:
        names = ", ".join(path.name for path in matches) or "none"
        raise PackageError(f"{folder}: expected one {pattern}, found {names}")
    return matches[0]
