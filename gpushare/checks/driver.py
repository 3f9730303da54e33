# SPDX-License-Identifier: Apache-2.0
"""Checks the driver: its version, whether its files match, its limitations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.checks import SETUP, Check
from gpushare.host import driver
from gpushare.host.driver import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.protocol import DaemonStatus

CHAR: Final = Path("/dev/char")
MEMORY_LIMITS_SINCE: Final = 615  # the first driver with memory limits of its own


def check_driver(status: DaemonStatus | None) -> Iterator[Check]:
    """Check the driver as the daemon reports it, or otherwise its installed files."""
    if status is not None and status["driver_version"]:
        kind = "simulated driver" if status["simulated"] else "driver"
        cards = f"{status['cards']} card{'' if status['cards'] == 1 else 's'}"
        text = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}, {cards}"
        if status["cards"]:
            yield Check("ok", text)
        else:
            yield Check(
                "fail", text, "see nvidia-smi; for a virtual machine, pass the GPU through to it"
            )
        yield from _limits(status["driver_version"])
        if status["simulated"]:
            return
    try:
        found = driver.find()
    except driver.DriverMissing as error:
        yield Check("fail", f"driver: {error}")
        return
    if status is None or not status["driver_version"]:
        yield Check("ok", f"driver {found.version}, {len(found.cards)} cards")
    yield from _loaded(found)
    yield from _links(found)
    yield from _char_links(found)


def _limits(version: str) -> Iterator[Check]:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MEMORY_LIMITS_SINCE:
        yield Check(
            "ok",
            f"driver < {MEMORY_LIMITS_SINCE}: no memory limits of its own; the interposer library "
            "enforces quotas (gpushare explain isolation)",
        )


def _loaded(found: driver.InstalledDriver) -> Iterator[Check]:
    module = driver.kernel_version()
    if module is None and not Path("/proc/driver/nvidia/version").exists():
        yield Check("fail", "the kernel module nvidia is not loaded", "modprobe nvidia")
    elif module is not None and module != found.version:
        yield Check(
            "fail",
            f"kernel module {module}, libraries {found.version}: versions must match",
            "reboot",
        )
    if not any(node.path == "/dev/nvidia-uvm" for node in found.control):
        yield Check("fail", "nvidia-uvm is not loaded: CUDA cannot start", "nvidia-modprobe -u -c0")


def _links(found: driver.InstalledDriver) -> Iterator[Check]:
    for name in (driver.CUDA, driver.NVML):
        link = driver.LINKS / name
        if link.is_symlink() and link.resolve() != found.library(name):
            yield Check("fail", f"{link} does not belong to driver {found.version}", SETUP)


def _char_links(found: driver.InstalledDriver) -> Iterator[Check]:
    """Check /dev/char: without the links, a `systemctl daemon-reload` removes running GPUs."""
    for node in (*found.control, *(node for card in found.cards for node in card.nodes)):
        link = CHAR / f"{node.major}:{node.minor}"
        if Path(node.path).exists() and not link.exists():
            yield Check(
                "warn",
                f"{link} is missing: containers lose {node.path} after systemctl daemon-reload",
                "systemctl restart gpushared, which creates it",
            )
            return


def check_placeholders() -> Iterator[Check]:
    """Check for empty files that an engine left in an image in place of the driver's files."""
    for soname in (driver.CUDA, driver.NVML):
        for path in files.library_paths(soname):
            if path.stat().st_size == 0:
                yield Check(
                    "fail",
                    f'{path} is empty ("file too short"): another runtime left it in an image',
                    f"rm {path}",
                )
