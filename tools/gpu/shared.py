# SPDX-License-Identifier: Apache-2.0
"""Memory that two processes map: for which of them the driver and NVML count it, and until when.

The account counts it once, for its creator (libhook/include/gpushare_abi.h); the daemon takes what
NVML counts for all of a tenant's processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from gpushare.verify import ProbeFailed

from .driver import DriverPaths
from .report import NotMeasured, ReportRow
from .scale import Weighed, taken, weighed

MIB = 1 << 20
SHARED = 256 * MIB


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """Whether what two processes map is counted for both of them."""
    for part in (_ipc, _handles):
        try:
            with weighed(driver, "memory") as exporter, weighed(driver, "memory") as importer:
                yield from part(exporter, importer)
        except (NotMeasured, ProbeFailed) as error:
            yield ReportRow(f"the rest of {part.__name__.strip('_')}", missing=str(error))


def _ipc(exporter: Weighed, importer: Weighed) -> Iterator[ReportRow]:
    name = f"{SHARED // MIB} MiB by IPC handle"
    yield from exporter.step(f"{name}: the exporter allocates", f"linear {SHARED}")
    handle = exporter.process.ask("ipc_handle")["handle"]
    grown, _ = importer.grown(f"ipc_open {handle}")
    yield taken(f"{name}: the importer opens it", grown)
    yield from importer.step(f"{name}: the importer closes it", "ipc_close")
    importer.grown(f"ipc_open {handle}")
    yield from exporter.step(f"{name}: the exporter frees it while it is open", "free")
    yield from importer.step(f"{name}: then the importer closes it", "ipc_close")


def _handles(exporter: Weighed, importer: Weighed) -> Iterator[ReportRow]:
    name = f"{SHARED // MIB} MiB of physical memory"
    with tempfile.TemporaryDirectory() as folder:
        importer.process.ask(f"listen {folder}/socket")
        yield from exporter.step(f"{name}: the exporter makes it", f"create {SHARED}")
        yield from exporter.step(f"{name}: the exporter exports it", f"send {folder}/socket")
        yield from importer.step(f"{name}: the importer imports it", "receive")
    yield from importer.step(f"{name}: the importer maps it", f"map {SHARED}")
    yield from exporter.step(f"{name}: the exporter releases it", "release")
    yield from importer.step(f"{name}: the importer releases its handle", "release")
    yield from importer.step(f"{name}: the importer unmaps it", f"unmap {SHARED}")
