# SPDX-License-Identifier: Apache-2.0
"""What the tests' programs compare with: the simulator's own figure of the card."""

from __future__ import annotations

from .conftest import ProgramContainer

#: Lines of a program: truth() is what is used of the card; `behind` is the driver, unfiltered.
TRUTH = (
    "behind = ctypes.CDLL(os.environ['BEHIND'])",
    "def truth():",
    "    free, total = c_size_t(), c_size_t()",
    "    assert behind.cuMemGetInfo_v2(byref(free), byref(total)) == 0",
    "    return total.value - free.value",
)


def open_behind(container: ProgramContainer) -> ProgramContainer:
    """Let the container's programs reach the driver behind the filter."""
    container.env["BEHIND"] = str(container.libraries.parent / "driver" / "libcuda.so.1")
    return container
