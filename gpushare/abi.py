# SPDX-License-Identifier: Apache-2.0
"""The page layouts and messages of libhook/include/gpushare_abi.h, for Python.

Every figure stands here once, under the name it has in C less its GPUSHARE_ prefix; a field is
`STRUCT_FIELD`, its offset in bytes. tests/c/test_abi_parity.py compiles the header and
compares.
Numbers are little endian: gpushare runs where NVIDIA's driver does, on x86-64 and arm64.
"""

from __future__ import annotations

import struct
from typing import Final

ABI_VERSION: Final = 3
ABI_MAGIC: Final = 0x6572616873757067

CONTAINER_DIR: Final = "/.gpushare"
HOST_DIR: Final = "/opt/gpushare"
DRIVER_DIR: Final = f"{CONTAINER_DIR}/driver"
TENANT_DIR: Final = f"{CONTAINER_DIR}/tenant"
GRANT_NAME: Final = "grant"
STATUS_NAME: Final = "status"
SOCKET_NAME: Final = "socket"
WAKEUP_NAME: Final = "wakeup"
MPS_NAME: Final = "mps"
PIPES_NAME: Final = "pipes"
TENANT_DIR_ENV: Final = "GPUSHARE_TENANT_DIR"

PAGE_BYTES: Final = 4096
MAX_CARDS: Final = 16
MAX_PROCESSES: Final = 1024

GATE_OPEN: Final = 0
GATE_METERED: Final = 1
GATE_WINDOW: Final = 2
GATE_CLOSED: Final = 3
GATE_STALE_NS: Final = 100_000_000

GRANT_BYTES: Final = PAGE_BYTES * (1 + MAX_CARDS)

GRANT_HEADER_MAGIC: Final = 0
GRANT_HEADER_ABI_VERSION: Final = 8
GRANT_HEADER_CARD_COUNT: Final = 12
GRANT_HEADER_GENERATION: Final = 16
GRANT_HEADER_UNBOUND: Final = 20
GRANT_HEADER_HEARTBEAT_NS: Final = 24
GRANT_HEADER_KEY: Final = 32
GRANT_HEADER_KEY_BYTES: Final = 24
GRANT_HEADER_EVICTED: Final = 56
GRANT_HEADER_MPS: Final = 60
GRANT_HEADER_FIRST_UUID: Final = 64

GRANT_CARD_UUID: Final = 0
GRANT_CARD_UUID_BYTES: Final = 48
GRANT_CARD_QUOTA_BYTES: Final = 48
GRANT_CARD_LIMIT_BYTES: Final = 56
GRANT_CARD_CONTEXT_BYTES: Final = 64
GRANT_CARD_OVERHEAD_BYTES: Final = 72
GRANT_CARD_CORES_PERCENT: Final = 80
GRANT_CARD_UTILIZATION_PERCENT: Final = 84
GRANT_CARD_MANAGED_LIMIT_BYTES: Final = 96
GRANT_CARD_GATE: Final = 128

GATE_MODE: Final = 0
GATE_EPOCH: Final = 4
GATE_IN_FLIGHT_MAX_NS: Final = 8
GATE_TIMING_INTERVAL_NS: Final = 16
GATE_WAIT_MAX_NS: Final = 24
GATE_HEARTBEAT_NS: Final = 32
GATE_BUSY_NS: Final = 40
GATE_SELF_THROTTLE_PERMILLE: Final = 48
GATE_PIECES_MIN: Final = 52
GATE_CHARGED_NS: Final = 64
GATE_WINDOWS: Final = 72
GATE_DEMAND_NS: Final = 88
GATE_HUNG: Final = 96
GATE_CLAIMED_NS: Final = 104
GATE_UNGATED_NS: Final = 112
# The fields of a gate, in their order; native, so that each is read in one piece.
GATE: Final = struct.Struct("@IIQQQQQIIQQQQQIIQQ")

