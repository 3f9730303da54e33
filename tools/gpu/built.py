# SPDX-License-Identifier: Apache-2.0
"""Where this checkout's libraries and programs were built or installed to."""

from __future__ import annotations

from pathlib import Path

import gpushare
from gpushare.host.driver import CUDA

from .report import NotMeasured

#: CMake's own build folder: enough for the probe, where the package is not installed.
CMAKE = Path(__file__).resolve().parents[2] / "build" / "cmake" / "lib"


def libraries() -> Path:
    """Return the folder of the filter libraries; NotMeasured where nothing was built."""
    for folder in (*(Path(path) / "lib" for path in gpushare.__path__), CMAKE):
        if (folder / CUDA).is_file():
            return folder
    raise NotMeasured("the libraries are not built: ./dev setup")


def probe() -> str:
    """Return the path of gpushare-probe; NotMeasured where it was not built."""
    program = libraries() / "gpushare-probe"
    if not program.is_file():
        raise NotMeasured(f"{program} is not built")
    return str(program)
