# SPDX-License-Identifier: Apache-2.0
"""The device file, as libhook/simulator/device.h lays it out; a test compares the two."""

from __future__ import annotations

import ctypes
import enum
from typing import Final

MAGIC: Final = 0x31306D6973757067
LAYOUT: Final = 3
FILE_BYTES: Final = 128 << 20
CARDS_MOST: Final = 16
VERSION_BYTES: Final = 80
UNIT_BYTES: Final = 2 << 20
REAL_TIME_Q16: Final = 1 << 16


class Header(ctypes.Structure):
    """`struct sim_header` of libhook/simulator/device.h."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("layout", ctypes.c_uint32),
        ("card_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("slow_motion_q16", ctypes.c_uint32),
        ("file_bytes", ctypes.c_uint64),
        ("driver_version", ctypes.c_char * VERSION_BYTES),
        ("instance_count", ctypes.c_uint32),
        ("nvml_init_error", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 3),
    )


PROFILE_WIDE: Final = (
    "memory_bytes",
    "reserved_bytes",
    "context_bytes",
    "bar1_bytes",
    "slice_ns",
    "switch_preempt_ns",
    "switch_drained_ns",
    "link_bytes_per_second",
    "memory_bytes_per_second",
)
PROFILE_NARROW: Final = (
    "compute_major",
    "compute_minor",
    "multiprocessors",
    "cores_per_multiprocessor",
    "threads_per_multiprocessor",
    "shared_bytes_per_multiprocessor",
    "shared_bytes_per_block_optin",
    "l2_bytes",
    "memory_bus_bits",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "power_idle_milliwatts",
    "power_limit_milliwatts",
    "temperature_idle_celsius",
    "temperature_busy_celsius",
    "temperature_slowdown_celsius",
    "temperature_shutdown_celsius",
    "pci_bus",
    "pci_device_id",
    "pci_subsystem_id",
    "pcie_generation",
    "pcie_lanes",
    "nvml_architecture",
    "nvml_brand",
    "mig_capable",
)
_PROFILE_INSTANCE: Final = ("parent", "gpu_instance", "compute_instance", "slices")
_PROFILE_PLACE: Final = ("numa_node", "pci_bridge", "pci_switch", "nvlink_peers", "nvlinks")

# Set for each card, not by the profile.
PER_CARD: Final = frozenset({"pci_bus"})


class Profile(ctypes.Structure):
    """`struct sim_profile` of libhook/simulator/device.h."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_uint8 * 16),
        ("serial", ctypes.c_char * 16),
        ("vbios", ctypes.c_char * 32),
        *((name, ctypes.c_uint64) for name in PROFILE_WIDE),
        *(
            (name, ctypes.c_uint32)
            for name in (*PROFILE_NARROW, *_PROFILE_INSTANCE, *_PROFILE_PLACE)
        ),
        ("reserved", ctypes.c_uint32 * 8),
    )


class Faults(ctypes.Structure):
    """`struct sim_faults` of libhook/simulator/device.h."""

    _fields_ = (
        ("allocations", ctypes.c_uint32),
        ("after", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("nvml_error", ctypes.c_uint32),
        ("nvml_delay_ms", ctypes.c_uint32),
        ("event_error", ctypes.c_uint32),
        ("nvml_hangs", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("lies", ctypes.c_uint32),
        ("xid", ctypes.c_uint32),
        ("xids", ctypes.c_uint32),
        ("listed", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 3),
    )


FAULTS_OFFSET: Final = -(-(ctypes.sizeof(Header) + CARDS_MOST * ctypes.sizeof(Profile)) // 64 * 64)


class Lie(enum.IntFlag):
    """`enum sim_lie` of libhook/simulator/device.h: what NVML says and cannot be."""

    BYTES = 1  # each process holds twice what the card has
    TWICE = 2  # a process is listed twice, with other bytes
    USED = 4  # nothing of the card is used
    TOTAL = 8  # the card has half of its memory
    UNSAID = 16  # no lie: what processes hold is not said
    PID = 32  # a process that cannot be there is listed
    UUID = 64  # the card has another UUID


#: `listed` of a card that NVML does not list.
NOWHERE: Final = 0xFFFFFFFF

#: nvmlReturn_t: the libraries are of another version than the kernel's module.
MISMATCH: Final = 18