PROCESS_BYTES: Final = 32
PROCESS_SHARES: Final = 4
PROCESS: Final = struct.Struct("<IIQQQ")  # pid, shares, starttime, denied, denied_bytes

KIND_BUFFER: Final = 0
KIND_CONTEXT: Final = 1
KIND_MANAGED: Final = 2
KIND_POOL: Final = 3
KIND_PHYSICAL: Final = 4
KIND_ARRAY: Final = 5
KIND_GRAPH: Final = 6
KIND_MODULE: Final = 7
KIND_CONTEXT_LIMIT: Final = 8
KIND_EXTERNAL: Final = 9
KINDS: Final = 10

DETAIL_BYTES: Final = 128
DETAIL: Final = struct.Struct("<10QQI36x")  # bytes by kind, pool_kept_bytes, contexts

PENDING_BITS: Final = 44
PENDING_BYTES: Final = (1 << PENDING_BITS) - 1

USAGE_HELD: Final = 0
USAGE_PENDING: Final = 8 * MAX_PROCESSES
USAGE_EXPORTED: Final = 16 * MAX_PROCESSES
USAGE_IMPORTED: Final = 24 * MAX_PROCESSES
USAGE_DETAIL: Final = 32 * MAX_PROCESSES
USAGE_BYTES: Final = 163840

STATUS_HEADER_HIGH_WATER: Final = 12
STATUS_HEADER_BYTES: Final = 24
STATUS_HEADER: Final = struct.Struct("<QIIII")  # magic, abi_version, high_water, sharing, reserved

STATUS_PROCESS_OFFSET: Final = PAGE_BYTES
STATUS_USAGE_OFFSET: Final = STATUS_PROCESS_OFFSET + MAX_PROCESSES * PROCESS_BYTES
STATUS_CARD_BYTES: Final = MAX_PROCESSES * (4 * 8 + DETAIL_BYTES)
STATUS_WORK_OFFSET: Final = STATUS_USAGE_OFFSET + MAX_CARDS * STATUS_CARD_BYTES
STATUS_WORK_BYTES: Final = MAX_PROCESSES * 64
STATUS_BYTES: Final = STATUS_WORK_OFFSET + MAX_CARDS * STATUS_WORK_BYTES

WORK_SUBMITTED: Final = 32
WORK_BYTES: Final = 64
WORK: Final = struct.Struct("<IIQQQQQQII")  # the fields of a process's work, in their order

MESSAGE_LOG: Final = 2
MESSAGE_SHORTFALL: Final = 3
MESSAGE_RESTORE: Final = 4
MESSAGE_TEXT_BYTES: Final = 1000
MESSAGE_TEXT: Final = 16
MESSAGE_BYTES: Final = 1016
MESSAGE_HEADER: Final = struct.Struct("<IIII")  # type, level, pid, text_bytes

SHORTFALL_BYTES: Final = 24
SHORTFALL: Final = struct.Struct("<IIIIQ")  # its fields, in their order


def grant_card_offset(number: int) -> int:
    """Return where card `number` of a tenant (0 upwards) begins in its grant file, in bytes."""
    return PAGE_BYTES * (1 + number)


def status_process_offset(number: int) -> int:
    """Return where process `number` begins in a status file, in bytes."""
    return STATUS_PROCESS_OFFSET + number * PROCESS_BYTES


def status_usage_offset(card: int) -> int:
    """Return where what is held on `card` begins in a status file, in bytes."""
    return STATUS_USAGE_OFFSET + card * STATUS_CARD_BYTES


def gate_offset(number: int) -> int:
    """Return where the gate of card `number` of a tenant begins in its grant file, in bytes."""
    return grant_card_offset(number) + GRANT_CARD_GATE


def status_work_offset(card: int, process: int = 0) -> int:
    """Return where the work of a process on `card` begins in a status file, in bytes."""
    return STATUS_WORK_OFFSET + card * STATUS_WORK_BYTES + process * WORK_BYTES
