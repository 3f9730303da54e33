# SPDX-License-Identifier: Apache-2.0
"""Simulated cards: the device file and the CDI spec of a simulated driver.

The simulated `libcuda.so.1` and `libnvidia-ml.so.1` (simulator/) share their cards through
one *device file*. This package creates it from a profile, a JSON object that describes a model of
card, and also writes the CDI spec with which an engine or gpushared passes it to containers.

    python -m gpushare.simulator create DIR --profile h200 --cards 2

A process finds the cards through the variable GPUSHARE_SIM_DEVICE, or at /dev/gpushare-sim.
"""

from __future__ import annotations

from gpushare.simulator.device_file import (
    MISMATCH,
    NOWHERE,
    CheckpointFault,
    CheckpointOperation,
    FalseReading,
    ProfileError,
    card_uuid,
    instance_uuid,
    libraries,
    load_profile,
    time_scale,
)
from gpushare.simulator.machine import (
    CDI_KIND,
    DEVICE_ENV,
    DEVICE_IN_CONTAINER,
    Simulator,
    change_driver,
    create,
    fail,
    partition,
    raise_xid,
)

__all__ = [
    "CDI_KIND",
    "DEVICE_ENV",
    "DEVICE_IN_CONTAINER",
    "MISMATCH",
    "NOWHERE",
    "CheckpointFault",
    "CheckpointOperation",
    "FalseReading",
    "ProfileError",
    "Simulator",
    "card_uuid",
    "change_driver",
    "create",
    "fail",
    "instance_uuid",
    "libraries",
    "load_profile",
    "partition",
    "raise_xid",
    "time_scale",
]
