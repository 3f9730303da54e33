# SPDX-License-Identifier: Apache-2.0
"""What a library in a tenant's process writes into the status page, written by a test."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare import abi

_F_OFD_SETLK: Final = 37
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


def register(
    fd: int, number: int, pid: int, starttime: int, *, denied: int = 0, denied_bytes: int = 0
) -> None:
    """Enter a process; the highest number so far is the last one registered."""
    header = abi.STATUS_HEADER.pack(abi.ABI_MAGIC, abi.ABI_VERSION, number + 1, 0, 0)
    os.pwrite(fd, header, 0)
    record = abi.PROCESS.pack(pid, 0, starttime, denied, denied_bytes)
    os.pwrite(fd, record, abi.status_process_offset(number))


@contextmanager
def life(status: int, number: int) -> Iterator[None]:
    """Hold the lock on a record of the status file open at `status`, as its process would."""
    with Path(f"/proc/self/fd/{status}").open("r+b") as own:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, abi.status_process_offset(number), 1, 0)
        fcntl.fcntl(own, _F_OFD_SETLK, lock)
        yield


def hold(
    fd: int,
    number: int,
    held_bytes: int,
    *,
    contexts: int = 0,
    pool_kept_bytes: int = 0,
    kinds: Mapping[int, int] = _NOTHING,
    exported_bytes: int = 0,
    imported_bytes: int = 0,
) -> None:
    """Write what process `number` holds; `kinds` is bytes by abi.KIND_..., all within `held`."""
    base = abi.status_usage_offset(0)
    words = {
        abi.USAGE_HELD: held_bytes,
        abi.USAGE_EXPORTED: exported_bytes,
        abi.USAGE_IMPORTED: imported_bytes,
    }
    for field, value in words.items():
        os.pwrite(fd, value.to_bytes(8, "little"), base + field + number * 8)
    noted = [kinds.get(kind, 0) for kind in range(abi.KINDS)]
    detail = abi.DETAIL.pack(*noted, pool_kept_bytes, contexts)
    os.pwrite(fd, detail, base + abi.USAGE_DETAIL + number * abi.DETAIL_BYTES)
