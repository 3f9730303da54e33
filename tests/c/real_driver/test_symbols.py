# SPDX-License-Identifier: Apache-2.0
"""The symbols of NVIDIA's libraries: as the table says, and the same through the interposer."""

from __future__ import annotations

import pytest

from gpushare.old_drivers import RESERVED, RESERVED_SINCE
from libhook.table import elf, generate
from libhook.table.coverage import exported
from tests.real_driver import RealDriver
from tools.gpu.symbols import cuda_lines

from .conftest import Place

#: No driver before and after it has them.
OF_525_ALONE = {"nvmlDeviceCcuGetStreamState", "nvmlDeviceCcuSetStreamState"}


def names_of(driver: RealDriver, library: str) -> list[str]:
    """What the library exports, and what the tables have for other releases."""
    return sorted({*elf.read(driver.libraries / library).exported, *exported()})


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_a_share_has_the_driver_s_symbols(
    library: str, real_driver: RealDriver, bare: Place, share: Place
) -> None:
    names = names_of(real_driver, library)
    there = bare.ask("symbols", library, names)
    assert there[0] == there[1]
    assert set(there[0]) == elf.read(real_driver.libraries / library).exported
    assert share.ask("symbols", library, names) == there


def test_the_driver_has_what_the_table_gives_its_version(
    real_driver: RealDriver, bare: Place
) -> None:
    version = bare.ask("calls")["before"]["version"]
    due = {line.symbol for line in cuda_lines() if line.version <= version}
    there = elf.read(real_driver.libraries / "libcuda.so.1").exported
    assert there & {line.symbol for line in cuda_lines()} == due


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_every_function_of_the_driver_is_classified(library: str, real_driver: RealDriver) -> None:
    assert generate.unknown(real_driver.libraries / library) == []


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_simulator_has_the_driver_s_symbols(
    library: str, bare: Place, simulated: Place
) -> None:
    names = sorted({*exported()} - OF_525_ALONE)
    assert simulated.ask("symbols", library, names) == bare.ask("symbols", library, names)


def test_what_doctor_says_that_an_old_driver_lacks(real_driver: RealDriver) -> None:
    there = elf.read(real_driver.libraries / "libnvidia-ml.so.1").exported
    assert (RESERVED in there) == (int(real_driver.release) >= RESERVED_SINCE)
