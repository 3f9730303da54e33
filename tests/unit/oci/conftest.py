# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpushare.oci import cdi, driver_files
from gpushare.oci.driver_files import DriverFiles
from tests.unit.oci.examples import cdi_document


@pytest.fixture
def nvidia_driver() -> DriverFiles:
    return driver_files.from_cdi(cdi.from_document(cdi_document()))
