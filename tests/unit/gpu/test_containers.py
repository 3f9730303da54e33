# SPDX-License-Identifier: Apache-2.0
"""Tenants with a daemon: what they ask for, and when there can be none."""

from __future__ import annotations

import pytest

from gpushare.verify import Sizes
from tools.gpu import containers
from tools.gpu.bundle import config
from tools.gpu.driver import DriverPaths
from tools.gpu.report import NotMeasured

GIB = 1 << 30


@pytest.mark.parametrize("card_gib", [4, 8, 15, 24, 40, 80, 141])
def test_the_sizes_fit_the_card_with_room_to_spare(card_gib: int) -> None:
    sizes = containers.sizes(card_gib * GIB)
    assert sizes.large + sizes.resized < card_gib * GIB
    assert sizes.small < sizes.resized < sizes.large


def test_a_large_card_gets_the_requests_of_the_demo() -> None:
    assert containers.sizes(80 * GIB) == Sizes()


def test_a_bundle_asks_by_annotation_and_for_nothing_where_there_is_no_quota() -> None:
    asked = config({"memory": "4GiB", "cores": "30"}, ["gpushare-probe"])
    assert asked["annotations"] == {"gpushare.io/memory": "4GiB", "gpushare.io/cores": "30"}
    assert config({}, ["gpushare-probe"])["annotations"] == {}


def test_a_driver_in_a_folder_needs_its_spec_too(driver: DriverPaths) -> None:
    with pytest.raises(NotMeasured, match="needs --cdi"), containers.stack(driver):
        pass
