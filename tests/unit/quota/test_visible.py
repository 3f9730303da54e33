# SPDX-License-Identifier: Apache-2.0
import pytest

from gpushare.quota.request import visible_devices


@pytest.mark.parametrize("value", ["", "void", "none", " "])
def test_values_that_ask_for_nothing(value: str) -> None:
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": value}) is None


@pytest.mark.parametrize("value", ["all", "0", "GPU-4f1c,1"])
def test_values_that_an_image_asks_with(value: str) -> None:
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": value}) == value


def test_unset_asks_for_nothing() -> None:
    assert visible_devices({}) is None
