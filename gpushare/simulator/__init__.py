# SPDX-License-Identifier: Apache-2.0
"""Cards without hardware: the device file and the CDI spec of a simulated driver.

The simulated `libcuda.so.1` and `libnvidia-ml.so.1` (libhook/simulator) share their cards through
one *device file*. This package writes it from a profile, a JSON object that describes one model of
card, and writes beside it the CDI spec by which an engine or gpushared gives it to containers.

    python -m gpushare.simulator create DIR --profile h200 --cards 2

A process finds the cards by the variable GPUSHARE_SIM_DEVICE, or at /dev/gpushare-sim.
"""

from __future__ import annotations

from gpushare.simulator.cdi import CDI_KIND, DEVICE_IN_CONTAINER
from gpushare.simulator.device import card_uuid, instance_uuid, slow_motion
from gpushare.simulator.fault import change_driver, fail, partition, raise_xid
from gpushare.simulator.layout import MISMATCH, NOWHERE, Lie
from gpushare.simulator.machine import DEVICE_ENV, Simulator, create
from gpushare.simulator.profile import ProfileError, libraries, load_profile

__all__ = [
    "CDI_KIND",
    "DEVICE_ENV",
    "DEVICE_IN_CONTAINER",
    "MISMATCH",
    "NOWHERE",
    "Lie",
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
    "slow_motion",
]
