# SPDX-License-Identifier: Apache-2.0
"""Where this checkout's libraries and programs were built or installed to."""

from __future__ import annotations

from pathlib import Path

from gpushare.install import InstallError, Source

from .report import NotMeasured

#: CMake's own build folder: enough for the probe, where the package is not installed.
CMAKE = Path(__file__).resolve().parents[2] / "build" / "cmake" / "lib"


def libraries() -> Path:
    """Return the folder of the filter libraries; NotMeasured where nothing was built."""
    try:
        return Source.of_package().libraries
    except InstallError as error:
        if (CMAKE / "libcuda.so.1").is_file():
            return CMAKE
        raise NotMeasured(f"the libraries are not built: {error}") from error


def probe() -> str:
    program = libraries() / "gpushare-probe"
    if not program.is_file():
        raise NotMeasured(f"{program} is not built")
    return str(program)
