# SPDX-License-Identifier: Apache-2.0
"""A container with one instance of a partitioned card (MIG): the quota holds as on a whole card."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from gpushare import simulator

from .client import alloc, start
from .conftest import T4
from .container import ProgramContainer
from .inside import inside
from .tenant import MIB, InterposedTenant
from .test_nvml import cards, error_of

UNAVAILABLE = 46
NO_PERMISSION, NOT_FOUND = 4, 6
QUOTA = 300 * MIB
STEP = 64 * MIB


@pytest.fixture
def container(tmp_path: Path, simulator_filters: Path) -> ProgramContainer:
    """300 MiB of the second instance of the second card."""
    made = simulator.create(
        tmp_path / "cards",
        T4.with_name("h200.json"),
        cards=2,
        mig=("3g.71gb", "1g.18gb"),
        folder=simulator_filters / "simulator",
    )
    tenant = InterposedTenant(tmp_path / "tenant", [made.instances[3]], QUOTA)
    names = {"INSTANCE": made.instances[3], "SIBLING": made.instances[2], "CARD": made.uuids[1]}
    env = {**made.env, **names, "CUDA_VISIBLE_DEVICES": made.instances[3]}
    return ProgramContainer(simulator_filters, tenant, env)


@pytest.mark.parametrize("name", ["SIBLING", "CARD"])
def test_a_device_that_was_not_allocated_is_not_available(
    name: str, container: ProgramContainer
) -> None:
    container.env["CUDA_VISIBLE_DEVICES"] = container.env[name]
    said = container.says("say(result_of(call, 'cuInit', 0), result_of(context))")
    # Of a partitioned card the driver shows instances only.
    assert said == ([0, UNAVAILABLE] if name == "SIBLING" else [100, 3])


@inside("container")
def test_nvml_shows_the_instance_as_the_slice() -> None:
    start()
    alloc(20 * MIB)
    cards()
    instance = pynvml.nvmlDeviceGetHandleByUUID(os.environ["INSTANCE"])
    memory = pynvml.nvmlDeviceGetMemoryInfo(instance)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(instance)
    assert (memory.total, memory.used) == (QUOTA, 20 * MIB)
    assert pynvml.nvmlDeviceGetAttributes(instance).memorySizeMB == 300
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), 20 * MIB)
    assert process.gpuInstanceId == 2


@inside("container")
def test_nvml_finds_the_instance_on_its_card_and_nothing_beside_it() -> None:
    (card,) = cards()
    assert pynvml.nvmlDeviceGetUUID(card) == os.environ["CARD"]
    assert pynvml.nvmlDeviceGetIndex(card) == 0
    for call, where, error in (
        (pynvml.nvmlDeviceGetMemoryInfo, card, NO_PERMISSION),
        (pynvml.nvmlDeviceGetComputeRunningProcesses, card, NO_PERMISSION),
        (pynvml.nvmlDeviceGetHandleByUUID, os.environ["SIBLING"], NOT_FOUND),
    ):
        assert error_of(call, where) == error
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        with suppress(pynvml.NVMLError_NotFound):
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
            found.append(pynvml.nvmlDeviceGetUUID(instance))
    assert found == [os.environ["INSTANCE"]]
