# SPDX-License-Identifier: Apache-2.0
"""The driver: which one, whether its parts agree, what it cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.checks.check import SETUP, Check
from gpushare.host import driver, loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.protocol import Status

CHAR: Final = Path("/dev/char")
MEMORY_LIMITS_SINCE: Final = 615  # the driver that can hold a memory quota itself


def of_host(status: Status | None) -> Iterator[Check]:
    """Yield what is found of the driver, as the daemon has it or as its files lie there."""
    if status is not None and status["driver_version"]:
        kind = "simulated driver" if status["simulated"] else "driver"
        cards = f"{status['cards']} card{'' if status['cards'] == 1 else 's'}"
        text = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}, {cards}"
        if status["cards"]:
            yield Check("ok", text)
        else:
            yield Check("fail", text, "nvidia-smi says why; a virtual machine needs the GPU passed")
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
            f"driver < {MEMORY_LIMITS_SINCE}: no limits of its own; the interposer holds quotas "
            "(gpushare explain isolation)",
        )


def _loaded(found: driver.Driver) -> Iterator[Check]:
    module = driver.kernel_version()
    if module is None and not Path("/proc/driver/nvidia/version").exists():
        yield Check("fail", "the kernel module nvidia is not loaded", "modprobe nvidia")
    elif module is not None and module != found.version:
        yield Check(
            "fail", f"kernel module {module}, libraries {found.version}", "reboot: they must agree"
        )
    if not any(node.path == "/dev/nvidia-uvm" for node in found.control):
        yield Check("fail", "nvidia-uvm is not loaded: CUDA cannot start", "nvidia-modprobe -u -c0")


def _links(found: driver.Driver) -> Iterator[Check]:
    for name in (driver.CUDA, driver.NVML):
        link = driver.LINKS / name
        if link.is_symlink() and link.resolve() != found.library(name):
            yield Check("fail", f"{link} is not of driver {found.version}", SETUP)


def _char_links(found: driver.Driver) -> Iterator[Check]:
    """Without them a `systemctl daemon-reload` takes the GPU from running containers."""
    for node in (*found.control, *(node for card in found.cards for node in card.nodes)):
        link = CHAR / f"{node.major}:{node.minor}"
        if Path(node.path).exists() and not link.exists():
            yield Check(
                "warn",
                f"{link} is missing: after a systemctl daemon-reload containers lose {node.path}",
                "systemctl restart gpushared, which makes it",
            )
            return


def placeholders() -> Iterator[Check]:
    """An engine without a driver leaves empty files where it would have mounted the driver's."""
    for soname in (driver.CUDA, driver.NVML):
        for path in loader.paths(soname):
            if path.stat().st_size == 0:
                yield Check(
                    "fail",
                    f'{path} is empty ("file too short"): left in an image by another runtime',
                    f"rm {path}",
                )
