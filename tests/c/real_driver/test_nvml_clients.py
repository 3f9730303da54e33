# SPDX-License-Identifier: Apache-2.0
"""Programs that others wrote on NVML, on NVIDIA's library: the same bare and in a share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import Place

#: Of functions that its release lacks, and of the others without the kernel module.
NOT_FOUND, UNINITIALIZED = "NVMLError_FunctionNotFound", "NVMLError_Uninitialized"
NVITOP = Path(sys.executable).with_name("nvitop")


def test_pynvml_is_answered_alike_in_a_share(bare: Place, share: Place) -> None:
    """Also by what a share refuses: NVIDIA's library first looks whether it is initialized."""
    alone, shared = bare.ask("bindings_of_nvml"), share.ask("bindings_of_nvml")
    assert alone["nvmlInit"] == shared["nvmlInit"] == "NVMLError_DriverNotLoaded: Driver Not Loaded"
    kinds = {str(answer).partition(":")[0] for answer in alone.values()}
    assert {NOT_FOUND, UNINITIALIZED} <= kinds
    assert shared.keys() == alone.keys()
    different = {name for name in alone if shared[name] != alone[name]}
    assert not different


@pytest.mark.needs("clients")
def test_nvitop_ends_alike_in_a_share(bare: Place, share: Place) -> None:
    alone, shared = bare.run(NVITOP, "--once"), share.run(NVITOP, "--once")
    assert alone.stderr == "NVML ERROR: Driver Not Loaded\n"
    assert (shared.returncode, shared.stdout, shared.stderr) == (
        alone.returncode, alone.stdout, alone.stderr,
    )  # fmt: skip
