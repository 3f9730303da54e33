# SPDX-License-Identifier: Apache-2.0
"""The checkpoint part of `./dev gpu`, on simulated drivers with and without the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tools.gpu import checkpoint
from tools.gpu.checkpoint import Checkpointer
from tools.gpu.driver import DriverPaths
from tools.gpu.report import ReportRow

MIB = 1 << 20
SIZE = 64 * MIB


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SIZES", (SIZE,))


def test_what_is_assumed_of_checkpoints_is_measured(driver: DriverPaths) -> None:
    rows = {row.name: row for row in checkpoint.rows(driver)}
    assert [row.name for row in rows.values() if row.held is False] == []
    # cudart asks whether a driver is genuine, which the simulated one does not answer.
    assert {row.name for row in rows.values() if row.missing} == {"the rest of training"}
    assert rows["persistence mode"].value == "on"
    name = f"{SIZE / checkpoint.GIB:g} GiB"
    for verb in checkpoint.VERBS:
        assert isinstance(rows[f"{name}: {verb}"].value, int)
    taken = rows[f"{name}: host memory that it takes"].value
    assert isinstance(taken, int)
    assert taken > 0.95 * SIZE  # the kernel counts pages of each thread only now and then
    assert rows[f"{name}: NVML's entry of the process"].value == "not listed"
    back = rows[f"{name}: memory of the card that it gives back"].value
    assert back == rows[f"{name}: memory that it takes again"].value
    illegal = [row for row in rows.values() if " in state " in row.name and row.held is None]
    assert {row.value for row in illegal} == {"CUDA_ERROR_ILLEGAL_STATE"}
    assert len(illegal) == 8
    assert rows["managed memory: checkpoint"].value == "CUDA_ERROR_NOT_SUPPORTED"
    assert rows["a caller without cuInit: restore"].value == "CUDA_SUCCESS"
    assert rows["pairs onto the same card: restore"].value == "CUDA_SUCCESS"


def test_a_move_onto_another_card_is_measured(driver_of: Callable[..., DriverPaths]) -> None:
    rows = {row.name: row for row in checkpoint.rows(driver_of(cards=2))}
    assert rows["pairs onto another card: restore"].value == "CUDA_SUCCESS"
    assert rows["pairs onto another card: the contents are the same"].held
    assert rows["pairs onto another card: the UUID that the program sees"].value == "another"


def test_a_driver_without_the_api_is_not_measured(
    driver_of: Callable[..., DriverPaths],
) -> None:
    (row,) = checkpoint.rows(driver_of(cuda_version="12.6"))
    assert row == ReportRow("CUDA checkpoints", missing="this driver has none: 570 is the first")


def test_a_move_exchanges_the_two_cards() -> None:
    nobody: Any = None
    one = Checkpointer(nobody, nobody, "1", ("a", "b", "c"))
    assert one.pairs() == ("a=a", "b=b", "c=c")
    assert one.pairs("b") == ("a=b", "b=a", "c=c")
