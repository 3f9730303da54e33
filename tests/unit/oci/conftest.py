# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.oci import cdi, driver_files
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.rootfs import Rootfs
from tests.unit.oci.examples import cdi_document, opened


@pytest.fixture
def nvidia_driver() -> DriverFiles:
    return driver_files.from_cdi(cdi.from_document(cdi_document()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs"
    path.mkdir()
    return path


@pytest.fixture
def rootfs(root: Path) -> Iterator[Rootfs]:
    with opened(root) as rootfs:
        yield rootfs
